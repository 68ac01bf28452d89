"""Convert a model: choose the way, prepare samples, run the tools, check the result, publish it."""

from __future__ import annotations

import dataclasses
import datetime
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve import __version__
from pocketserve.messages import plural
from pocketserve.repository.files import content_digest, file_bytes
from pocketserve.repository.scan import ModelEntry, VersionEntry, scan
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.model_format import Code, ModelFormat
from pocketserve.runtimes.registry import format_named, missing_framework
from pocketserve.state.folder_lock import WorkFolder, locked, sweep
from pocketserve.trust.store import TrustStore
from pocketserve_lab.compare.samples import SampleError, sample_files
from pocketserve_lab.convert import verify
from pocketserve_lab.convert.converter import (
    KINDS,
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
    SourceTensor,
)
from pocketserve_lab.convert.descriptions import carry_description
from pocketserve_lab.convert.environments import (
    ENVIRONMENTS,
    Environment,
    Note,
    Tell,
    check_possible,
    ensure,
    environments_folder,
    python_of,
)
from pocketserve_lab.convert.plan import (
    SOURCE_ORDER,
    TITLES,
    Plan,
    Step,
    environment_of,
    milder_mode,
    plans_for,
)
from pocketserve_lab.convert.process import (
    Job,
    LimitError,
    ProcessLimits,
    end_abandoned,
    run_job,
)
from pocketserve_lab.convert.publish import (
    NewVersion,
    check_writable,
    choose_name,
    publish,
    recover,
)
from pocketserve_lab.convert.registry import converters
from pocketserve_lab.convert.sample_run import load_arrays
from pocketserve_lab.convert.samples import FOLDER
from pocketserve_lab.convert.staging import stage

WORK_PREFIX = "convert-"
MAX_ALTERNATIVES = 2
"""Other ways that are tried after the best one has failed, where that needs no further environment."""

MAX_REMAINDER = 0.95
"""Of the size: a model that loses less is small already, or its weights are."""

MAX_REASONS = 3
"""Of samples that cannot be used; more would only hide what comes after them."""

QUANTIZED_WORDS = frozenset(
    (
        "int4",
        "int8",
        "uint8",
        "q4",
        "q8",
        "fp16",
        "float16",
        "half",
        "dynamic",
        "quant",
        "quantized",
    )
)
"""What names of versions and files have in them whose weights are no longer those of the training."""


@dataclass(frozen=True)
class ConversionSettings:
    """The user's wishes for a conversion, and where things lie.

    Attributes:
        models_dir: of the model, as a server would serve it.
        version: to convert from; None takes the one nearest to the training that has a way.
        samples: a file or folder; None takes the model's own folder ``samples``, if it has one.
        name: of the new version; None names it after its kind.
        options: of the tools.
    """

    models_dir: Path
    state_dir: Path
    quantize: str = "none"
    version: str | None = None
    samples: Path | None = None
    name: str | None = None
    limits: ProcessLimits = ProcessLimits()
    options: Mapping[str, Any] = field(default_factory=dict)


class Conversion(NamedTuple):
    """A finished conversion.

    Attributes:
        version: the new version's name; empty for a kind that is not served here.
        source: the version that it was made from.
        tools: with their versions, in the order of their runs.
        agreement: with the original; None for a kind that cannot be run here.
        random: nobody gave samples, so made-up input was compared.
        notes: sentences for the user.
    """

    kind: str
    version: str
    path: Path
    source: str
    source_bytes: int
    result_bytes: int
    tools: tuple[str, ...]
    agreement: verify.Agreement | None
    random: bool
    notes: tuple[str, ...]


class Reference(NamedTuple):
    """The original's answers: what its process told, and the files that it wrote."""

    facts: Mapping[str, Any]
    inputs: Path
    outputs: Path


