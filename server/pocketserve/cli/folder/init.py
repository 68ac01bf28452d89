"""``pocketserve init``: writes a short ``model.toml`` where a model's files do not say how it is asked."""

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


# A fault of a task, such as labels that are too few, stands in the command's own last sentence.
logging.getLogger("pocketserve.tasks.selection").addHandler(logging.NullHandler())


class Answers(NamedTuple):
    """The answers of the user, or of the model's files, to what a manifest says."""

    task: str
    sign: str  # what shows the task; empty where the user has named it
    labels: Path | None = None
    is_nameless: bool = False  # whether its classes have no names
    pixels: str = (
        ""  # a key of ``PIXELS``; empty where the files say it, or nobody knows
    )
    color: str = ""
    activation: str = ""
    inputs: tuple[TensorSpec, ...] = ()  # of a module that does not say what it takes


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    from pocketserve.task_registry import TASK_NAMES

    parser: argparse.ArgumentParser = commands.add_parser(
        "init",
        help="write a model.toml for a model that does not say how it is asked",
        description="Looks at a model and the files beside it, asks what they do not say, and writes a model.toml with "
        "which the model was loaded. A model that needs none gets none. --pixels, --color and --labels change just "
        "these lines of a manifest that is there; nothing else is overwritten. A manifest holds for the files beside "
        "it: a bare file moves into a folder of its name, with a copy of labels.txt.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL|FILE",
        help="a model of the models folder, or a file or folder",
    )
    parser.add_argument(
        "--task", choices=TASK_NAMES, metavar="TASK", help="what the model does"
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="the names of its classes, one a line",
    )
    _add_choice(
        parser,
        "--pixels",
        "what the numbers of a picture become before the model reads them",
        PIXELS_TEXT,
    )
    _add_choice(parser, "--color", "the order of a picture's colours", COLORS)
    parser.add_argument(
        "--try",
        dest="photo",
        type=Path,
        metavar="PHOTO",
        help="show the answer to a photo for each range of pixels and order of colours, to choose from",
    )
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
    _add_choice(
        parser, "--activation", "what makes its scores probabilities", ACTIVATIONS
    )
    add_folder_option(parser)
    return parser


def _add_choice(
    parser: argparse.ArgumentParser, option: str, text: str, choices: Mapping[str, str]
) -> None:
    texts = "; ".join(f"{name}: {meaning}" for name, meaning in choices.items())
    parser.add_argument(
        option, choices=choices, metavar=option[2:].upper(), help=f"{text}. {texts}"
    )


def run(options: argparse.Namespace) -> int:
    """Look, ask, check, write."""
    from pocketserve.task_registry import task_named

    by_path = names_path(options.model)
    models_dir = None if by_path else str(choose_folder(options.models_dir))
    service, name, _ = open_local(options.model, models_dir)
    with ExitStack() as stack:
        stack.callback(service.close)
        entry = service.entry(name)
        home = entry.folder if entry.folder.name == name else entry.folder / name
        is_change = entry.manifest.task is not None and _states_settings(options)
        if not is_change and _is_settled(entry, home):
            fault = (
                entry.problem
                or f"it says task = {json.dumps(entry.manifest.task)} already"
            )
            way = (
                "; --pixels, --color, --labels and --try change settings of pictures"
                if not entry.problem
                else ""
            )
            raise CommandError(
                f"{home / FILE_NAME} is left as it is: {fault}; change it with an editor{way}"
            )
        inputs = declare_inputs(options, service, entry, _input)
        with (
            quiet_frameworks(options),
            Progress().waiting(f"loading {name}"),
        ):  # not around questions, which go there
            entry, handle = stack.enter_context(service.running(name, None))
        if options.photo is not None and not _try(
            options, entry, handle.model, service.config.max_image_pixels
        ):
            return EXIT_DONE
        if is_change:
            return _change(
                options, entry, home, handle.model, service.config.max_image_pixels
            )
        text, labels, task, guesses = _decide(
            options, entry, handle.model, service.config.max_image_pixels, inputs
        )
    if text:
        _write(entry, home, text, labels)
        print(printable(f"{home / FILE_NAME}:\n\n{text}", keep="\n"))
        if home != entry.folder:
            names = ", with a copy of the labels" if labels is not None else ""
            print_text(
                printable(
                    f"The model's file moved into {home}{names}: a manifest holds for the files beside it."
                )
            )
    print_text(printable(_description(name, task, bool(text))))
    if guesses:
        print_text(
            printable(f"Assumed, since nothing states it: {', '.join(guesses)}.")
        )
    if guesses and task_named(task.name).takes_pictures:
        print(
            printable(
                f"Check it with a photo: pocketserve init {shlex.quote(options.model)} --try PHOTO"
            )
        )
    return EXIT_DONE


