"""Convert a model: plan, samples, tools, checks, publication."""

from __future__ import annotations

import dataclasses
import datetime
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
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
    INT8_OPTIONS,
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
    ConversionPlan,
    Step,
    environment_of,
    milder_mode,
    plans_for,
    plans_with_options,
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
from pocketserve_lab.convert.variants import (
    Axis,
    FrozenAxes,
    ResultShapes,
    VariantResult,
    axes_text,
    frozen_axes,
    sample_size,
    shapes_text,
)

WORK_PREFIX = "convert-"
MAX_ALTERNATIVES = 2
"""Other plans to try after the best one, if no environment is missing."""

MAX_REMAINDER = 0.95
"""Share of the size; a model that shrinks less is small already, or its weights are."""

MAX_REASONS = 3
"""Sample errors that are shown; more would hide the output after them."""

OTHER_KINDS = {"torchscript": "--to onnx", "ptl": "--to onnx", "onnx": "--to pt2"}
"""The kind to try if one freezes sizes."""

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
"""Parts of names of versions and files whose weights are quantised."""


@dataclass(frozen=True)
class ConversionSettings:
    """The user's settings of a conversion, and its folders.

    Attributes:
        models_dir: of the model, as a server would serve it.
        version: to convert from; None uses the one closest to the training that has a
            plan.
        samples: a file or folder; None uses the model's own folder ``samples``, if any.
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
        random: without samples, random input was compared.
        notes: sentences for the user.
        fixed: the shapes of inputs with sizes that are free in the original and not in
            the new version.
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
    fixed: Mapping[str, tuple[int, ...]] = {}


class Reference(NamedTuple):
    """The original's answers, and facts about it."""

    facts: Mapping[str, Any]
    inputs: Path
    outputs: Path


class Result(NamedTuple):
    """A tool's result before it is checked and published."""

    source: VersionEntry
    plan: ConversionPlan
    new: NewVersion
    reference: Reference
    output: Path
    outcomes: Sequence[ConversionOutcome]

    @property
    def kind(self) -> str:
        """Return its kind, of ``KINDS``."""
        return self.plan[-1].converter.kind


@dataclass(frozen=True)
class _Attempt:
    """Options of a run of a plan; see ``ConversionRequest``."""

    method: str = ""
    fixed: tuple[Axis, ...] = ()


class _Checked(NamedTuple):
    """A result that agrees with the original on the samples.

    Attributes:
        frozen: the axes that are not free any more.
        undeclared: those that the file declares as free.
    """

    attempt: _Attempt
    result: Result
    conversion: Conversion
    frozen: FrozenAxes
    undeclared: frozenset[Axis]