class _Result(NamedTuple):
    """A file that the tools of a plan have written, before it is checked and published."""

    source: VersionEntry
    plan: Plan
    new: NewVersion
    reference: Reference
    output: Path
    outcomes: Sequence[ConversionOutcome]

    @property
    def kind(self) -> str:
        """Return its kind, of ``KINDS``."""
        return self.plan[-1].converter.kind


class ModelConverter:
    """Converts versions of one model, into one kind after the other. A work folder holds all that is not published.

    Args:
        tell: shows the progress.
        note: takes a sentence for the user that should be seen at once, such as what an environment takes.
        tools: the converters to choose from.
    """

    def __init__(
        self,
        entry: ModelEntry,
        settings: ConversionSettings,
        tell: Tell,
        note: Note,
        tools: Sequence[Converter] | None = None,
    ) -> None:
        self._entry, self._settings, self._tell, self._note = (
            entry,
            settings,
            tell,
            note,
        )
        self._tools = converters() if tools is None else tools
        self._references: dict[str, Reference] = {}
        self._middles: dict[
            tuple[str, Plan], tuple[ConversionRequest, ConversionOutcome]
        ] = {}
        if recover(entry):
            self._entry = scan(settings.models_dir)[entry.name]
        sweep(settings.state_dir, WORK_PREFIX)
        end_abandoned(settings.state_dir, WORK_PREFIX)
        with locked(settings.state_dir):
            self._work = WorkFolder(settings.state_dir, WORK_PREFIX)
        self._runs = 0

    def close(self) -> None:
        """Remove what is left of the work."""
        self._work.remove()

    def convert(self, kind: str, quantize: str | None = None) -> Conversion:
        """Make a new version of a kind and publish it.

        Args:
            quantize: the mode, from now on; None keeps the one of the settings.

        Raises:
            ConversionError: it cannot be made, or is not what the original is; nothing is left behind.
        """
        if quantize is not None:
            self._settings = replace(self._settings, quantize=quantize)
        source, plans = self._plans(kind)
        _check_runs_here(kind)
        trusted = _trusted_code(self._entry, source, self._settings.state_dir)
        new = choose_name(
            self._entry, source.name, kind, self._settings.quantize, self._settings.name
        )
        self._check_samples(source, plans[0])
        check_writable(self._entry)
        check_possible(
            _environments(plans[0]), environments_folder(self._settings.state_dir)
        )
        self._reference(
            source, self._python(plans[0][0].converter)
        )  # an original that fails does so for all ways
        ready = [
            plan
            for plan in plans[1:]
            if all(self._is_ready(step.converter) for step in plan)
        ]
        faults: list[ConversionError] = []
        for plan in (plans[0], *ready[:MAX_ALTERNATIVES]):
            if faults:
                self._note(f"that failed ({faults[-1].message}); trying {_names(plan)}")
            try:
                return self._convert(source, plan, new, trusted)
            except LimitError:
                raise
            except ConversionError as error:
                faults.append(error)
        raise faults[0]  # the best way's

    def _plans(self, kind: str) -> tuple[VersionEntry, list[Plan]]:
        """Return the version to begin with, and the ways from it; of equal ones, the nearest to the training.

        A version that is quantised already is taken only where no other one has a way, and one that neither this
        installation nor the converter's environment can run, where there is nothing else at all.
        """
        entry = self._entry
        if self._settings.version is not None:
            version = entry.versions[self._settings.version]
            try:
                return version, self._ways(version, kind)
            except ConversionError as error:
                raise ConversionError(
                    error.message, nearest=error.nearest or self._other_version(kind)
                ) from None
        choices: list[tuple[VersionEntry, list[Plan]]] = []
        refusals: list[ConversionError] = []
        for version in _originals(entry):
            try:
                choices.append((version, self._ways(version, kind)))
            except ConversionError as error:
                refusals.append(error)
        if not choices:
            raise (
                refusals[0]
                if refusals
                else ConversionError("the model has no version that can be read")
            )
        return min(
            choices,
            key=lambda choice: (
                *self._flaws(choice[0], choice[1][0]),
                *self._cost(choice[1][0]),
            ),
        )

    def _ways(self, version: VersionEntry, kind: str) -> list[Plan]:
        """Return the ways from a version to a kind, the best first; what cannot be had here comes last.

        So does a way whose first environment cannot run the original, where this installation cannot either.
        """
        plans = plans_for(
            version.format.name, kind, self._settings.quantize, self._tools
        )
        return sorted(
            plans,
            key=lambda plan: (self._is_out_of_reach(plan), _is_mute(version, plan)),
        )

    def _other_version(self, kind: str) -> str:
        """Return the option of a version that has a way to a kind; empty where there is none."""
        for version in _originals(self._entry):
            with suppress(ConversionError):
                self._ways(version, kind)
                return f"--version {version.name}"
        return ""

    def _flaws(self, version: VersionEntry, plan: Plan) -> tuple[bool, bool]:
        """Return whether nothing at hand could run a version for its answers, and whether it is quantised already."""
        return _is_mute(version, plan), _is_quantized(self._entry, version)

    def _cost(self, plan: Plan) -> tuple[bool, bool, int]:
        """Return what a way costs: more than there is, gigabytes for an environment, then its steps."""
        return (
            self._is_out_of_reach(plan),
            not all(self._is_ready(step.converter) for step in plan),
            len(plan),
        )

    def _is_out_of_reach(self, plan: Plan) -> bool:
        """Return whether the environments that a way still needs cannot be made here."""
        try:
            check_possible(
                _environments(plan), environments_folder(self._settings.state_dir)
            )
        except ConversionError:
            return True
        return False

    def _milder(self, source: VersionEntry, kind: str) -> str:
        return milder_mode(
            source.format.name, kind, self._settings.quantize, self._tools
        )

    def _check_samples(self, source: VersionEntry, plan: Plan) -> None:
        for step in plan:
            if step.quantize in step.converter.needs_samples and self._data() is None:
                own = (
                    self._entry.folder.name == self._entry.name
                )  # else the folder has other models, too
                place = (
                    f", or put some into {self._entry.folder / FOLDER}" if own else ""
                )
                raise ConversionError(
                    f"--quantize {step.quantize} measures the ranges of numbers on samples, and there are none; give "
                    f"--samples FOLDER{place}",
                    nearest=self._milder(source, plan[-1].converter.kind),
                )

    def _data(self) -> Path | None:
        """Return the file or folder of samples; None where there is none.

        Raises:
            ConversionError: it is not there, or empty.
        """
        own = self._entry.folder / FOLDER
        data = self._settings.samples
        if (
            data is None
            and own.is_dir()
            and self._entry.folder.name == self._entry.name
        ):
            data = own
        if data is not None:
            try:
                sample_files(data)
            except SampleError as error:
                raise ConversionError(str(error)) from None
        return data

    def _is_ready(self, converter: Converter) -> bool:
        name = environment_of(converter)
        folder = environments_folder(self._settings.state_dir)
        return name is None or python_of(ENVIRONMENTS[name], folder) is not None

    def _python(self, converter: Converter) -> Path:
        """Return the Python that runs a converter; its environment is made where it is missing."""
        name = environment_of(converter)
        if name is None:
            return Path(sys.executable)
        folder = environments_folder(self._settings.state_dir)
        return ensure(ENVIRONMENTS[name], folder, self._tell, self._note)

    def _folder(self) -> Path:
        """Return a new folder for one process."""
        self._runs += 1
        folder = self._work.path / str(self._runs)
        folder.mkdir()
        return folder

    def _convert(
        self, source: VersionEntry, plan: Plan, new: NewVersion, trusted: frozenset[str]
    ) -> Conversion:
        pythons = [self._python(step.converter) for step in plan]
        reference = self._reference(source, pythons[0])
        request = _first_request(source, reference, self._settings.options, trusted)
        outcomes = []
        for number, python in enumerate(pythons, 1):
            name = Path(new.file).name if number == len(plan) else None
            request, outcome = self._step(source, plan[:number], python, request, name)
            outcomes.append(outcome)
        carry_description(source.path, source.format.name, request.output, request.kind)
        result = _Result(source, plan, new, reference, request.output, outcomes)
        conversion = _conversion(result)
        if KINDS[conversion.kind].served:
            facts, agreement, doubts = self._verify(result, pythons[-1])
            notes = (*conversion.notes, *_renamed(reference.facts, facts), *doubts)
            conversion = conversion._replace(agreement=agreement, notes=notes)
        elif answers := outcomes[-1].answers:
            agreement, doubts = self._compare_answers(reference, Path(answers))
            notes = (*conversion.notes, *doubts)
            conversion = conversion._replace(agreement=agreement, notes=notes)
        return self._publish(result, conversion)

    def _step(
        self,
        source: VersionEntry,
        way: Plan,
        python: Path,
        before: ConversionRequest,
        name: str | None,
    ) -> tuple[ConversionRequest, ConversionOutcome]:
        """Run the last step of a way; return its request and its outcome.

        Args:
            before: the request of the step before, or the first one.
            name: of the result's file; None for one between two steps, which is made once for all kinds and modes.
        """
        if name is None and (source.name, way) in self._middles:
            return self._middles[source.name, way]
        file = f"step{KINDS[way[-1].converter.kind].suffix}" if name is None else name
        request = _next_request(before, way[-1], self._folder() / file)
        outcome = self._run_tool(way[-1], python, request)
        _check_written(request.output, way[-1].converter)
        _check_smaller(request, outcome, source)
        if name is None:
            self._middles[source.name, way] = request, outcome
        return request, outcome

    def _compare_answers(
        self, reference: Reference, answers: Path
    ) -> tuple[verify.Agreement, list[str]]:
        """Compare what a tool's own run answered with the original; return sentences on what is left open, too.

        Raises:
            ConversionError: they differ by more than is accepted.
        """
        facts, outputs = reference.facts, load_arrays(reference.outputs)
        is_random, count = bool(facts["random"]), int(facts["count"])
        agreement = verify.compare_outputs(
            outputs, load_arrays(answers), facts["task"], count, random=is_random
        )
        verify.check_agreement(agreement, self._settings.quantize)
        return agreement, verify.doubts(agreement, self._settings.quantize)

    def _run_tool(
        self, step: Step, python: Path, request: ConversionRequest
    ) -> ConversionOutcome:
        title = f"{step.converter.name}: {step.format} to {step.converter.kind}"
        name = step.converter.module
        module = name if "." in name else f"pocketserve_lab.convert.tools.{name}"
        document = {"module": module, "request": request.to_json()}
        job = Job(
            step.converter.name,
            python,
            "pocketserve_lab.convert.tool_process",
            document,
            request.output.parent,
        )
        result = run_job(job, self._settings.limits, lambda: self._tell(title, 0.0))
        return ConversionOutcome.from_plain(result["outcome"])

    def _reference(self, source: VersionEntry, python: Path) -> Reference:
        """Return the answers of the version to convert, from its own process; the same for all kinds."""
        if source.name in self._references:
            return self._references[source.name]
        folder = self._folder()
        document = {**self._place_of(source), **self._sample_request()}
        facts = self._run_samples(
            f"version {source.name}", source.format, python, document, folder
        )
        reference = Reference(facts, folder / "inputs.npz", folder / "outputs.npz")
        for number, reason in enumerate(facts["skipped"][:MAX_REASONS], 1):
            self._note(
                f"left out of the samples: {reason}"
                + (_more(facts["skipped"]) if number == MAX_REASONS else "")
            )
        return self._references.setdefault(source.name, reference)

    def _place_of(self, source: VersionEntry) -> dict[str, str]:
        """Return where a process finds the version to convert."""
        settings = self._settings
        folders = {
            "models_dir": str(settings.models_dir.absolute()),
            "state_dir": str(settings.state_dir.absolute()),
        }
        return {**folders, "model": self._entry.name, "version": source.name}

    def _sample_request(self) -> dict[str, Any]:
        """Return the samples that the original is run on, as a run of samples is asked for them."""
        data = self._data()
        return {"data": str(data.absolute()) if data is not None else ""}

    def _run_samples(
        self,
        version: str,
        format: ModelFormat,
        python: Path,
        document: Mapping[str, Any],
        folder: Path,
    ) -> Mapping[str, Any]:
        missing = missing_framework(format)
        if missing is None:
            python = Path(sys.executable)
        elif python == Path(sys.executable):
            raise ConversionError(missing)
        request = {**document, "folder": str(folder)}
        job = Job(
            f"the run of {version}",
            python,
            "pocketserve_lab.convert.sample_run",
            request,
            folder,
        )
        return run_job(
            job, self._settings.limits, lambda: self._tell(f"running {version}", 0.0)
        )

    def _verify(
        self, result: _Result, python: Path
    ) -> tuple[Mapping[str, Any], verify.Agreement, list[str]]:
        """Load and run the result as a server would, and compare its answers with the original's.

        Returns:
            What its process told of it, the agreement, and sentences on what it leaves open.
        """
        reference, format = result.reference, format_named(result.kind)
        assert format is not None  # of every kind that is served
        folder = self._folder()
        staged = stage(
            self._entry,
            result.source,
            result.output,
            format,
            folder,
            self._settings.state_dir,
        )
        document = {
            "models_dir": str(staged.models_dir),
            "state_dir": str(staged.state_dir),
            "model": self._entry.name,
            "version": staged.version,
            "arrays": str(reference.inputs),
            "rows": reference.facts["rows"],
            "data": self._sample_request().get("data", ""),
            "layouts": {
                name: layout
                for outcome in result.outcomes
                for name, layout in outcome.layouts.items()
            },
        }
        try:
            facts = self._run_samples(
                f"the new {format.name} version", format, python, document, folder
            )
        except ConversionError as error:
            raise ConversionError(
                f"the result cannot be served: {error.message}", detail=error.detail
            ) from None
        _check_same_task(reference.facts, facts)
        agreement = verify.compare_outputs(
            load_arrays(reference.outputs),
            load_arrays(folder / "outputs.npz"),
            reference.facts["task"],
            int(facts["count"]),
            random=bool(reference.facts["random"]),
        )
        nearest = self._milder(result.source, format.name)
        return (
            facts,
            agreement,
            self._judge(agreement, reference, folder / "outputs.npz", nearest),
        )

    def _judge(
        self,
        agreement: verify.Agreement,
        reference: Reference,
        outputs: Path,
        nearest: str,
    ) -> list[str]:
        """Refuse a result that is not what the original is; return sentences on what is left open.

        Args:
            outputs: the result's, on the reference's inputs.
            nearest: what may work instead.
        """
        verify.check_agreement(agreement, self._settings.quantize, nearest)
        return verify.doubts(agreement, self._settings.quantize)

    def _measured(self) -> dict[str, Any]:
        """Return what else the provenance says of the result."""
        return {}

    def _publish(self, result: _Result, conversion: Conversion) -> Conversion:
        facts = result.reference.facts
        provenance: dict[str, Any] = {
            "source": conversion.source,
            "source_sha256": content_digest(result.source),
            "tools": list(conversion.tools),
            "quantize": self._settings.quantize,
            "made_by": f"pocketserve {__version__}",
            "date": datetime.date.today().isoformat(),
            "samples": 0 if conversion.random else int(facts["count"]),
        }
        if facts["samples_sha256"]:
            provenance["samples_sha256"] = facts["samples_sha256"]
        options = {
            key: value
            for outcome in result.outcomes
            for key, value in outcome.options.items()
        }
        if options:
            provenance["options"] = options
        if conversion.agreement is not None:
            provenance["difference"] = float(f"{conversion.agreement.error:.3g}")
        provenance |= self._measured()
        listed = KINDS[result.kind].served
        path = publish(
            self._entry,
            conversion.source,
            result.output,
            result.new,
            provenance,
            listed=listed,
        )
        self._entry = scan(self._settings.models_dir)[
            self._entry.name
        ]  # the next kind's name depends on this one's
        return conversion._replace(path=path)