def _states_settings(options: argparse.Namespace) -> bool:
    """Return whether options name settings that an existing manifest can take."""
    is_new = options.task or options.activation
    return not is_new and bool(
        options.pixels or options.color or options.labels or options.photo
    )


def _is_settled(entry: ModelEntry, home: Path) -> bool:
    """Return whether a manifest names a task, or cannot be read."""
    return entry.manifest.task is not None or (
        entry.problem is not None and (home / FILE_NAME).exists()
    )


def _try(
    options: argparse.Namespace, entry: ModelEntry, model: LoadedModel, max_pixels: int
) -> bool:
    """Show answers to a photo and take the user's choice; return whether there is one."""
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
    if not _can_ask():
        print("\nWrite the one that is right:")
        for trial in trials:
            print(printable(f"  {option_line(options, trial)}"))
        return False
    answer = _input("Which one is right? [a number; nothing changes nothing] ")
    if not answer.isdecimal() or not 0 < int(answer) <= len(trials):
        return False
    trial = trials[int(answer) - 1]
    options.pixels, options.color = trial.pixels, trial.color
    return True


def _change(
    options: argparse.Namespace,
    entry: ModelEntry,
    home: Path,
    model: LoadedModel,
    max_pixels: int,
) -> int:
    """Write the settings that options name into a manifest that is there."""
    from pocketserve.engine.lifecycle.setup import set_up
    from pocketserve.repository.manifest_edit import edit_manifest
    from pocketserve.repository.toml_table import ManifestError
    from pocketserve.runtimes.base import ModelLoadError

    pixels, color = options.pixels or "", options.color or ""
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
    try:
        edit_manifest(
            home,
            lambda document: change_settings(
                document, pixels, color, labels is not None
            ),
        )
    except ManifestError as error:
        raise CommandError(str(error)) from None
    print_text(
        printable(
            f"{home / FILE_NAME} is changed. {_description(entry.name, setup.task, True)}"
        )
    )
    return EXIT_DONE


def _decide(
    options: argparse.Namespace,
    entry: ModelEntry,
    model: LoadedModel,
    max_pixels: int,
    inputs: tuple[TensorSpec, ...] = (),
) -> tuple[str, bytes | None, Task, list[str]]:
    """Return the manifest's text, empty where none is needed, the labels beside it, the task by it, and guesses in it.

    The guesses are options, as nobody could be asked.
    """
    from pocketserve.engine.lifecycle.setup import read_facts, set_up
    from pocketserve.repository.manifest import parse_manifest
    from pocketserve.runtimes.base import ModelLoadError
    from pocketserve.tasks.vision.preprocessing import ImageOptions

    wishes = (
        options.task,
        options.labels,
        options.pixels,
        options.color,
        options.activation,
        inputs,
    )
    if model.task.name != "tensors" and not any(wishes):
        return "", None, model.task, []
    session = model.sessions[0]
    facts = read_facts(entry, model.version, session, max_pixels, model.source)
    answers = _ask(options, facts, model)._replace(inputs=inputs)
    labels = None if answers.labels is None else _read_labels(answers.labels)
    text = manifest_text(entry.name, answers)
    new, old = parse_manifest(tomllib.loads(text)), entry.manifest
    names = (
        old.labels
        if labels is None
        else old.labels or tuple(labels.decode().splitlines())
    )
    sections = {**new.sections, **old.sections}
    if image_table(answers.pixels, answers.color):
        sections[ImageOptions] = _stated(
            new.section(ImageOptions), old.section(ImageOptions)
        )
    manifest = old._replace(
        task=new.task, labels=names, sections=sections, inputs=inputs or old.inputs
    )
    try:
        setup = set_up(
            entry._replace(manifest=manifest),
            model.version,
            session,
            max_pixels,
            model.source,
        )
    except ModelLoadError as error:
        reason = str(error).removeprefix("model.toml: ")
        raise CommandError(
            f"{entry.name} cannot be served as {answers.task}: {reason}"
        ) from None
    return text, labels, setup.task, _guesses(options, answers, setup.assumed)


