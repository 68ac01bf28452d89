"""``pocketserve init``: writes a short ``model.toml``."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import shlex
import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pocketserve.cli.folder.models_folder import choose_folder, discard, staging
from pocketserve.cli.folder.module_inputs import declare_inputs, parse_sizes
from pocketserve.cli.folder.picture_settings import (
    COLORS,
    PIXELS_TEXT,
    SettingsTrial,
    change_settings,
    changed_entry,
    image_table,
    option_line,
    print_trials,
    read_photo,
    try_settings,
)
from pocketserve.messages import label_list, plural
from pocketserve.terminal.errors import EXIT_DONE, CommandError
from pocketserve.terminal.local import names_path, open_local, quiet_frameworks
from pocketserve.terminal.options import add_folder_option
from pocketserve.terminal.output import print_text, printable
from pocketserve.terminal.progress import Progress

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.loaded_model import LoadedModel
    from pocketserve.repository.manifest import Manifest
    from pocketserve.repository.manifest_edit import Document
    from pocketserve.repository.scan import ModelEntry
    from pocketserve.tasks.base import Task
    from pocketserve.tasks.model_facts import ModelFacts
    from pocketserve.tasks.vision.preprocessing import ImageOptions
    from pocketserve.tensors import TensorSpec

ACTIVATIONS = {
    "none": "leave the scores as they are",
    "sigmoid": "each class is true or not by itself",
    "softmax": "one of the classes is true",
}
FILE_NAME = "model.toml"
MAX_LABELS_BYTES = 8 << 20
USUAL_TASKS = (
    "image-classification",
    "object-detection",
    "text-classification",
    "audio-classification",
)


# The command's last sentence has a task's problem, such as too few labels.
logging.getLogger("pocketserve.tasks.selection").addHandler(logging.NullHandler())


class Answers(NamedTuple):
    """The contents of a manifest, from options, files and the user.

    Attributes:
        sign: the evidence for the task; empty if the user has named it.
        is_nameless: whether the classes have no names.
        pixels: a key of ``PIXELS``; empty if files state it, or it is unknown.
        inputs: of a module, which does not state them.
    """

    task: str
    sign: str
    labels: Path | None = None
    is_nameless: bool = False
    pixels: str = ""
    color: str = ""
    activation: str = ""
    inputs: tuple[TensorSpec, ...] = ()


class Decision(NamedTuple):
    """A manifest, and the model with it.

    Attributes:
        text: the manifest; empty if none is needed.
        labels: the contents of ``labels.txt`` beside it.
        task: the task of the model.
        guesses: settings that nobody stated, as options and in words.
    """

    text: str
    labels: bytes | None
    task: Task
    guesses: Sequence[str]


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    from pocketserve.task_registry import TASK_NAMES

    parser: argparse.ArgumentParser = commands.add_parser(
        "init",
        help="write a model.toml for a model that needs one",
        description="Reads a model and the files beside it, asks for the missing "
        "settings, and writes a model.toml after loading the model with it. "
        "A model that needs none gets none. --pixels, --color and --labels change just "
        "these lines of an existing manifest; nothing else is overwritten. "
        "A manifest applies to the files beside it: "
        "a bare file moves into a folder of its name, with a copy of labels.txt.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL|FILE",
        help="a model of the models folder, or a file or folder",
    )
    parser.add_argument(
        "--task", choices=TASK_NAMES, metavar="TASK", help="the model's task"
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="the names of its classes, one a line",
    )
    _add_picture_options(parser)
    parser.add_argument(
        "--sample",
        type=Path,
        metavar="FILE",
        help="a .npy file or photo of the shape that a PyTorch module takes",
    )
    parser.add_argument(
        "--shape",
        type=parse_sizes,
        metavar="SIZES",
        help="that shape itself, such as 1,3,224,224",
    )
    _add_choice(parser, "--activation", "how scores become probabilities", ACTIVATIONS)
    add_folder_option(parser)
    return parser


def _add_picture_options(parser: argparse.ArgumentParser) -> None:
    _add_choice(
        parser, "--pixels", "the numbers that the model gets for pixels", PIXELS_TEXT
    )
    _add_choice(parser, "--color", "the order of a picture's colours", COLORS)
    parser.add_argument(
        "--try",
        dest="photo",
        type=Path,
        metavar="PHOTO",
        help="show the answer to a photo for each range of pixels and order of "
        "colours, to choose from",
    )


def _add_choice(
    parser: argparse.ArgumentParser, option: str, text: str, choices: Mapping[str, str]
) -> None:
    meanings = [f"{name}: {meaning}" for name, meaning in choices.items()]
    parser.add_argument(
        option,
        choices=choices,
        metavar=option[2:].upper(),
        help=f"{text}. {'; '.join(meanings)}",
    )


def run(options: argparse.Namespace) -> int:
    """Complete a model's settings and write its manifest."""
    by_path = names_path(options.model)
    models_dir = None if by_path else str(choose_folder(options.models_dir))
    service, name, _ = open_local(options.model, models_dir)
    max_pixels = service.config.max_image_pixels
    with ExitStack() as stack:
        stack.callback(service.close)
        entry = service.entry(name)
        home = entry.folder if entry.folder.name == name else entry.folder / name
        is_change = entry.manifest.task is not None and _states_settings(options)
        if not is_change and _is_settled(entry, home):
            raise _settled_error(entry, home)
        inputs = declare_inputs(options, service, entry, _input)
        # Questions come after the progress line has ended.
        with quiet_frameworks(options), Progress().waiting(f"loading {name}"):
            entry, handle = stack.enter_context(service.running(name, None))
        model = handle.model
        if options.photo is not None:
            has_choice = _try(options, entry, model, max_pixels)
            if not has_choice:
                return EXIT_DONE
        if is_change:
            return _change(options, entry, home, model, max_pixels)
        decision = _decide(options, entry, model, max_pixels, inputs)
    if decision.text:
        _write(entry, home, decision.text, decision.labels)
    _report(options.model, entry, home, decision)
    return EXIT_DONE