def _originals(entry: ModelEntry) -> list[VersionEntry]:
    """Return the versions that a conversion may begin with, the nearest to the training first.

    What a conversion has made comes last.
    """
    order = {name: rank for rank, name in enumerate(SOURCE_ORDER)}
    usable = [version for version in entry.versions.values() if version.problem is None]

    def rank(version: VersionEntry) -> tuple[bool, int, bool]:
        options = entry.manifest.versions.get(version.name)
        derived = options is not None and options.is_converted
        return (
            derived,
            order.get(version.format.name, len(order)),
            version.name != entry.default_version,
        )

    return sorted(usable, key=rank)


def _is_mute(version: VersionEntry, plan: Plan) -> bool:
    """Return whether neither this installation nor the first environment of a way could run a version."""
    environment = environment_of(plan[0].converter)
    packages = ENVIRONMENTS[environment].modules if environment is not None else ()
    return missing_framework(version.format) is not None and not any(
        module.startswith(version.format.packages) for module in packages
    )


def _is_quantized(entry: ModelEntry, version: VersionEntry) -> bool:
    """Return whether a version has lost digits already, as its provenance, its name or its file's name says."""
    options = entry.manifest.versions.get(version.name)
    if options is not None and options.provenance.get("quantize", "none") != "none":
        return True
    names = f"{version.name} {version.path.name.removeprefix(entry.name)}"  # a model may be called dynamic
    return not QUANTIZED_WORDS.isdisjoint(re.split("[^a-z0-9]+", names.lower()))