def _stated(new: ImageOptions, old: ImageOptions) -> ImageOptions:
    """Return a manifest's options with those that the user states now."""
    keys = ("mean", "std", "color")
    return old._replace(
        **{key: getattr(new, key) for key in keys if getattr(new, key) is not None}
    )


def _guesses(
    options: argparse.Namespace, answers: Answers, assumed: Sequence[str]
) -> list[str]:
    """Return the settings that nobody stated, as options and as words."""
    guesses = list(assumed)
    if answers.activation and not options.activation and not _can_ask():
        guesses.append(f"--activation {answers.activation}")
    return guesses


def _ask(options: argparse.Namespace, facts: ModelFacts, model: LoadedModel) -> Answers:
    """Return what options say, else what files show, else what the user answers on a terminal."""
    from pocketserve.task_registry import TASK_NAMES, task_named
    from pocketserve.tasks.advice import suggest_task
    from pocketserve.tasks.labels import find_labels

    sign, suggestion = suggest_task(facts, getattr(model.task, "labels", ()))
    suggestion = suggestion or (model.task.name if model.task.name != "tensors" else "")
    task = options.task or _choose(
        "What does it do", dict.fromkeys((*USUAL_TASKS, *TASK_NAMES), ""), suggestion
    )
    if not task:
        raise CommandError(
            f"nothing shows what {facts.entry.name} does; say it: --task {' or '.join(USUAL_TASKS)}, …"
        )
    labels, pixels, activation = (
        options.labels,
        options.pixels or "",
        options.activation or "",
    )
    is_nameless = (
        task.endswith("-classification")
        and labels is None
        and not find_labels(facts).names
    )
    if is_nameless:
        labels = _ask_labels(_labels_beside(facts))
    if task_named(task).takes_pictures and not pixels and not _pixels_are_known(facts):
        pixels = _choose(
            "What does it take pixels as; nothing if you do not know", PIXELS_TEXT, ""
        )
    if (
        task.endswith("-classification")
        and not activation
        and not _gives_probabilities(model)
    ):
        activation = _choose(
            "Its scores are no probabilities. What makes them so",
            ACTIVATIONS,
            "softmax",
        )
    color = options.color or ""
    return Answers(
        task,
        sign if task == suggestion else "",
        labels,
        is_nameless,
        pixels,
        color,
        activation,
    )


def _labels_beside(facts: ModelFacts) -> Path | None:
    """Return ``labels.txt`` beside a bare file, if it names as many classes as the model has: it may be another's."""
    from pocketserve.tasks.vision.image_classification import class_count

    path, classes = facts.entry.folder / "labels.txt", class_count(facts)
    if facts.entry.folder.name == facts.entry.name or not path.is_file():
        return None
    lines = len(_read_labels(path).decode().rstrip().splitlines())
    if lines == classes > 0:
        return path
    text = f"{path} is not taken: it has {plural(lines, 'line')}, and the model {plural(classes, 'score')}."
    print_text(printable(text))
    return None


def _ask_labels(default: Path | None) -> Path | None:
    """Return a file of labels that can be read; the default where nobody is asked, None where there is none."""
    proposal = f"{default}, - for none" if default else "none"
    while answer := _input(
        f"File with the names of its classes, one a line [{proposal}]: "
    ):
        if answer == "-":
            return None
        try:
            _read_labels(path := Path(answer).expanduser())
        except CommandError as error:
            print_text(printable(f"{error}; name another, or none"))
        else:
            return path
    return default


def _choose(question: str, choices: Mapping[str, str], default: str) -> str:
    """Return one of several answers, by its name or number; the default where nobody is asked.

    Args:
        choices: names of answers with what they mean.
    """
    if not _can_ask():
        return default
    names, width = list(choices), max(map(len, choices))
    for number, (name, meaning) in enumerate(choices.items(), 1):
        print_text(
            f"{number:3}  {name.ljust(width)}  {meaning}".rstrip(), indent=" " * 5
        )
    while True:
        answer = _input(f"{question}? [{default or 'a number or name'}] ") or default
        answer = (
            names[int(answer) - 1]
            if answer.isdecimal() and 0 < int(answer) <= len(names)
            else answer
        )
        if answer in choices:
            return answer
        if not answer:
            return ""
        print_text(printable(f"{answer!r} is none of these names or numbers."))


def _input(question: str) -> str:
    try:
        return input(question).strip() if _can_ask() else ""
    except EOFError:
        return ""


