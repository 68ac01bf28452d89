"""``pocketserve trust``: lets code of models run on this device."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.config import STATE_VARIABLE, load_config
from pocketserve.local.opening import is_model_path
from pocketserve.terminal.errors import EXIT_DONE, EXIT_FAILED, CommandError
from pocketserve.terminal.local import open_local
from pocketserve.terminal.options import add_folder_option
from pocketserve.terminal.output import (
    INDENT,
    confirm,
    print_indented,
    print_json,
    print_text,
    printable,
)

if TYPE_CHECKING:
    from pocketserve.repository.scan import ModelEntry, VersionEntry
    from pocketserve.service import Service
    from pocketserve.trust.code_parts import CodePart
    from pocketserve.trust.store import Consent, TrustStore


SHOWN_DIGITS = 12  # of a SHA-256


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "trust",
        help="let the code of a model run",
        description="Shows which files of a model are code, and asks whether they may "
        "run. Their hashes are kept in the state folder; a changed file needs consent "
        "again. Code runs with your rights: it can read, change and send whatever "
        "you can.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL|PATH",
        help="a model of the models folder, or its path",
    )
    add_folder_option(parser)
    parser.add_argument(
        "--version",
        dest="model_version",
        metavar="NAME",
        help="one version only; this also trusts a data file that would run code",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--list", action="store_true", help="show what is trusted")
    parser.add_argument("--revoke", action="store_true", help="revoke the consent")
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help="the server's state folder, if it is not yours",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Ask for consent to a model's code; list or revoke consents."""
    if options.state_dir:
        os.environ[STATE_VARIABLE] = options.state_dir
    if options.list or options.revoke:
        from pocketserve.trust.store import TrustStore  # late, as the service

        store = TrustStore(load_config({}).state_dir)
        if options.revoke:
            return _revoke(store, options)
        return _list(store, options)
    if not options.model:
        options.parser.error("name a model, or give --list")
    service, name, version = open_local(options.model, options.models_dir)
    try:
        return _trust(service, name, options.model_version or version, options)
    finally:
        service.close()


def _trust(
    service: Service, name: str, version: str | None, options: argparse.Namespace
) -> int:
    entry = service.entry(name)
    versions = _chosen_versions(entry, version)
    parts = _code_parts(service, entry, versions, is_single=version is not None)
    missing = _missing_parts(service, name, parts)
    if not options.json:
        _print_parts(name, parts, missing)
    if missing and not options.yes:
        consent = confirm("Do you trust its author? [y/N] ")
        if consent is None:
            raise CommandError(
                "there is no terminal to ask on; read the files, and add --yes if you "
                "trust their author"
            )
        if not consent:
            print("Nothing new is trusted.")
            return EXIT_FAILED
    if missing:
        service.trust.add(name, missing)
    if options.json:
        print_json([_part_document(part, part in missing) for part in parts])
    elif missing:
        _print_trusted(entry, versions, shlex.quote(options.model))
    return EXIT_DONE


def _chosen_versions(entry: ModelEntry, version: str | None) -> list[VersionEntry]:
    if version is None:
        return list(entry.versions.values())
    if version not in entry.versions:
        listed = ", ".join(entry.versions) or "none"
        raise CommandError(
            f"{entry.name!r} has no version {version!r}; it has {listed}"
        )
    return [entry.versions[version]]


def _code_parts(
    service: Service,
    entry: ModelEntry,
    versions: Sequence[VersionEntry],
    *,
    is_single: bool,
) -> list[CodePart]:
    """Return the code of versions, each file once.

    Args:
        is_single: whether the user has chosen the version. Its format may be data, but
            its framework may let it run code, which only loading shows: with all code
            trusted, the version is then trusted as a whole.
    """
    from pocketserve.runtimes.base import ModelLoadError
    from pocketserve.trust.builders import check_builder
    from pocketserve.trust.code_parts import code_of

    parts = {}
    try:
        for version in versions:
            for part in code_of(entry, version):
                parts[part.key] = part
        if is_single:
            _add_whole_version(parts, versions[0], service.trust.consents())
        for version in versions:
            check_builder(version)
    except ModelLoadError as error:
        raise CommandError(f"{entry.name}: {error}") from None
    return list(parts.values())