def _settled_error(entry: ModelEntry, home: Path) -> CommandError:
    path = home / FILE_NAME
    if entry.problem:
        return CommandError(
            f"{path} is left as it is: {entry.problem}; change it with an editor"
        )
    task = json.dumps(entry.manifest.task)
    return CommandError(
        f"{path} is left as it is: it says task = {task} already; "
        "change it with an editor; "
        "--pixels, --color, --labels and --try change settings of pictures"
    )


def _report(model: str, entry: ModelEntry, home: Path, decision: Decision) -> None:
    """Print the new manifest, and how the model is served."""
    from pocketserve.task_registry import task_named

    if decision.text:
        _print_manifest(entry, home, decision)
    description = _description(entry.name, decision.task, bool(decision.text))
    print_text(printable(description))
    if not decision.guesses:
        return
    guesses = ", ".join(decision.guesses)
    print_text(printable(f"Assumed, since nothing states it: {guesses}."))
    if task_named(decision.task.name).takes_pictures:
        command = f"pocketserve init {shlex.quote(model)} --try PHOTO"
        print(printable(f"Check it with a photo: {command}"))


def _print_manifest(entry: ModelEntry, home: Path, decision: Decision) -> None:
    print(printable(f"{home / FILE_NAME}:\n\n{decision.text}", keep="\n"))
    if home == entry.folder:
        return
    labels = ""
    if decision.labels is not None:
        labels = ", with a copy of the labels"
    print_text(
        printable(
            f"The model's file moved into {home}{labels}: "
            "a manifest holds for the files beside it."
        )
    )


def _states_settings(options: argparse.Namespace) -> bool:
    """Return whether options state settings for an existing manifest."""
    is_new = options.task or options.activation
    return not is_new and bool(
        options.pixels or options.color or options.labels or options.photo
    )