def _can_ask() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _pixels_are_known(facts: ModelFacts) -> bool:
    """Return whether a file says how pixels become numbers; integers go in as they are."""
    from pocketserve.tasks.vision.preprocessing import image_options

    return image_options(facts).mean is not None or not facts.sent_inputs[
        0
    ].datatype.startswith("FP")


def _gives_probabilities(model: LoadedModel) -> bool:
    """Return whether the scores of zeros lie between 0 and 1 and amount to 1; true where that cannot be told."""
    from pocketserve.tensors import zeros

    inputs, outputs = model.inputs, model.outputs
    try:
        arrays = {own: zeros(spec) for spec, own in inputs.by_name.values()}
        answer = model.sessions[0].run(arrays)
        scores = answer[outputs.by_name[outputs.specs[0].name][1]].reshape(-1)
    except Exception:  # a model may refuse zeros in any way
        return True
    if (
        len(outputs.specs) != 1
        or scores.dtype.kind != "f"
        or len(scores) < 2
        or not all(map(math.isfinite, scores))
    ):
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
            f"{path} is no text in UTF-8, with the name of one class a line"
        ) from None
    return content


def manifest_text(name: str, answers: Answers) -> str:
    """Return a short manifest with comments."""
    sign = answers.sign.rstrip(": ")
    lines = [
        f"# {name}, by `pocketserve init`. Every key is optional; docs/manifest.md has all of them."
    ]
    lines += (
        [f"# {printable(f'I{sign[1:]}' if sign.startswith('it ') else sign)}."]
        if sign
        else []
    )
    lines += [f"task = {json.dumps(answers.task)}"]
    if answers.labels is not None:
        lines += [
            'labels = "labels.txt"  # one class a line, in the order of the scores'
        ]
    elif answers.is_nameless:
        lines += [
            '# labels = "labels.txt"  # the names of its classes, one a line, in the order of the scores'
        ]
    table = image_table(answers.pixels, answers.color)
    if table:
        lines += ["", "[image]  # pixels, from 0 to 255, become (pixel - mean) / std"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
        lines += [
            '# resize = "crop"  # or "letterbox", where "stretch" is not how it was trained'
        ]
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
        ]
        lines += [f"shape = {list(spec.shape)}"]
    return "\n".join(lines) + "\n"


def _write(entry: ModelEntry, home: Path, text: str, labels: bytes | None) -> None:
    """Write the manifest beside the model; a bare file moves into a folder of its own, which appears whole."""
    if home == entry.folder:
        _write_files(home, text, labels)
        return
    from pocketserve.cli.folder.remove import files_of_model

    files = files_of_model(entry, entry.folder)
    with staging(entry.folder, "init") as stage:
        folder = stage.models / entry.name
        for file in files:
            target = folder / file.relative_to(entry.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file, target)
            except OSError:  # a file system without links
                shutil.copy2(file, target)
        _write_files(folder, text, labels)
        os.rename(folder, home)
    discard(entry.folder, files)  # the folder counts before files beside it do


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
            f"{target} is there already, with other names; remove one of the two"
        )
    replace_file(target, labels, 0o644, durable=True)


def _complete(folder: Path, text: str) -> None:
    """Add the keys of a text to a manifest that has none of them, and what the user states of pictures.

    Other keys that it has stay as they are.
    """
    import tomlkit

    from pocketserve.repository.manifest_edit import Document, edit_manifest
    from pocketserve.repository.toml_table import ManifestError

    def change(document: Document) -> None:
        items = tomlkit.parse(text)
        for key in [key for key in items if key not in document]:
            document[key] = (
                items[key]
                if isinstance(document, tomlkit.TOMLDocument)
                else items.unwrap()[key]
            )
        for key, value in items.unwrap().get("image", {}).items():
            document["image"][key] = value

    try:
        edit_manifest(folder, change)
    except ManifestError as error:
        raise CommandError(str(error)) from None


def _description(name: str, task: Task, is_new: bool) -> str:
    """Return how a model is served, in a sentence or two."""
    labels: Sequence[str] = getattr(task, "labels", ())
    names = (
        f" with {plural(len(labels), 'label')} ({label_list(labels[:3])}{' …' * (len(labels) > 3)})"
        if labels
        else ""
    )
    start = (
        f"{name} is served as"
        if is_new
        else f"{name} needs no model.toml: its files say that it is for"
    )
    problem = getattr(task, "problem", "")
    return f"{start} {task.name}{names}." + (f" But {problem}." if problem else "")
