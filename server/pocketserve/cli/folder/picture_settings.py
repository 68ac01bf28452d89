"""Pixel range and colour order of a picture model.

``init --try PHOTO`` shows the answer for each combination, and ``init --pixels`` and
``--color`` write them into a manifest.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import print_table, printable

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.loaded_model import LoadedModel
    from pocketserve.repository.manifest_edit import Document
    from pocketserve.repository.scan import ModelEntry
    from pocketserve.tasks.base import Answer, Task

PIXELS = {
    "0..1": (0, 255),
    "0..255": (0, 1),
    "signed": (127.5, 127.5),
    "imagenet": ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375]),
}
"""Mean and std of ``(pixel - mean) / std``, for pixels from 0 to 255.

``signed`` results in -1 to 1.
"""

PIXELS_TEXT = {
    "0..1": "fractions, pixel / 255",
    "0..255": "numbers as they are in the picture",
    "signed": "from -1 to 1",
    "imagenet": "mean and deviation of ImageNet, as torchvision and timm train",
}
COLORS = {
    "rgb": "red comes first, as in most models",
    "bgr": "blue comes first, as OpenCV reads pictures",
}
MAX_PHOTO_BYTES = 64 << 20


class SettingsTrial(NamedTuple):
    """The answer to a picture with one combination of settings."""

    pixels: str
    color: str  # empty for a model of grey pictures
    answer: str
    score: float | None


def image_table(pixels: str, color: str) -> dict[str, Any]:
    """Return the keys of ``[image]`` for stated settings."""
    table: dict[str, Any] = {}
    if pixels:
        table["mean"], table["std"] = PIXELS[pixels]
    if color:
        table["color"] = color
    return table


def change_settings(
    document: Document, pixels: str, color: str, has_labels: bool
) -> None:
    """Write settings into a manifest, keeping all others."""
    table = image_table(pixels, color)
    if table and "image" not in document:
        document["image"] = {}
    for key, value in table.items():
        document["image"][key] = value
    if has_labels:
        document["labels"] = "labels.txt"


def changed_entry(
    entry: ModelEntry, home: Path, pixels: str, color: str, labels: bytes | None
) -> ModelEntry:
    """Return a model with its manifest as after :func:`change_settings`."""
    from pocketserve.repository.manifest import FILE_NAME, parse_manifest

    path = home / FILE_NAME
    document = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    change_settings(document, pixels, color, labels is not None)
    manifest = parse_manifest(document)
    if labels is not None:
        manifest = manifest._replace(
            labels=tuple(labels.decode("utf-8-sig").splitlines())
        )
    return entry._replace(manifest=manifest)


def read_photo(path: Path) -> bytes:
    """Return a picture file's content."""
    from pocketserve_wire.files.plain_file import read_plain

    try:
        return read_plain(path, MAX_PHOTO_BYTES)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None


def try_settings(
    entry: ModelEntry, model: LoadedModel, photo: bytes, max_pixels: int
) -> list[SettingsTrial]:
    """Return the answer for each combination of settings.

    Raises:
        CommandError: the model takes no pictures, or the file is none.
    """
    from pocketserve_wire import ApiError

    trials = []
    for pixels, color in _choices(model):
        task = _task_with(entry, model, image_table(pixels, color), max_pixels)
        try:
            answer = _ask(model, task, photo)
        except ApiError as error:
            raise CommandError(error.message) from None
        best = answer[0] if answer else {}
        label = str(best.get("label", "nothing"))
        score = best.get("score", best.get("share"))
        trials.append(SettingsTrial(pixels, color, label, score))
    return trials


def _choices(model: LoadedModel) -> Iterator[tuple[str, str]]:
    """Yield pixel ranges and colour orders to try."""
    spec = model.inputs.specs[0]
    takes_reals = spec.datatype.startswith("FP") or spec.quantization is not None
    colors = tuple(COLORS) if 3 in (spec.shape[1], spec.shape[-1]) else ("",)
    for pixels in PIXELS if takes_reals else ("",):
        for color in colors:
            yield pixels, color


def _task_with(
    entry: ModelEntry, model: LoadedModel, table: dict[str, Any], max_pixels: int
) -> Task:
    """Return the model's task with other keys in ``[image]``."""
    from pocketserve.engine.lifecycle.setup import set_up
    from pocketserve.runtimes.base import ModelLoadError
    from pocketserve.tasks.vision.preprocessing import ImageOptions

    manifest = entry.manifest
    values = {key: _numbers(value) for key, value in table.items()}
    options = manifest.section(ImageOptions)._replace(**values)
    sections = {**manifest.sections, ImageOptions: options}
    changed = entry._replace(manifest=manifest._replace(sections=sections))
    session = model.sessions[0]
    try:
        setup = set_up(changed, model.version, session, max_pixels, model.source)
    except ModelLoadError as error:
        reason = str(error).removeprefix("model.toml: ")
        raise CommandError(f"{entry.name}: {reason}") from None
    return setup.task


def _numbers(value: Any) -> Any:
    """Convert a manifest's value for options: numbers and lists become tuples."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return tuple(value)
    return (value,)


def _ask(model: LoadedModel, task: Task, photo: bytes) -> Answer:
    """Return the answer to a picture, without a queue."""
    from pocketserve.tasks.base import AnswerOptions, ExtendedAnswer

    prepared = task.prepare(memoryview(photo))
    runs = []
    for arrays in prepared.runs:
        inputs = {}
        for name, array in arrays.items():
            _, own_name = model.inputs.by_name[name]
            inputs[own_name] = array
        outputs = model.sessions[0].run(inputs)
        results = {}
        for spec in model.outputs.specs:
            _, own_name = model.outputs.by_name[spec.name]
            results[spec.name] = outputs[own_name]
        runs.append(results)
    answer = task.answer(runs, AnswerOptions(), prepared.context)
    if isinstance(answer, ExtendedAnswer):
        return answer.entries
    return answer


def print_trials(trials: list[SettingsTrial], *, are_numbered: bool) -> None:
    """Print a table of the trials and their answers."""
    header = ["PIXELS", "COLOR", "ANSWER", "SCORE"]
    rows = []
    for trial in trials:
        pixels = trial.pixels or "as they are"
        color = trial.color or "grey"
        score = "" if trial.score is None else f"{trial.score:.4g}"
        rows.append([pixels, color, printable(trial.answer), score])
    if are_numbered:
        header = ["", *header]
        rows = [[str(number), *row] for number, row in enumerate(rows, 1)]
    print_table(header, rows)


def option_line(options: argparse.Namespace, trial: SettingsTrial) -> str:
    """Return the command that writes a trial's settings into the manifest."""
    import shlex

    words = ["pocketserve", "init", options.model]
    for name in ("task", "labels", "activation", "sample", "models_dir"):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    if options.shape is not None:
        sizes = ",".join(str(size) for size in options.shape)
        words.append(f"--shape={sizes}")  # it may begin with a minus
    if trial.pixels:
        words += ["--pixels", trial.pixels]
    if trial.color:
        words += ["--color", trial.color]
    return shlex.join(words)