def _check_runs_here(kind: str) -> None:
    """Refuse, before anything is fetched, a kind whose result would want more than packages of Python, and has not."""
    format = format_named(kind)
    if (
        format is None
        or format.missing is None
        or (missing := format.missing()) is None
    ):
        return
    raise ConversionError(
        f"the result could not be run, and so not be checked: {missing}"
    )


def _trusted_code(
    entry: ModelEntry, source: VersionEntry, state_dir: Path
) -> frozenset[str]:
    """Return the hashes of a source's code; refuse what its owner has not allowed: converting it runs it."""
    try:
        return TrustStore(state_dir).check(entry, source)
    except ModelLoadError as error:
        raise ConversionError(str(error)) from None


def _first_request(
    source: VersionEntry,
    reference: Reference,
    options: Mapping[str, Any],
    trusted: frozenset[str],
) -> ConversionRequest:
    weights = source.options.get("weights")
    arguments = source.options.get("arguments")
    return ConversionRequest(
        source=source.path,
        format=source.format.name,
        output=source.path,
        function=str(source.options.get("function", "build")),
        weights=source.path.parent / weights if isinstance(weights, str) else None,
        arguments=arguments if isinstance(arguments, dict) else {},
        inputs=_tensors(reference.facts["inputs"]),
        outputs=_tensors(reference.facts["outputs"]),
        samples=reference.inputs,
        options=options,
        trusted=tuple(trusted),
    )