def _is_settled(entry: ModelEntry, home: Path) -> bool:
    """Return whether the manifest names a task, or is invalid."""
    if entry.manifest.task is not None:
        return True
    return entry.problem is not None and (home / FILE_NAME).exists()


def _try(
    options: argparse.Namespace, entry: ModelEntry, model: LoadedModel, max_pixels: int
) -> bool:
    """Show answers to a photo; return whether one is chosen."""
    from pocketserve.task_registry import task_named

    if entry.manifest.task is None and model.task.name == "tensors":
        task = options.task or "image-classification"
        entry = entry._replace(manifest=entry.manifest._replace(task=task))
    if not task_named(entry.manifest.task or model.task.name).takes_pictures:
        raise CommandError(f"{entry.name} takes no pictures: {model.task.name}")
    trials = try_settings(entry, model, read_photo(options.photo), max_pixels)
    print_trials(trials, are_numbered=_can_ask())
    if options.pixels or options.color:
        return True
    if _can_ask():
        return _choose_trial(options, trials)
    print("\nWrite the one that is right:")
    for trial in trials:
        print(printable(f"  {option_line(options, trial)}"))
    return False


def _choose_trial(options: argparse.Namespace, trials: list[SettingsTrial]) -> bool:
    """Ask which trial is right, and adopt its settings."""
    answer = _input("Which one is right? [a number; leave empty to change nothing] ")
    if not answer.isdecimal() or not 0 < int(answer) <= len(trials):
        return False
    trial = trials[int(answer) - 1]
    options.pixels = trial.pixels
    options.color = trial.color
    return True


def _change(
    options: argparse.Namespace,
    entry: ModelEntry,
    home: Path,
    model: LoadedModel,
    max_pixels: int,
) -> int:
    """Write the stated settings into an existing manifest."""
    from pocketserve.engine.lifecycle.setup import set_up
    from pocketserve.repository.manifest_edit import edit_manifest
    from pocketserve.repository.toml_table import ManifestError
    from pocketserve.runtimes.base import ModelLoadError

    pixels = options.pixels or ""
    color = options.color or ""
    labels = None if options.labels is None else _read_labels(options.labels)
    try:
        changed = changed_entry(entry, home, pixels, color, labels)
        setup = set_up(
            changed, model.version, model.sessions[0], max_pixels, model.source
        )
    except (ModelLoadError, ManifestError) as error:
        raise CommandError(f"{home / FILE_NAME} is left as it is: {error}") from None
    if labels is not None:
        _write_labels(home, labels)

    def change(document: Document) -> None:
        change_settings(document, pixels, color, labels is not None)

    try:
        edit_manifest(home, change)
    except ManifestError as error:
        raise CommandError(str(error)) from None
    description = _description(entry.name, setup.task, True)
    print_text(printable(f"{home / FILE_NAME} is changed. {description}"))
    return EXIT_DONE


def _decide(
    options: argparse.Namespace,
    entry: ModelEntry,
    model: LoadedModel,
    max_pixels: int,
    inputs: tuple[TensorSpec, ...] = (),
) -> Decision:
    """Decide on a manifest, and check it."""
    from pocketserve.engine.lifecycle.setup import read_facts, set_up
    from pocketserve.runtimes.base import ModelLoadError

    stated = (
        options.task,
        options.labels,
        options.pixels,
        options.color,
        options.activation,
        inputs,
    )
    if model.task.name != "tensors" and not any(stated):
        return Decision("", None, model.task, ())
    session = model.sessions[0]
    facts = read_facts(entry, model.version, session, max_pixels, model.source)
    answers = _ask(options, facts, model)._replace(inputs=inputs)
    labels = None if answers.labels is None else _read_labels(answers.labels)
    text = manifest_text(entry.name, answers)
    manifest = _completed(entry.manifest, text, answers, labels)
    entry = entry._replace(manifest=manifest)
    try:
        setup = set_up(entry, model.version, session, max_pixels, model.source)
    except ModelLoadError as error:
        reason = str(error).removeprefix("model.toml: ")
        raise CommandError(
            f"{entry.name} cannot be served as {answers.task}: {reason}"
        ) from None
    guesses = _guesses(options, answers, setup.assumed)
    return Decision(text, labels, setup.task, guesses)