class ModelConverter:
    """Converts versions of one model, to one kind after the other.

    Everything that is not published lies in a work folder.

    Args:
        tell: shows the progress.
        note: takes a sentence that the user should see at once, such as the size of an
            environment.
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
        self._entry = entry
        self._settings = settings
        self._tell = tell
        self._note = note
        self._tools = converters() if tools is None else tools
        self._references: dict[str, Reference] = {}
        self._middles: dict[
            tuple[str, ConversionPlan, _Attempt],
            tuple[ConversionRequest, ConversionOutcome],
        ] = {}
        if recover(entry):
            self._entry = scan(settings.models_dir)[entry.name]
        sweep(settings.state_dir, WORK_PREFIX)
        end_abandoned(settings.state_dir, WORK_PREFIX)
        with locked(settings.state_dir):
            self._work = WorkFolder(settings.state_dir, WORK_PREFIX)
        self._runs = 0

    def close(self) -> None:
        """Remove the work folder."""
        self._work.remove()

    def convert(self, kind: str, quantize: str | None = None) -> Conversion:
        """Make a new version of a kind and publish it.

        Args:
            quantize: the mode, from now on; None keeps the one of the settings.

        Raises:
            ConversionError: the conversion is not possible, or the result differs from
                the original; everything is cleaned up.
        """
        if quantize is not None:
            self._settings = replace(self._settings, quantize=quantize)
        settings = self._settings
        source, plans = self._plans(kind)
        best = plans[0]
        _check_runs_here(kind)
        trusted = _trusted_code(self._entry, source, settings.state_dir)
        new = choose_name(
            self._entry, source.name, kind, settings.quantize, settings.name
        )
        self._check_samples(source, best)
        check_writable(self._entry)
        folder = environments_folder(settings.state_dir)
        check_possible(_environments(best), folder)
        # An original that cannot be run fails here, and not in each plan.
        self._reference(source, self._python(best[0].converter))
        ready = [plan for plan in plans[1:] if self._has_environments(plan)]
        errors: list[ConversionError] = []
        for plan in (best, *ready[:MAX_ALTERNATIVES]):
            if errors:
                reason = errors[-1].message
                self._note(f"that failed ({reason}); trying {_names(plan)}")
            try:
                return self._convert(source, plan, new, trusted)
            except LimitError:
                raise
            except ConversionError as error:
                errors.append(error)
        # The best plan's error counts.
        raise errors[0]

    def _plans(self, kind: str) -> tuple[VersionEntry, list[ConversionPlan]]:
        """Return the version to convert, and its plans, the best first.

        A quantised version is used only if no other one has a plan. One that neither
        this installation nor the converter's environment can run is the last resort.
        """
        if self._settings.version is not None:
            return self._plans_of_version(self._settings.version, kind)
        choices: list[tuple[VersionEntry, list[ConversionPlan]]] = []
        refusal = ConversionError("the model has no version that can be read")
        # In reverse, so that the first version's refusal is the last one kept.
        for version in reversed(_originals(self._entry)):
            try:
                choices.insert(0, (version, self._ways(version, kind)))
            except ConversionError as error:
                refusal = error
        if not choices:
            raise refusal
        return min(choices, key=lambda choice: self._rank(choice[0], choice[1][0]))

    def _plans_of_version(
        self, name: str, kind: str
    ) -> tuple[VersionEntry, list[ConversionPlan]]:
        """Return the named version and its plans.

        Raises:
            ConversionError: it has none; the text suggests another version.
        """
        version = self._entry.versions[name]
        try:
            return version, self._ways(version, kind)
        except ConversionError as error:
            nearest = error.nearest or self._other_version(kind)
            raise ConversionError(error.message, nearest=nearest) from None

    def _ways(self, version: VersionEntry, kind: str) -> list[ConversionPlan]:
        """Return the plans from a version to a kind, best first.

        Plans come last if an environment cannot be made here, or if neither this
        installation nor the first environment can run the original.
        """
        mode = self._settings.quantize
        plans = plans_for(version.format.name, kind, mode, self._tools)
        options = INT8_OPTIONS.keys() & self._settings.options.keys()
        if options:
            plans = plans_with_options(plans, kind, options)

        def rank(plan: ConversionPlan) -> tuple[bool, bool]:
            return self._is_out_of_reach(plan), _is_mute(version, plan)

        return sorted(plans, key=rank)

    def _other_version(self, kind: str) -> str:
        """Return the option of a version that has a plan.

        Empty if there is none.
        """
        for version in _originals(self._entry):
            with suppress(ConversionError):
                self._ways(version, kind)
                return f"--version {version.name}"
        return ""

    def _rank(
        self, version: VersionEntry, plan: ConversionPlan
    ) -> tuple[bool, bool, bool, bool, int]:
        """Return the sort key of a version and its best plan.

        The smallest is best. In order: whether nothing here can run the version,
        whether it is quantised already, whether the plan is out of reach, whether it
        needs a new environment of gigabytes, and its number of steps.
        """
        return (
            _is_mute(version, plan),
            _is_quantized(self._entry, version),
            self._is_out_of_reach(plan),
            not self._has_environments(plan),
            len(plan),
        )

    def _has_environments(self, plan: ConversionPlan) -> bool:
        return all(self._is_ready(step.converter) for step in plan)

    def _is_out_of_reach(self, plan: ConversionPlan) -> bool:
        """Return whether a plan's environments cannot be made here."""
        folder = environments_folder(self._settings.state_dir)
        try:
            check_possible(_environments(plan), folder)
        except ConversionError:
            return True
        return False

    def _milder(self, source: VersionEntry, kind: str) -> str:
        mode = self._settings.quantize
        return milder_mode(source.format.name, kind, mode, self._tools)

    def _check_samples(self, source: VersionEntry, plan: ConversionPlan) -> None:
        """Raise ConversionError if a step calibrates and there are no samples."""
        for step in plan:
            if step.quantize not in step.converter.needs_samples:
                continue
            if self._data() is not None:
                continue
            hint = ""
            if self._has_own_folder():
                hint = f", or put some into {self._entry.folder / FOLDER}"
            raise ConversionError(
                f"--quantize {step.quantize} measures the ranges of numbers on "
                f"samples, and there are none; give --samples FOLDER{hint}",
                nearest=self._milder(source, plan[-1].converter.kind),
            )

    def _has_own_folder(self) -> bool:
        """Return whether the model's folder has no other models."""
        return self._entry.folder.name == self._entry.name

    def _data(self) -> Path | None:
        """Return the file or folder of samples.

        None if there is none.

        Raises:
            ConversionError: it does not exist, or is empty.
        """
        data = self._settings.samples
        if data is None:
            own = self._entry.folder / FOLDER
            if not own.is_dir() or not self._has_own_folder():
                return None
            data = own
        try:
            sample_files(data)
        except SampleError as error:
            raise ConversionError(str(error)) from None
        return data

    def _is_ready(self, converter: Converter) -> bool:
        """Return whether a converter runs without an installation."""
        name = environment_of(converter)
        folder = environments_folder(self._settings.state_dir)
        return name is None or python_of(ENVIRONMENTS[name], folder) is not None

    def _python(self, converter: Converter) -> Path:
        """Return the Python that runs a converter, in its environment."""
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
        self,
        source: VersionEntry,
        plan: ConversionPlan,
        new: NewVersion,
        trusted: frozenset[str],
    ) -> Conversion:
        pythons = [self._python(step.converter) for step in plan]
        reference = self._reference(source, pythons[0])
        request = _first_request(source, reference, self._settings.options, trusted)
        make = partial(self._attempt, source, plan, new, pythons, request)
        best = make(_Attempt())
        if best.frozen:
            best = _freest(best, make)
        if best.undeclared:
            best = _declared(best, make)
        return self._publish(best.result, best.conversion)

    def _attempt(
        self,
        source: VersionEntry,
        plan: ConversionPlan,
        new: NewVersion,
        pythons: Sequence[Path],
        request: ConversionRequest,
        attempt: _Attempt,
    ) -> _Checked:
        """Run a plan, and check its result."""
        reference = self._reference(source, pythons[0])
        request = _attempted(request, attempt, reference)
        outcomes = []
        for number, python in enumerate(pythons, 1):
            name = Path(new.file).name if number == len(plan) else None
            request, outcome = self._step(
                source, plan[:number], attempt, python, request, name
            )
            outcomes.append(outcome)
        carry_description(source.path, source.format.name, request.output, request.kind)
        result = Result(source, plan, new, reference, request.output, outcomes)
        return self._check(attempt, result, _conversion(result), pythons[-1])

    def _check(
        self,
        attempt: _Attempt,
        result: Result,
        conversion: Conversion,
        python: Path,
    ) -> _Checked:
        """Compare a result with the original, and add the agreement.

        A kind that is not served here is compared if the tool ran it.
        """
        if not KINDS[conversion.kind].served:
            return self._check_by_tool(attempt, result, conversion)
        original = result.reference.facts
        facts, agreement, doubts = self._verify(result, python)
        plain, plain_notes = self._plain_agreement(result, agreement)
        frozen = self._frozen_axes(result, facts["variants"], agreement)
        shapes = ResultShapes(original, facts, _layouts(result))
        renamed = tuple(_renamed(original, facts))
        conversion = conversion._replace(notes=conversion.notes + renamed)
        conversion = _with_frozen(conversion, frozen, shapes)
        conversion = _with_agreement(conversion, plain, [*doubts, *plain_notes])
        undeclared = shapes.undeclared(frozen.all)
        return _Checked(attempt, result, conversion, frozen, undeclared)

    def _plain_agreement(
        self, result: Result, agreement: verify.Agreement
    ) -> tuple[verify.Agreement, list[str]]:
        """Return the worse agreement of the server and the plain framework.

        The file may go to another program, without the server's options.
        """
        answers = result.outcomes[-1].answers
        if not answers:
            return agreement, []
        plain = self._agreement_of(result.reference, Path(answers))
        return verify.worse_in_other_programs(agreement, plain)

    def _check_by_tool(
        self, attempt: _Attempt, result: Result, conversion: Conversion
    ) -> _Checked:
        """Compare the answers that the tool got from its own result."""
        outcome = result.outcomes[-1]
        if outcome.answers:
            agreement, doubts = self._compare_answers(
                result.reference, Path(outcome.answers)
            )
            conversion = _with_agreement(conversion, agreement, doubts)
        frozen = FrozenAxes(set(), set())
        if outcome.variant_answers:
            answers = _tool_answers(outcome)
            frozen = self._frozen_axes(result, answers, conversion.agreement)
        facts = result.reference.facts
        conversion = _with_frozen(conversion, frozen, ResultShapes(facts, facts, {}))
        undeclared = frozenset(frozen.all.difference(attempt.fixed))
        return _Checked(attempt, result, conversion, frozen, undeclared)

    def _frozen_axes(
        self,
        result: Result,
        answers: Sequence[Mapping[str, Any]],
        agreement: verify.Agreement | None,
    ) -> FrozenAxes:
        """Compare the answers to inputs of other shapes."""
        originals = result.reference.facts["variants"]
        results = []
        for original, answered in zip(originals, answers, strict=True):
            if "untested" not in answered:
                results.append(_variant_result(original, answered))
        return frozen_axes(results, self._variant_bound(agreement))

    def _variant_bound(self, agreement: verify.Agreement | None) -> float:
        """Return the accepted error of an answer to inputs of another shape."""
        return verify.variant_bound(agreement, self._settings.quantize)

    def _step(
        self,
        source: VersionEntry,
        way: ConversionPlan,
        attempt: _Attempt,
        python: Path,
        before: ConversionRequest,
        name: str | None,
    ) -> tuple[ConversionRequest, ConversionOutcome]:
        """Run the last step of a plan.

        Return its request and its outcome.

        Args:
            before: the request of the step before, or the first one.
            name: the result's file name; None for an intermediate file, which all kinds
                and modes share.
        """
        key = source.name, way, attempt
        if name is None and key in self._middles:
            return self._middles[key]
        converter = way[-1].converter
        file = f"step{KINDS[converter.kind].suffix}" if name is None else name
        request = _next_request(before, way[-1], self._folder() / file)
        outcome = self._run_tool(way[-1], python, request)
        _check_written(request.output, converter)
        _check_smaller(request, outcome, source)
        if name is None:
            self._middles[key] = request, outcome
        return request, outcome

    def _compare_answers(
        self, reference: Reference, answers: Path
    ) -> tuple[verify.Agreement, list[str]]:
        """Compare the answers of a tool's own run with the original's.

        Returns:
            The agreement, and sentences on doubts.

        Raises:
            ConversionError: they differ by more than is accepted.
        """
        agreement = self._agreement_of(reference, answers)
        verify.check_agreement(agreement, self._settings.quantize)
        return agreement, verify.doubts(agreement, self._settings.quantize)

    def _agreement_of(self, reference: Reference, answers: Path) -> verify.Agreement:
        """Compare the answers of a tool's own run with the original's."""
        facts = reference.facts
        return verify.compare_outputs(
            load_arrays(reference.outputs),
            load_arrays(answers),
            facts["task"],
            int(facts["count"]),
            random=bool(facts["random"]),
        )

    def _run_tool(
        self, step: Step, python: Path, request: ConversionRequest
    ) -> ConversionOutcome:
        title = f"{step.converter.name}: {step.format} to {step.converter.kind}"
        name = step.converter.module
        module = name if "." in name else f"pocketserve_lab.convert.tools.{name}"
        job = Job(
            step.converter.name,
            python,
            "pocketserve_lab.convert.tool_process",
            {"module": module, "request": request.to_json()},
            request.output.parent,
        )
        result = run_job(job, self._settings.limits, lambda: self._tell(title, 0.0))
        return ConversionOutcome.from_plain(result["outcome"])

    def _reference(self, source: VersionEntry, python: Path) -> Reference:
        """Return the original's answers, from its own process.

        They are the same for all kinds.
        """
        if source.name in self._references:
            return self._references[source.name]
        folder = self._folder()
        document = {**self._place_of(source), **self._sample_request()}
        title = f"version {source.name}"
        facts = self._run_samples(title, source.format, python, document, folder)
        reference = Reference(facts, folder / "inputs.npz", folder / "outputs.npz")
        self._note_skipped(facts["skipped"])
        return self._references.setdefault(source.name, reference)

    def _note_skipped(self, reasons: Sequence[str]) -> None:
        """Show the first reasons why samples were left out."""
        for number, reason in enumerate(reasons[:MAX_REASONS], 1):
            more = _more(reasons) if number == MAX_REASONS else ""
            self._note(f"left out of the samples: {reason}{more}")

    def _place_of(self, source: VersionEntry) -> dict[str, str]:
        """Return the location of the version to convert, for a process."""
        return {
            "models_dir": str(self._settings.models_dir.absolute()),
            "state_dir": str(self._settings.state_dir.absolute()),
            "model": self._entry.name,
            "version": source.name,
        }

    def _sample_request(self) -> dict[str, Any]:
        """Return the samples part of a request."""
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
        """Run a version on samples, here or in its environment."""
        missing = missing_framework(format)
        if missing is None:
            python = Path(sys.executable)
        elif python == Path(sys.executable):
            raise ConversionError(missing)
        job = Job(
            f"the run of {version}",
            python,
            "pocketserve_lab.convert.sample_run",
            {**document, "folder": str(folder)},
            folder,
        )
        title = f"running {version}"
        return run_job(job, self._settings.limits, lambda: self._tell(title, 0.0))

    def _verify(
        self, result: Result, python: Path
    ) -> tuple[Mapping[str, Any], verify.Agreement, list[str]]:
        """Run the result and compare it with the original.

        Returns:
            The facts from its process, the agreement, and sentences on doubts.
        """
        reference = result.reference
        format = format_named(result.kind)
        # Every kind that is served has a format.
        assert format is not None
        folder = self._folder()
        state_dir = self._settings.state_dir
        staged = stage(
            self._entry, result.source, result.output, format, folder, state_dir
        )
        document = {
            "models_dir": str(staged.models_dir),
            "state_dir": str(staged.state_dir),
            "model": self._entry.name,
            "version": staged.version,
            "arrays": str(reference.inputs),
            "rows": reference.facts["rows"],
            "data": self._sample_request().get("data", ""),
            "layouts": _layouts(result),
            "variants": reference.facts["variants"],
        }
        title = f"the new {format.name} version"
        try:
            facts = self._run_samples(title, format, python, document, folder)
        except ConversionError as error:
            raise ConversionError(
                f"the result cannot be served: {error.message}", detail=error.detail
            ) from None
        _check_same_task(reference.facts, facts)
        outputs = folder / "outputs.npz"
        agreement = verify.compare_outputs(
            load_arrays(reference.outputs),
            load_arrays(outputs),
            reference.facts["task"],
            int(facts["count"]),
            random=bool(reference.facts["random"]),
        )
        nearest = self._milder(result.source, format.name)
        doubts = self._judge(agreement, reference, outputs, nearest)
        return facts, agreement, doubts

    def _judge(
        self,
        agreement: verify.Agreement,
        reference: Reference,
        outputs: Path,
        nearest: str,
    ) -> list[str]:
        """Reject a result that differs from the original.

        Return sentences on doubts.

        Args:
            outputs: the result's, on the reference's inputs.
            nearest: an alternative for the message.
        """
        verify.check_agreement(agreement, self._settings.quantize, nearest)
        max_loss = self._settings.options.get("max_loss")
        if max_loss is not None:
            verify.check_loss(agreement, max_loss)
        return verify.doubts(agreement, self._settings.quantize)

    def _measured(self) -> dict[str, Any]:
        """Return further entries for the provenance."""
        return {}

    def _publish(self, result: Result, conversion: Conversion) -> Conversion:
        """Add the result to the model's folder; return it with its path."""
        path = publish(
            self._entry,
            conversion.source,
            result.output,
            result.new,
            self._provenance(result, conversion),
            listed=KINDS[result.kind].served,
            input_shapes={
                name: list(shape) for name, shape in conversion.fixed.items()
            },
        )
        # The name of the next kind depends on this one.
        self._entry = scan(self._settings.models_dir)[self._entry.name]
        return conversion._replace(path=path)

    def _provenance(self, result: Result, conversion: Conversion) -> dict[str, Any]:
        """Return a version's provenance."""
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
        options: dict[str, Any] = {}
        for outcome in result.outcomes:
            options.update(outcome.options)
        if options:
            provenance["options"] = options
        if conversion.fixed:
            provenance["fixed_sizes"] = shapes_text(conversion.fixed)
        if conversion.agreement is not None:
            provenance["difference"] = float(f"{conversion.agreement.error:.3g}")
        return provenance | self._measured()


