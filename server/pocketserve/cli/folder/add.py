"""``pocketserve add``: brings a model into the models folder, and tries it before it appears there."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pocketserve.cli.folder.models_folder import (
    GIVE_NAME,
    check_new_name,
    choose_folder,
    is_served,
    staging,
)
from pocketserve.terminal.errors import EXIT_DONE, EXIT_FAILED, CommandError
from pocketserve.terminal.local import open_local, quiet_frameworks
from pocketserve.terminal.options import add_folder_option
from pocketserve.terminal.output import human_bytes, print_text, printable
from pocketserve.terminal.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from pocketserve.cli.folder.models_folder import Stage
    from pocketserve.cli.folder.sources import Obtained, Wish
    from pocketserve.engine.lifecycle.loaded_model import LoadedModel
    from pocketserve.repository.manifest_edit import Document
    from pocketserve.service import Service


MAX_ZEROS = 16  # numbers of an example


class TriedModel(NamedTuple):
    """The result of loading a model that is to be added."""

    facts: str  # its size, versions and task
    question: str  # words of the first request behind the model's name; empty where it cannot be asked yet
    remarks: list[str]  # sentences on versions that cannot be served


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "add",
        help="bring a model into the models folder: a file, a folder, an address, hf:ORG/REPO",
        description="Copies or downloads a model, tries it in quarantine, and puts it into the models folder, where a "
        "running server serves it at once. What was cut goes on when the same command is given again.",
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a file, folder or zip; https://…; hf:ORG/REPO[/FILE][@REVISION]",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="what to call the model [after its source]"
    )
    parser.add_argument(
        "--sha256", type=_sha256, metavar="HEX", help="what the file must hash to"
    )
    add_folder_option(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Obtain the model, try it, publish it, and print how it is asked."""
    from pocketserve.cli.folder.sources import SeveralModels, Wish, hash_key

    folder = choose_folder(options.models_dir, make=True)
    source, obtain = _road_to(options.source)
    wish = Wish(source, folder, options.name, options.sha256)
    if wish.name is not None:
        check_new_name(folder, wish.name, GIVE_NAME)
    progress = Progress(lines=True)
    with staging(folder, hash_key(source)) as stage:
        try:
            model = obtain(wish, stage, progress)
            progress.end()
            _note_provenance(stage, model)
            with quiet_frameworks(options):
                result = _try(stage, model.name, folder, progress)
            stage.publish(model.name, folder)
        except SeveralModels as error:
            progress.end()
            print(
                f"pocketserve: {printable(str(error))}",
                *error.lines,
                sep="\n",
                file=sys.stderr,
            )
            return EXIT_FAILED
        except KeyboardInterrupt:
            progress.end()
            if stage.keep:
                print(
                    "pocketserve: what was fetched is kept, and the same command goes on with it",
                    file=sys.stderr,
                )
            raise
        finally:
            progress.end()
    print_text(printable(f"{model.name} is in {folder}: {result.facts}."))
    for remark in result.remarks:
        print_text(printable(remark), indent="  ")
    if not is_served(folder):
        print(
            printable(
                f"Serve it: pocketserve serve {shlex.quote(str(options.models_dir or folder))}"
            )
        )
    if (
        result.question
    ):  # a command is one line, whatever the terminal's width, so that it can be copied
        print(
            printable(
                f"Ask it: pocketserve predict {shlex.quote(model.name)} {result.question}"
            )
        )
    return EXIT_DONE


def _road_to(source: str) -> tuple[str, Callable[[Wish, Stage, Progress], Obtained]]:
    """Return what a source is called, and what obtains it; a page of the hub is a source of the hub."""
    from pocketserve.cli.folder.sources import take_address, take_path

    is_address = re.match(r"[a-z][a-z0-9+.-]*://", source, re.IGNORECASE) is not None
    if not is_address and not source.startswith("hf:"):
        return source, take_path
    from pocketserve.cli.folder.hub import (
        source_of_page,
        take_hub,
    )  # late: files need no network

    page = source_of_page(source) if is_address else source
    return (source, take_address) if page is None else (page, take_hub)