def _completed(
    old: Manifest, text: str, answers: Answers, labels: bytes | None
) -> Manifest:
    """Add the keys of a text to a manifest."""
    from pocketserve.repository.manifest import parse_manifest
    from pocketserve.tasks.vision.preprocessing import ImageOptions

    new = parse_manifest(tomllib.loads(text))
    names = old.labels
    if labels is not None and not names:
        names = tuple(labels.decode().splitlines())
    sections = {**new.sections, **old.sections}
    if image_table(answers.pixels, answers.color):
        sections[ImageOptions] = _stated(
            new.section(ImageOptions), old.section(ImageOptions)
        )
    return old._replace(
        task=new.task,
        labels=names,
        sections=sections,
        inputs=answers.inputs or old.inputs,
    )


def _stated(new: ImageOptions, old: ImageOptions) -> ImageOptions:
    """Return a manifest's options, updated with those that the user states."""
    values = {}
    for key in ("mean", "std", "color"):
        value = getattr(new, key)
        if value is not None:
            values[key] = value
    return old._replace(**values)


def _guesses(
    options: argparse.Namespace, answers: Answers, assumed: Sequence[str]
) -> list[str]:
    """Return settings that nobody stated, as options and in words."""
    guesses = list(assumed)
    if answers.activation and not options.activation and not _can_ask():
        guesses.append(f"--activation {answers.activation}")
    return guesses


def _ask(options: argparse.Namespace, facts: ModelFacts, model: LoadedModel) -> Answers:
    """Return settings from options, else from files, else from the user."""
    from pocketserve.task_registry import task_named
    from pocketserve.tasks.advice import suggest_task
    from pocketserve.tasks.labels import find_labels

    sign, suggestion = suggest_task(facts, getattr(model.task, "labels", ()))
    if not suggestion and model.task.name != "tensors":
        suggestion = model.task.name
    task = options.task or _choose_task(facts.entry.name, suggestion)
    is_classification = task.endswith("-classification")
    labels: Path | None = options.labels
    is_nameless = False
    if is_classification and labels is None and not find_labels(facts).names:
        is_nameless = True
        labels = _ask_labels(_labels_beside(facts))
    pixels = options.pixels or ""
    if task_named(task).takes_pictures and not pixels and not _pixels_are_known(facts):
        pixels = _choose(
            "How does it expect pixels (leave empty if unknown)", PIXELS_TEXT, ""
        )
    activation = options.activation or ""
    if is_classification and not activation and not _gives_probabilities(model):
        activation = _choose(
            "Its scores are not probabilities. Which activation makes them so",
            ACTIVATIONS,
            "softmax",
        )
    return Answers(
        task=task,
        sign=sign if task == suggestion else "",
        labels=labels,
        is_nameless=is_nameless,
        pixels=pixels,
        color=options.color or "",
        activation=activation,
    )


def _choose_task(name: str, suggestion: str) -> str:
    from pocketserve.task_registry import TASK_NAMES

    choices = dict.fromkeys((*USUAL_TASKS, *TASK_NAMES), "")
    task = _choose("What does it do", choices, suggestion)
    if not task:
        raise CommandError(
            f"nothing shows what {name} does; name it: --task "
            f"{' or '.join(USUAL_TASKS)}, …"
        )
    return task


