"""``pocketserve add``: adds a model to the models folder."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
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
    from pocketserve.cli.folder.sources import AddRequest, FetchedModel, FetchModel
    from pocketserve.engine.lifecycle.loaded_model import LoadedModel
    from pocketserve.repository.manifest_edit import Document
    from pocketserve.repository.scan import ModelEntry
    from pocketserve.service import Service
    from pocketserve_wire import ApiError


MAX_ZEROS = 16  # numbers of an example


class TriedModel(NamedTuple):
    """The result of loading a model before adding it."""

    facts: str  # its size, versions and task
    question: str  # arguments of a first request; empty if none is possible yet
    remarks: list[str]  # sentences on versions that can't be served


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "add",
        help="add a model to the models folder: a file, a folder, an address, "
        "hf:ORG/REPO",
        description="Copies or downloads a model, tries it in quarantine, and puts it "
        "into the models folder, where a running server serves it at once. "
        "The same command resumes an interrupted download.",
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a file, folder or zip; https://…; hf:ORG/REPO[/FILE][@REVISION]",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="the model's name [after its source]"
    )
    parser.add_argument(
        "--sha256", type=_sha256, metavar="HEX", help="the file's expected hash"
    )
    add_folder_option(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Fetch, try and publish a model."""
    from pocketserve.cli.folder.sources import AddRequest, SeveralModelsError

    folder = choose_folder(options.models_dir, make=True)
    source, fetch = _resolve_source(options.source)
    request = AddRequest(source, folder, options.name, options.sha256)
    if request.name is not None:
        check_new_name(folder, request.name, GIVE_NAME)
    try:
        name, result = _add(request, fetch, options)
    except SeveralModelsError as error:
        sentence = printable(str(error))
        print(f"pocketserve: {sentence}", *error.lines, sep="\n", file=sys.stderr)
        return EXIT_FAILED
    print_text(printable(f"{name} is in {folder}: {result.facts}."))
    for remark in result.remarks:
        print_text(printable(remark), indent="  ")
    # Not wrapped, so that the commands can be copied.
    if not is_served(folder):
        path = shlex.quote(str(options.models_dir or folder))
        print(printable(f"Serve it: pocketserve serve {path}"))
    if result.question:
        command = f"pocketserve predict {shlex.quote(name)} {result.question}"
        print(printable(f"Ask it: {command}"))
    return EXIT_DONE


def _add(
    request: AddRequest, fetch: FetchModel, options: argparse.Namespace
) -> tuple[str, TriedModel]:
    """Fetch, try and publish a model; return its name and the result of the trial."""
    from pocketserve.cli.folder.sources import hash_key

    progress = Progress(lines=True)
    with staging(request.folder, hash_key(request.source)) as stage:
        try:
            model = fetch(request, stage, progress)
            progress.end()
            _note_provenance(stage, model)
            with quiet_frameworks(options):
                result = _try(stage, model.name, request.folder, progress)
            stage.publish(model.name, request.folder)
        except KeyboardInterrupt:
            progress.end()
            if stage.keep:
                print(
                    "pocketserve: the partial download is kept; "
                    "run the same command again to resume it",
                    file=sys.stderr,
                )
            raise
        finally:
            progress.end()
    return model.name, result


def _resolve_source(source: str) -> tuple[str, FetchModel]:
    """Resolve a source to its canonical name and fetcher."""
    from pocketserve.cli.folder.sources import take_address, take_path

    is_address = re.match(r"[a-z][a-z0-9+.-]*://", source, re.IGNORECASE) is not None
    if not is_address and not source.startswith("hf:"):
        return source, take_path
    # Late: files need no network.
    from pocketserve.cli.folder.hub import source_of_page, take_hub

    if not is_address:
        return source, take_hub
    page = source_of_page(source)
    if page is None:
        return source, take_address
    return page, take_hub