def _sha256(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise argparse.ArgumentTypeError("must be 64 hexadecimal digits")
    return text.lower()


def _note_provenance(stage: Stage, model: Obtained) -> None:
    """Write into the manifest of a staged model where it is from; CommandError where it is no model."""
    from pocketserve.repository.manifest_edit import declare_versions, edit_manifest
    from pocketserve.repository.scan import Models
    from pocketserve.repository.toml_table import ManifestError

    entry = Models(stage.models).get(model.name)
    if entry is None or not entry.versions:
        problem = entry.problem if entry is not None else None
        raise CommandError(
            f"{model.provenance['source']} is not added: {problem or 'it holds no model'}"
        )
    provenance = {
        **model.provenance,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }

    def change(document: Document) -> None:
        if model.license and "license" not in document:
            document["license"] = model.license
        declare_versions(document, entry)
        for name in entry.versions:
            document["versions"][name]["provenance"] = dict(provenance)

    try:
        edit_manifest(stage.models / model.name, change)
    except ManifestError as error:
        raise CommandError(str(error)) from None


def _try(stage: Stage, name: str, folder: Path, progress: Progress) -> TriedModel:
    """Load every version as a server would, in quarantine first.

    Raises:
        CommandError: none of them can be served, and neither a framework nor the owner's consent would change that.
    """
    service, _, _ = open_local(str(stage.models / name), None)
    try:
        entry = service.entry(name)
        results = {}
        for version in entry.versions:
            with progress.waiting(
                f"trying {name}" + (f" {version}" if len(entry.versions) > 1 else "")
            ):
                results[version] = _load(service, name, version, folder)
        best = next((result for result in results.values() if not result.fault), None)
        best = (
            results[entry.default_version]
            if not results[entry.default_version].fault
            else best
        )
        if best is None and not any(result.is_mendable for result in results.values()):
            fault = results[entry.default_version].fault
            raise CommandError(
                f"{name} is not added, since it cannot be served: {fault}"
            )
        size = sum(
            path.stat().st_size for path in entry.folder.rglob("*") if path.is_file()
        )
        facts = ", ".join(
            filter(None, (human_bytes(size), *entry.versions, best and best.task))
        )
        remarks = [
            f"{version}: {result.fault}"
            for version, result in results.items()
            if result.fault
        ]
        if best is not None and best.advice:
            remarks.append(f"{best.advice[:1].upper()}{best.advice[1:]}")
        if best is not None and best.assumed:
            way = f"to check: pocketserve init {shlex.quote(name)} --try PHOTO"
            remarks.append(
                f"Assumed: {', '.join(best.assumed)}. No file of the model states it; {way}"
            )
        return TriedModel(facts, best.question if best is not None else "", remarks)
    finally:
        service.close()


class _Result(NamedTuple):
    """The result of loading one version."""

    fault: str = ""
    is_mendable: bool = False  # by a framework or the owner's consent
    task: str = ""
    question: str = ""
    advice: str = ""  # how a model without a task gets one
    assumed: tuple[str, ...] = ()  # settings that no file of the model states


def _load(service: Service, name: str, version: str, folder: Path) -> _Result:
    from pocketserve_wire import ApiError, ErrorCode

    entry = service.entry(name)
    if service.trust.known_reason(entry, entry.versions[version]) is not None:
        way = f"pocketserve trust {shlex.quote(str(folder / name))}"
        return _Result(f"it holds code, which runs after: {way}", is_mendable=True)
    try:
        with service.running(name, version) as (_, handle):
            task = handle.model.task
            advice = getattr(task, "advice", "") or getattr(task, "problem", "")
            return _Result(
                "",
                False,
                task.name,
                _example(handle.model),
                advice,
                handle.model.assumed,
            )
    except ApiError as error:
        reason = error.message.removeprefix(
            f"failed to load {name!r} version {version!r}: "
        )
        reason = reason.partition("; `pocketserve inspect --release")[0]
        # The command in it is for the place that the model will have; the stage is gone by then.
        reason = reason.replace(str(service.config.models_dir), str(folder))
        needs_consent = "`pocketserve trust " in reason
        return _Result(reason, needs_consent or error.code is ErrorCode.RUNTIME_MISSING)


def _example(model: LoadedModel) -> str:
    """Return words that a model can be asked with: zeros where it takes few numbers, else how a file might be called.

    What a file of numbers holds follows as a comment.
    """
    from pocketserve.api.describe import example_file

    file, specs = example_file(model), model.inputs.specs
    if file == "text.txt":
        return "'some words'"
    if file not in ("row.json", "input.json") or not specs:
        return file
    sizes = [max(1, size) for size in specs[0].shape]
    if len(specs) == 1 and math.prod(sizes) <= MAX_ZEROS:
        zeros: Any = 0
        for size in reversed(sizes):
            zeros = [zeros] * size
        return shlex.quote(json.dumps(zeros))
    shapes = [
        f"[{', '.join('any' if size < 0 else str(size) for size in spec.shape)}]"
        for spec in specs
    ]
    tensors = [
        f"{spec.name} {spec.datatype} {shape}"
        for spec, shape in zip(specs, shapes, strict=True)
    ]
    return f"{file}  # {', '.join(tensors[:MAX_ZEROS])}"