def _tensors(values: Sequence[Mapping[str, Any]]) -> tuple[SourceTensor, ...]:
    return tuple(
        SourceTensor(value["name"], value["datatype"], tuple(value["shape"]))
        for value in values
    )


def _next_request(
    before: ConversionRequest, step: Step, output: Path
) -> ConversionRequest:
    """Return the request of a step: it reads what the step before it has written."""
    is_first = before.output == before.source
    return dataclasses.replace(
        before,
        source=before.source if is_first else before.output,
        title=before.title
        if is_first
        else f"the {TITLES[step.format]} file made of {before.title}",
        format=step.format,
        output=output,
        kind=step.converter.kind,
        quantize=step.quantize,
    )


def _check_written(output: Path, converter: Converter) -> None:
    """Refuse a tool that ended well without a file, or with an empty one."""
    files = (
        [output]
        if output.is_file()
        else [path for path in output.rglob("*") if path.is_file()]
    )
    if not any(file.stat().st_size for file in files):
        raise ConversionError(f"{converter.name} ended well, but wrote nothing")


def _check_smaller(
    request: ConversionRequest, outcome: ConversionOutcome, source: VersionEntry
) -> None:
    """Refuse a quantised file that is as large as what it was made of: its few weights are less than what is added.

    Code says nothing of the size of its weights.
    """
    before = outcome.float_bytes or _size(request.source)
    if request.source == source.path and not outcome.float_bytes:
        before = 0 if source.format.code is Code.MODULES else file_bytes(source)
    if (
        request.quantize == "none"
        or not before
        or _size(request.output) <= MAX_REMAINDER * before
    ):
        return
    is_there = source.format.name == request.kind
    way = (
        "use it as it is"
        if is_there
        else f"use it without --quantize {request.quantize}"
    )
    raise ConversionError(f"{request.title} would not become smaller; {way}")