def _layouts(result: Result) -> dict[str, str]:
    """Return how the tools moved the channels of each input."""
    layouts: dict[str, str] = {}
    for outcome in result.outcomes:
        layouts.update(outcome.layouts)
    return layouts


def _attempted(
    request: ConversionRequest, attempt: _Attempt, reference: Reference
) -> ConversionRequest:
    """Return a request with the method and the fixed sizes of an attempt."""
    inputs = []
    for tensor in request.inputs:
        shape = list(tensor.shape)
        for axis in attempt.fixed:
            if axis.name == tensor.name:
                shape[axis.number] = sample_size(reference.facts, axis)
        inputs.append(replace(tensor, shape=tuple(shape)))
    variants = [variant["inputs"] for variant in reference.facts["variants"]]
    return replace(
        request,
        inputs=tuple(inputs),
        method=attempt.method,
        fixed=attempt.fixed,
        variants=tuple(variants),
    )


def _freest(best: _Checked, make: Callable[[_Attempt], _Checked]) -> _Checked:
    """Return the result of the tools' method that keeps most sizes free."""
    methods: list[str] = []
    for outcome in best.result.outcomes:
        methods += outcome.other_methods
    for method in methods:
        try:
            other = make(_Attempt(method))
        except LimitError:
            return best  # it is good; another one would run into the limit, too
        except ConversionError:
            continue
        if len(other.frozen) < len(best.frozen):
            best = other
        if not best.frozen:
            break
    return best