def _sha256(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise argparse.ArgumentTypeError("must be 64 hexadecimal digits")
    return text.lower()


def _note_provenance(stage: Stage, model: FetchedModel) -> None:
    """Record a staged model's origin in its manifest.

    Raises:
        CommandError: it is not a model.
    """
    from pocketserve.repository.manifest_edit import declare_versions, edit_manifest
    from pocketserve.repository.toml_table import ManifestError

    entry = _staged_entry(stage, model)
    today = datetime.datetime.now(datetime.UTC).date()
    provenance = {**model.provenance, "date": today.isoformat()}

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


def _staged_entry(stage: Stage, model: FetchedModel) -> ModelEntry:
    from pocketserve.repository.scan import Models

    entry = Models(stage.models).get(model.name)
    if entry is None or not entry.versions:
        problem = None
        if entry is not None:
            problem = entry.problem
        source = model.provenance["source"]
        raise CommandError(f"{source} is not added: {problem or 'it holds no model'}")
    return entry


def _try(stage: Stage, name: str, folder: Path, progress: Progress) -> TriedModel:
    """Load every version as a server would, in quarantine first.

    Raises:
        CommandError: no version can be served, even with a framework or consent.
    """
    service, _, _ = open_local(str(stage.models / name), None)
    try:
        entry = service.entry(name)
        results = {}
        for version in entry.versions:
            title = f"trying {name}"
            if len(entry.versions) > 1:
                title += f" {version}"
            with progress.waiting(title):
                results[version] = _load(service, name, version, folder)
    finally:
        service.close()
    default = results[entry.default_version]
    if not any(result.can_be_served for result in results.values()):
        raise CommandError(
            f"{name} is not added, since it cannot be served: {default.fault}"
        )
    best = default
    for result in results.values():
        if best.fault and not result.fault:
            best = result
    facts = _facts(entry, best.task)
    return TriedModel(facts, best.question, _remarks(name, results, best))


def _facts(entry: ModelEntry, task: str) -> str:
    """Return a model's size, versions and task."""
    size = 0
    for path in entry.folder.rglob("*"):
        if path.is_file():
            size += path.stat().st_size
    facts = [human_bytes(size), *entry.versions]
    if task:
        facts.append(task)
    return ", ".join(facts)


def _remarks(name: str, results: Mapping[str, _Result], best: _Result) -> list[str]:
    """Return sentences on faults and assumed settings."""
    remarks = []
    for version, result in results.items():
        if result.fault:
            remarks.append(f"{version}: {result.fault}")
    if best.advice:
        remarks.append(f"{best.advice[:1].upper()}{best.advice[1:]}")
    if best.assumed:
        command = f"pocketserve init {shlex.quote(name)} --try PHOTO"
        remarks.append(
            f"Assumed: {', '.join(best.assumed)}. No file of the model states it; "
            f"to check: {command}"
        )
    return remarks


class _Result(NamedTuple):
    """The result of loading one version."""

    fault: str = ""
    is_mendable: bool = False  # by a framework or the owner's consent
    task: str = ""
    question: str = ""
    advice: str = ""  # how to declare the task of a model without one
    assumed: tuple[str, ...] = ()  # settings that no file of the model states

    @property
    def can_be_served(self) -> bool:
        """Return whether it can be served now or after mending."""
        return self.is_mendable or not self.fault


def _load(service: Service, name: str, version: str, folder: Path) -> _Result:
    from pocketserve_wire import ApiError

    entry = service.entry(name)
    if service.trust.known_reason(entry, entry.versions[version]) is not None:
        command = f"pocketserve trust {shlex.quote(str(folder / name))}"
        return _Result(
            f"it contains code, which needs your consent: {command}", is_mendable=True
        )
    try:
        with service.running(name, version) as (_, handle):
            return _loaded(handle.model)
    except ApiError as error:
        start = f"failed to load {name!r} version {version!r}: "
        reason = error.message.removeprefix(start)
        # Commands must name the model's final path, not the temporary one.
        reason = reason.replace(str(service.config.models_dir), str(folder))
        return _failed(error, reason.partition("; `pocketserve inspect --release")[0])


def _loaded(model: LoadedModel) -> _Result:
    task = model.task
    return _Result(
        task=task.name,
        question=_example(model),
        advice=getattr(task, "advice", "") or getattr(task, "problem", ""),
        assumed=model.assumed,
    )


def _failed(error: ApiError, reason: str) -> _Result:
    from pocketserve_wire import ErrorCode

    needs_consent = "`pocketserve trust " in reason
    needs_framework = error.code is ErrorCode.RUNTIME_MISSING
    return _Result(reason, is_mendable=needs_consent or needs_framework)


def _example(model: LoadedModel) -> str:
    """Return an example input: a few zeros, or a file name.

    The contents of a file of numbers follow as a comment.
    """
    from pocketserve.api.describe import example_file

    file = example_file(model)
    specs = model.inputs.specs
    if file == "text.txt":
        return "'some words'"
    if file not in ("row.json", "input.json") or not specs:
        return file
    sizes = [max(1, size) for size in specs[0].shape]
    if len(specs) == 1 and math.prod(sizes) <= MAX_ZEROS:
        return shlex.quote(json.dumps(_zeros(sizes)))
    tensors = []
    for spec in specs[:MAX_ZEROS]:
        shape = ", ".join("any" if size < 0 else str(size) for size in spec.shape)
        tensors.append(f"{spec.name} {spec.datatype} [{shape}]")
    return f"{file}  # {', '.join(tensors)}"


def _zeros(sizes: Sequence[int]) -> Any:
    zeros: Any = 0
    for size in reversed(sizes):
        zeros = [zeros] * size
    return zeros