def _labels_beside(facts: ModelFacts) -> Path | None:
    """Return the ``labels.txt`` beside a bare file, if it has a line per class.

    A file of another length may belong to another model; print that it is ignored.
    """
    from pocketserve.tasks.vision.image_classification import class_count

    path = facts.entry.folder / "labels.txt"
    classes = class_count(facts)
    if facts.entry.folder.name == facts.entry.name or not path.is_file():
        return None
    lines = len(_read_labels(path).decode().rstrip().splitlines())
    if lines == classes > 0:
        return path
    text = (
        f"{path} is ignored: it has {plural(lines, 'line')}, "
        f"but the model gives {plural(classes, 'score')}."
    )
    print_text(printable(text))
    return None


def _ask_labels(default: Path | None) -> Path | None:
    """Ask for a file of labels.

    Without a terminal, return the default.
    """
    proposal = "none"
    if default:
        proposal = f"{default}, - for none"
    question = f"File with the names of its classes, one a line [{proposal}]: "
    while True:
        answer = _input(question)
        if not answer:
            return default
        if answer == "-":
            return None
        path = Path(answer).expanduser()
        try:
            _read_labels(path)
        except CommandError as error:
            print_text(printable(f"{error}; name another, or none"))
        else:
            return path


def _choose(question: str, choices: Mapping[str, str], default: str) -> str:
    """Ask for one of several answers, by its name or number.

    Without a terminal, return the default.

    Args:
        choices: names of answers with their meanings.
    """
    if not _can_ask():
        return default
    names = list(choices)
    width = max(map(len, choices))
    for number, (name, meaning) in enumerate(choices.items(), 1):
        line = f"{number:3}  {name.ljust(width)}  {meaning}"
        print_text(line.rstrip(), indent=" " * 5)
    proposal = default or "a number or name"
    while True:
        answer = _input(f"{question}? [{proposal}] ") or default
        if answer.isdecimal() and 0 < int(answer) <= len(names):
            answer = names[int(answer) - 1]
        if answer in choices or not answer:
            return answer
        print_text(printable(f"{answer!r} is none of these names or numbers."))


def _input(question: str) -> str:
    try:
        if _can_ask():
            return input(question).strip()
        return ""
    except EOFError:
        return ""


def _can_ask() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _pixels_are_known(facts: ModelFacts) -> bool:
    """Return whether the pixel range is known."""
    from pocketserve.tasks.vision.preprocessing import image_options

    if image_options(facts).mean is not None:
        return True
    return not facts.sent_inputs[0].datatype.startswith("FP")


def _gives_probabilities(model: LoadedModel) -> bool:
    """Return whether scores are probabilities, as far as known."""
    from pocketserve.tensors import zeros

    inputs = model.inputs
    outputs = model.outputs
    try:
        arrays = {own: zeros(spec) for spec, own in inputs.by_name.values()}
        answer = model.sessions[0].run(arrays)
        scores = answer[outputs.by_name[outputs.specs[0].name][1]].reshape(-1)
    except Exception:  # a model may refuse zeros in any way
        return True
    if len(outputs.specs) != 1 or len(scores) < 2:
        return True
    if scores.dtype.kind != "f" or not all(map(math.isfinite, scores)):
        return True
    return bool(scores.min() >= 0 and abs(scores.sum() - 1) < 0.01)


def _read_labels(path: Path) -> bytes:
    from pocketserve_wire.files.plain_file import read_plain

    try:
        content = read_plain(path, MAX_LABELS_BYTES)
        content.decode()
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandError(
            f"{path} is not a text in UTF-8, with the name of one class a line"
        ) from None
    return content


def manifest_text(name: str, answers: Answers) -> str:
    """Return a short manifest with comments."""
    lines = [
        f"# {name}, by `pocketserve init`. "
        "Every key is optional; docs/manifest.md has all of them."
    ]
    sign = answers.sign.rstrip(": ")
    if sign.startswith("it "):
        sign = f"I{sign[1:]}"
    if sign:
        lines.append(f"# {printable(sign)}.")
    lines.append(f"task = {json.dumps(answers.task)}")
    if answers.labels is not None:
        lines.append(
            'labels = "labels.txt"  # one class a line, in the order of the scores'
        )
    elif answers.is_nameless:
        lines.append(
            '# labels = "labels.txt"  '
            "# the names of its classes, one a line, in the order of the scores"
        )
    lines += _image_lines(answers)
    if answers.activation not in ("", "none"):
        lines += [
            "",
            "[classification]",
            f'activation = "{answers.activation}"  # makes the scores probabilities',
        ]
    for spec in answers.inputs:
        lines += [
            "",
            "[[inputs]]",
            f"name = {json.dumps(spec.name)}",
            f'datatype = "{spec.datatype}"',
            f"shape = {list(spec.shape)}",
        ]
    return "\n".join(lines) + "\n"