def _declared(best: _Checked, make: Callable[[_Attempt], _Checked]) -> _Checked:
    """Return a result whose file declares its fixed sizes, if the tool can.

    Raises:
        ConversionError: it can't, and the file answers other sizes wrongly.
    """
    fixed = tuple(sorted(best.frozen.all))
    refusal = ConversionError(
        f"the result answers other sizes wrongly, which the original takes: "
        f"{axes_text(best.frozen.wrong)}; declare them fixed in model.toml, or change "
        "the model's code",
        nearest=OTHER_KINDS.get(best.result.kind, ""),
    )
    try:
        declared = make(replace(best.attempt, fixed=fixed))
    except ConversionError as error:
        if not best.frozen.wrong:
            return best
        if isinstance(error, LimitError):
            raise
        raise refusal from error
    if declared.frozen.wrong:
        raise refusal
    return declared


def _originals(entry: ModelEntry) -> list[VersionEntry]:
    """Return the versions to convert from, unconverted ones first.

    Results of conversions come last.
    """
    usable = [version for version in entry.versions.values() if version.problem is None]

    def rank(version: VersionEntry) -> tuple[bool, int, bool]:
        options = entry.manifest.versions.get(version.name)
        is_converted = options is not None and options.is_converted
        place = len(SOURCE_ORDER)
        if version.format.name in SOURCE_ORDER:
            place = SOURCE_ORDER.index(version.format.name)
        return is_converted, place, version.name != entry.default_version

    return sorted(usable, key=rank)


