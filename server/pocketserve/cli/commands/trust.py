"""``pocketserve trust``: consent to code of models on this device."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Sequence
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
    from pocketserve.service import Service
    from pocketserve.trust.code_parts import CodePart
    from pocketserve.trust.store import TrustStore


SHOWN_DIGITS = 12  # of a SHA-256


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "trust",
        help="let the code of a model run",
        description="Shows which files of a model are code, and asks whether they may run. Their hashes are kept in "
        "the state folder; a file that changes asks again. Code runs with your rights: it can read, change and send "
        "whatever you can.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL|PATH",
        help="a model of the models folder, or a path of one",
    )
    add_folder_option(parser)
    parser.add_argument(
        "--version",
        dest="model_version",
        metavar="NAME",
        help="one version only; also one whose kind is data, but whose file would act, is trusted as a whole then",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--list", action="store_true", help="show what is trusted")
    parser.add_argument(
        "--revoke", action="store_true", help="trust the model no longer"
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help="the state folder of a server that has another than yours",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Show the code of a model and keep the owner's consent; or list or revoke what was given."""
    if options.state_dir:
        os.environ[STATE_VARIABLE] = options.state_dir
    if options.list or options.revoke:
        from pocketserve.trust.store import TrustStore  # late, as the service

        store = TrustStore(load_config({}).state_dir)
        return _revoke(store, options) if options.revoke else _list(store, options)
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
    from pocketserve.runtimes.base import ModelLoadError
    from pocketserve.runtimes.model_format import Code
    from pocketserve.trust.builders import check_builder
    from pocketserve.trust.code_parts import code_of, whole_version
    from pocketserve.trust.store import check_writers, embedded_code

    entry = service.entry(name)
    if version is not None and version not in entry.versions:
        raise CommandError(
            f"{name!r} has no version {version!r}; it has {', '.join(entry.versions) or 'none'}"
        )
    versions = (
        [entry.versions[version]]
        if version is not None
        else list(entry.versions.values())
    )
    try:
        parts = list(
            {
                part.key: part
                for variant in versions
                for part in code_of(entry, variant)
            }.values()
        )
        if (
            version is not None
            and _is_left(service, parts)
            and versions[0].format.code is Code.NONE
        ):
            whole = whole_version(versions[0])
            parts = [part for part in parts if part.key != whole.key] + [whole]
        for variant in versions:
            check_builder(variant)
        new = [part for part in parts if part.digest not in embedded_code().values()]
        check_writers(part.path for part in new)
    except ModelLoadError as error:
        raise CommandError(f"{name}: {error}") from None
    consents = service.trust.consents()
    missing = [
        part
        for part in new
        if part.key not in consents or consents[part.key].digest != part.digest
    ]
    if not options.json:
        _print_parts(name, parts, missing)
    consent = (
        True
        if options.yes or not missing
        else confirm("Do you trust who made it? [y/N] ")
    )
    if consent is None:
        raise CommandError(
            "nobody can be asked here; look at the files, and add --yes if you trust who made them"
        )
    if not consent:
        print("Nothing is trusted that was not before.")
        return EXIT_FAILED
    if missing:
        service.trust.add(name, missing)
    if options.json:
        documents = [
            {"name": p.name, "key": p.key, "sha256": p.digest, "effect": p.effect}
            for p in parts
        ]
        print_json(
            [
                d | {"added": part in missing}
                for d, part in zip(documents, parts, strict=True)
            ]
        )
    elif missing:
        for variant in versions:
            if variant.format.code is Code.MODULES and not entry.manifest.inputs:
                way = (
                    f"pocketserve init {shlex.quote(options.model)} --shape 1,3,224,224"
                )
                print_text(
                    f"Its model.toml has no [[inputs]], and a module does not say what it takes. Next: {way}"
                )
        # A command is one line, so that it can be copied.
        print(
            f"Trusted. `pocketserve trust --revoke {printable(shlex.quote(options.model))}` takes it back."
        )
    return EXIT_DONE


def _is_left(service: Service, parts: Sequence[CodePart]) -> bool:
    """Return whether the chosen version itself is left to trust: it has no code, or all of it is trusted already.

    Its format is data, but its framework may let it act, which only loading it shows.
    """
    consents = service.trust.consents()
    return all(
        part.key in consents and consents[part.key].digest == part.digest
        for part in parts
    )


def _print_parts(
    name: str, parts: Sequence[CodePart], missing: Sequence[CodePart]
) -> None:
    if not parts:
        print_text(f"{printable(name)} holds no code: there is nothing to trust.")
        return
    for part in parts:
        state = "asked" if part in missing else "trusted"
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
        print_text("No code is trusted but that of the embedded models.")
    else:
        for key, consent in consents.items():
            day = time.strftime("%Y-%m-%d", time.localtime(consent.given))
            _print_record(
                f"{consent.model}: {day}, {consent.digest[:SHOWN_DIGITS]}", key
            )
    return EXIT_DONE


def _print_record(title: str, text: str) -> None:
    """Print a title and a text below it: a phone's terminal has no room for a table."""
    print_text(printable(title), indent=INDENT)
    print_indented(printable(text))


def _revoke(store: TrustStore, options: argparse.Namespace) -> int:
    """Revoke the consent to a model by its name, or to what lies at or below a path."""
    from pocketserve.repository.files import key_of

    if not options.model:
        options.parser.error("name the model to revoke")
    consents = store.consents()
    keys = [key for key, consent in consents.items() if consent.model == options.model]
    if "/" in options.model or (not keys and is_model_path(options.model)):
        path = key_of(Path(options.model))
        keys = [
            key
            for key in consents
            if key == path or key.startswith((f"{path}/", f"{path}#"))
        ]
    if not keys:
        raise CommandError(
            f"nothing of {options.model!r} is trusted; `pocketserve trust --list` shows what is"
        )
    store.remove(keys)
    if options.json:
        print_json(keys)
    else:
        print_text("No longer trusted:")
        for key in keys:
            print_indented(printable(key))
    return EXIT_DONE