def _image_lines(answers: Answers) -> list[str]:
    table = image_table(answers.pixels, answers.color)
    if not table:
        return []
    lines = ["", "[image]  # pixels, from 0 to 255, become (pixel - mean) / std"]
    for key, value in table.items():
        lines.append(f"{key} = {json.dumps(value)}")
    lines.append(
        '# resize = "crop"  # or "letterbox", where "stretch" is not how it was trained'
    )
    return lines


def _write(entry: ModelEntry, home: Path, text: str, labels: bytes | None) -> None:
    """Write the manifest beside the model.

    A bare file moves into a new folder, which appears complete.
    """
    if home == entry.folder:
        _write_files(home, text, labels)
        return
    from pocketserve.cli.folder.remove import files_of_model

    files = files_of_model(entry, entry.folder)
    with staging(entry.folder, "init") as stage:
        folder = stage.models / entry.name
        for file in files:
            _link_or_copy(file, folder / file.relative_to(entry.folder))
        _write_files(folder, text, labels)
        os.rename(folder, home)
    discard(entry.folder, files)  # meanwhile the folder takes precedence over them


def _link_or_copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, target)
    except OSError:  # a file system without links
        shutil.copy2(file, target)


def _write_files(folder: Path, text: str, labels: bytes | None) -> None:
    from pocketserve.state.json_store import replace_file

    if labels is not None:
        _write_labels(folder, labels)
    if (folder / FILE_NAME).exists():
        _complete(folder, text)
    else:
        replace_file(folder / FILE_NAME, text.encode(), 0o644, durable=True)


def _write_labels(folder: Path, labels: bytes) -> None:
    from pocketserve.state.json_store import replace_file

    target = folder / "labels.txt"
    if target.exists() and target.read_bytes() != labels:
        raise CommandError(
            f"{target} exists already, with other names; remove one of the two"
        )
    replace_file(target, labels, 0o644, durable=True)


def _complete(folder: Path, text: str) -> None:
    """Add missing keys and stated picture settings to a manifest."""
    import tomlkit

    from pocketserve.repository.manifest_edit import edit_manifest
    from pocketserve.repository.toml_table import ManifestError

    items = tomlkit.parse(text)
    plain_items = items.unwrap()

    def change(document: Document) -> None:
        # Only a TOML document takes items with their comments.
        is_toml = isinstance(document, tomlkit.TOMLDocument)
        for key in items:
            if key not in document:
                document[key] = items[key] if is_toml else plain_items[key]
        for key, value in plain_items.get("image", {}).items():
            document["image"][key] = value

    try:
        edit_manifest(folder, change)
    except ManifestError as error:
        raise CommandError(str(error)) from None


def _description(name: str, task: Task, is_new: bool) -> str:
    """Describe in a sentence or two how a model is served."""
    text = f"{name} needs no model.toml: its files say that it is for"
    if is_new:
        text = f"{name} is served as"
    text += f" {task.name}"
    labels: Sequence[str] = getattr(task, "labels", ())
    if labels:
        more = ""
        if len(labels) > 3:
            more = " …"
        listed = f"{label_list(labels[:3])}{more}"
        text += f" with {plural(len(labels), 'label')} ({listed})"
    problem = getattr(task, "problem", "")
    if problem:
        return f"{text}. But {problem}."
    return f"{text}."