def _is_mute(version: VersionEntry, plan: ConversionPlan) -> bool:
    """Return whether nothing here can run a version."""
    if missing_framework(version.format) is None:
        return False
    environment = environment_of(plan[0].converter)
    if environment is None:
        return True
    modules = ENVIRONMENTS[environment].modules
    return not any(module.startswith(version.format.packages) for module in modules)


def _is_quantized(entry: ModelEntry, version: VersionEntry) -> bool:
    """Return whether a version is quantised already.

    By its provenance, its name or its file's name.
    """
    options = entry.manifest.versions.get(version.name)
    if options is not None and options.provenance.get("quantize", "none") != "none":
        return True
    # A model may be called "dynamic" itself.
    file_name = version.path.name.removeprefix(entry.name)
    parts = re.split("[^a-z0-9]+", f"{version.name} {file_name}".lower())
    return not QUANTIZED_WORDS.isdisjoint(parts)


def _check_runs_here(kind: str) -> None:
    """Reject a kind whose result could not run here.

    It is checked before anything is downloaded.
    """
    format = format_named(kind)
    if format is None or format.missing is None:
        return
    missing = format.missing()
    if missing is not None:
        raise ConversionError(
            f"the result could not be run, so it was not checked: {missing}"
        )


def _trusted_code(
    entry: ModelEntry, source: VersionEntry, state_dir: Path
) -> frozenset[str]:
    """Return the hashes of a source's code, which the conversion runs.

    Raises:
        ConversionError: its owner does not trust it.
    """
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
        task=str(reference.facts["task"]),
        options=options,
        trusted=tuple(trusted),
    )