def _check_same_task(original: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Refuse a result that is asked otherwise than the original, or names its answers otherwise."""
    labels = [facts["labels"] for facts in (original, result)]
    if original["task"] != result["task"]:
        fault = f"its task is {result['task']}, and the original's {original['task']}"
    elif len(labels[0]) != len(labels[1]):
        fault = f"it has {plural(len(labels[1]), 'label')}, and the original {len(labels[0])}"
    elif labels[0] != labels[1]:
        fault = "its labels are others"
    elif result["prepares_otherwise"]:
        fault = "it prepares a sample otherwise"
    else:
        return
    raise ConversionError(
        f"the result cannot be asked as the original is: {fault}; declare what the original's file says of itself "
        "(task, labels, preprocessing) in model.toml"
    )


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _conversion(result: _Result) -> Conversion:
    outcomes, kind = result.outcomes, result.kind
    layouts = (
        f"its input {n!r} is {layout} now"
        for outcome in outcomes
        for n, layout in outcome.layouts.items()
    )
    notes = (*(note for outcome in outcomes for note in outcome.notes), *layouts)
    return Conversion(
        kind=kind,
        version=result.new.name if KINDS[kind].served else "",
        path=result.output,
        source=result.source.name,
        source_bytes=file_bytes(result.source),
        result_bytes=_size(result.output),
        tools=tuple(f"{outcome.tool} {outcome.version}" for outcome in outcomes),
        agreement=None,
        random=bool(result.reference.facts["random"]),
        notes=tuple(dict.fromkeys(notes)),
    )


def _renamed(original: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """Return sentences on tensors that callers have to call otherwise: those that the manifest does not name."""
    pairs = [(key, before["name"], after["name"])
             for key in ("inputs", "outputs")
             for before, after in zip(original[key], result[key], strict=False)]  # fmt: skip
    return [
        f"its {key[:-1]} {before!r} is called {after!r} here"
        for key, before, after in pairs
        if before != after
    ]


def _environments(plan: Plan) -> list[Environment]:
    """Return the environments that a way needs, each once."""
    names = dict.fromkeys(environment_of(step.converter) for step in plan)
    return [ENVIRONMENTS[name] for name in names if name is not None]


def _names(plan: Plan) -> str:
    return " and ".join(step.converter.name for step in plan)


def _more(items: Sequence[str]) -> str:
    return f"; and {len(items) - MAX_REASONS} more" if len(items) > MAX_REASONS else ""