def _add_whole_version(
    parts: dict[str, CodePart], version: VersionEntry, consents: Mapping[str, Consent]
) -> None:
    from pocketserve.runtimes.model_format import Code
    from pocketserve.trust.code_parts import whole_version

    all_trusted = all(_is_trusted(consents, part) for part in parts.values())
    if all_trusted and version.format.code is Code.NONE:
        whole = whole_version(version)
        parts.pop(whole.key, None)
        parts[whole.key] = whole


def _missing_parts(
    service: Service, name: str, parts: Sequence[CodePart]
) -> list[CodePart]:
    """Return the parts that need consent."""
    from pocketserve.runtimes.base import ModelLoadError
    from pocketserve.trust.store import check_writers, embedded_code

    embedded = set(embedded_code().values())
    new = [part for part in parts if part.digest not in embedded]
    try:
        check_writers(part.path for part in new)
    except ModelLoadError as error:
        raise CommandError(f"{name}: {error}") from None
    consents = service.trust.consents()
    return [part for part in new if not _is_trusted(consents, part)]


def _is_trusted(consents: Mapping[str, Consent], part: CodePart) -> bool:
    consent = consents.get(part.key)
    return consent is not None and consent.digest == part.digest


def _part_document(part: CodePart, added: bool) -> dict[str, Any]:
    return {
        "name": part.name,
        "key": part.key,
        "sha256": part.digest,
        "effect": part.effect,
        "added": added,
    }


def _print_trusted(
    entry: ModelEntry, versions: Sequence[VersionEntry], quoted_model: str
) -> None:
    """Print the next steps after consent."""
    from pocketserve.runtimes.model_format import Code

    for version in versions:
        if version.format.code is Code.MODULES and not entry.manifest.inputs:
            print_text(
                "Its model.toml has no [[inputs]], and a module does not state its "
                f"inputs. Next: pocketserve init {quoted_model} --shape 1,3,224,224"
            )
    # Not wrapped, so that the command can be copied.
    print(
        f"Trusted. `pocketserve trust --revoke {printable(quoted_model)}` revokes it."
    )


def _print_parts(
    name: str, parts: Sequence[CodePart], missing: Sequence[CodePart]
) -> None:
    if not parts:
        print_text(f"{printable(name)} has no code: there is nothing to trust.")
        return
    for part in parts:
        state = "trusted"
        if part in missing:
            state = "asked"
        _print_record(
            f"{part.name}: {state}, {part.digest[:SHOWN_DIGITS]}", part.effect
        )
    if missing:
        print()
        print_text(
            "It runs with your rights: it can read, change and send whatever you can."
        )


def _list(store: TrustStore, options: argparse.Namespace) -> int:
    consents = store.consents()
    if options.json:
        print_json(
            [{"key": key, **consent._asdict()} for key, consent in consents.items()]
        )
    elif not consents:
        print_text("Only code of the embedded models is trusted.")
    else:
        for key, consent in consents.items():
            day = time.strftime("%Y-%m-%d", time.localtime(consent.given))
            _print_record(
                f"{consent.model}: {day}, {consent.digest[:SHOWN_DIGITS]}", key
            )
    return EXIT_DONE


def _print_record(title: str, text: str) -> None:
    """Print a title with a text below it."""
    print_text(printable(title), indent=INDENT)
    print_indented(printable(text))


def _revoke(store: TrustStore, options: argparse.Namespace) -> int:
    """Revoke the consent to a model or path."""
    if not options.model:
        options.parser.error("name the model to revoke")
    keys = _keys_to_revoke(store, options.model)
    if not keys:
        raise CommandError(
            f"nothing of {options.model!r} is trusted; "
            "`pocketserve trust --list` shows what is"
        )
    store.remove(keys)
    if options.json:
        print_json(keys)
    else:
        print_text("No longer trusted:")
        for key in keys:
            print_indented(printable(key))
    return EXIT_DONE


def _keys_to_revoke(store: TrustStore, model: str) -> list[str]:
    from pocketserve.repository.files import key_of

    consents = store.consents()
    keys = [key for key, consent in consents.items() if consent.model == model]
    is_path = "/" in model or (not keys and is_model_path(model))
    if not is_path:
        return keys
    path = key_of(Path(model))
    below = (f"{path}/", f"{path}#")
    return [key for key in consents if key == path or key.startswith(below)]