def _tensors(values: Sequence[Mapping[str, Any]]) -> tuple[SourceTensor, ...]:
    return tuple(map(SourceTensor.from_plain, values))


def _next_request(
    before: ConversionRequest, step: Step, output: Path
) -> ConversionRequest:
    """Return the request of a plan's next step."""
    source, title = before.source, before.title
    is_first = before.output == before.source
    if not is_first:
        source = before.output
        title = f"the {TITLES[step.format]} file made of {before.title}"
    return dataclasses.replace(
        before,
        source=source,
        title=title,
        format=step.format,
        output=output,
        kind=step.converter.kind,
        quantize=step.quantize,
    )


def _check_written(output: Path, converter: Converter) -> None:
    """Reject a tool that ended without an error and wrote nothing."""
    if not _size(output):
        raise ConversionError(f"{converter.name} succeeded, but wrote nothing")


def _check_smaller(
    request: ConversionRequest, outcome: ConversionOutcome, source: VersionEntry
) -> None:
    """Reject a quantised file that is hardly smaller than its source.

    A file with few weights grows by more than it saves. The size of code does not tell
    the size of its weights.
    """
    if request.quantize == "none":
        return
    before = outcome.float_bytes
    if not before and request.source == source.path:
        is_code = source.format.code is Code.MODULES
        before = 0 if is_code else file_bytes(source)
    elif not before:
        before = _size(request.source)
    if not before or _size(request.output) <= MAX_REMAINDER * before:
        return
    way = f"use it without --quantize {request.quantize}"
    if source.format.name == request.kind:
        way = "use it as it is"
    raise ConversionError(f"{request.title} would not become smaller; {way}")


def _check_same_task(original: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Reject a result that takes other requests or gives other labels."""
    labels, original_labels = result["labels"], original["labels"]
    if original["task"] != result["task"]:
        fault = f"its task is {result['task']}, and the original's {original['task']}"
    elif len(original_labels) != len(labels):
        number = plural(len(labels), "label")
        fault = f"it has {number}, and the original {len(original_labels)}"
    elif original_labels != labels:
        fault = "its labels differ"
    elif result["prepares_otherwise"]:
        fault = "it prepares a sample differently"
    else:
        return
    raise ConversionError(
        f"the result does not take the original's requests: {fault}; declare the task, "
        "labels and preprocessing of the original's file in model.toml"
    )


def _size(path: Path) -> int:
    """Return the size of a file or folder."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _conversion(result: Result) -> Conversion:
    """Return a conversion that is not checked or published yet."""
    tools = []
    for outcome in result.outcomes:
        tools.append(f"{outcome.tool} {outcome.version}")
    return Conversion(
        kind=result.kind,
        version=result.new.name if KINDS[result.kind].served else "",
        path=result.output,
        source=result.source.name,
        source_bytes=file_bytes(result.source),
        result_bytes=_size(result.output),
        tools=tuple(tools),
        agreement=None,
        random=bool(result.reference.facts["random"]),
        notes=_notes(result.outcomes),
    )


def _with_agreement(
    conversion: Conversion, agreement: verify.Agreement, doubts: Sequence[str]
) -> Conversion:
    """Return a conversion with the result of its comparison."""
    notes = (*conversion.notes, *doubts)
    return conversion._replace(agreement=agreement, notes=notes)


def _with_frozen(
    conversion: Conversion, frozen: FrozenAxes, shapes: ResultShapes
) -> Conversion:
    """Return a conversion with the sizes that are fixed, and notes on them."""
    notes = shapes.notes(frozen.all, conversion.notes)
    return conversion._replace(
        fixed=shapes.fixed(frozen.all), notes=(*conversion.notes, *notes)
    )


def _tool_answers(outcome: ConversionOutcome) -> list[dict[str, str]]:
    """Return a tool's own answers to the variants, as a run of samples has them."""
    answers = []
    for path in outcome.variant_answers:
        answers.append({"outputs": path} if path else {"error": "no such shape"})
    return answers


def _notes(outcomes: Sequence[ConversionOutcome]) -> tuple[str, ...]:
    """Return the tools' sentences for the user, and those on changed layouts."""
    notes: list[str] = []
    layouts: list[str] = []
    for outcome in outcomes:
        notes += outcome.notes
        for name, layout in outcome.layouts.items():
            layouts.append(f"its input {name!r} is {layout} now")
    return tuple(dict.fromkeys([*notes, *layouts]))


def _renamed(original: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """Return sentences on tensors whose names changed for clients.

    Names in the manifest do not change.
    """
    notes = []
    for key, title in (("inputs", "input"), ("outputs", "output")):
        for before, after in zip(original[key], result[key], strict=False):
            old, new = before["name"], after["name"]
            if old != new:
                notes.append(f"its {title} {old!r} is called {new!r} here")
    return notes


def _environments(plan: ConversionPlan) -> list[Environment]:
    """Return the environments of a plan, without duplicates."""
    names = dict.fromkeys(environment_of(step.converter) for step in plan)
    return [ENVIRONMENTS[name] for name in names if name is not None]


def _names(plan: ConversionPlan) -> str:
    return " and ".join(step.converter.name for step in plan)


def _more(items: Sequence[str]) -> str:
    number = len(items) - MAX_REASONS
    return f"; and {number} more" if number > 0 else ""


def _variant_result(
    original: Mapping[str, Any], answered: Mapping[str, Any]
) -> VariantResult:
    """Compare the answers of the original and the result to one variant."""
    axes = tuple(Axis(name, number) for name, number in original["axes"])
    if "error" in answered:
        return VariantResult(axes, is_rejected=True)
    error = verify.variant_error(
        load_arrays(Path(original["outputs"])),
        load_arrays(Path(answered["outputs"])),
    )
    return VariantResult(axes, is_rejected=False, error=error)
