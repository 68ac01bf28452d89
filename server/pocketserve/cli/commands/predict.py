"""``pocketserve predict``: sends inputs to a model and prints the answers."""

from __future__ import annotations

import argparse
import base64
import contextlib
import csv
import json
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.cli.plain import plain_lines
from pocketserve.cli.raw_inputs import InputError, NamedInput, read_inputs
from pocketserve.tasks.speech.subtitles import SRT, VTT, Cue, subtitles
from pocketserve.terminal.connection import (
    add_connection_options,
    open_client,
    reading_answers,
)
from pocketserve.terminal.errors import EXIT_DONE, EXIT_FAILED, CommandError
from pocketserve.terminal.local import open_local, quiet_frameworks
from pocketserve.terminal.output import print_json, print_table, print_text, printable
from pocketserve.terminal.progress import Progress

if TYPE_CHECKING:
    from pocketserve_client import Client

ABOUT_INPUT = frozenset(
    (
        "MALFORMED_JSON",
        "INVALID_REQUEST",
        "INVALID_TENSOR",
        "INVALID_INPUT",
        "INFERENCE_FAILED",
        "BODY_TOO_LARGE",
    )
)
"""Codes of errors that depend on the input."""

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".avif")
VIEWER = "termux-open"  # of termux-tools, which every Termux has
SPEECH_TO_TEXT = "speech-to-text"
MAX_STEM = 100  # characters of an input's name in its picture's name
MAX_ROWS = 50
ROUNDING = 1e-3  # rounding error of probabilities in half precision
LOGITS_ADVICE = (
    "\nThese scores are not probabilities. If the model returns logits, add to its "
    "model.toml:\n"
    '  [classification]\n  activation = "softmax"'
)


@dataclass
class InputAnswer:
    """The answer to one input, with the annotated picture for ``--save``."""

    document: dict[str, Any]
    picture: bytes | None = None


AskModel = Callable[[bytes, Mapping[str, str]], InputAnswer]
WriteAnswer = Callable[[str, dict[str, Any]], None]


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "predict",
        help="send input to a model: pictures, sounds, texts, JSON or .npy files, numbers, "
        "a sentence, or - for standard input",
        description="Uses a running server, or with --local loads the model in this process.",
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a model's name; with --local also a model file"
    )
    parser.add_argument(
        "input",
        nargs="+",
        metavar="INPUT",
        help="files, folders, patterns in quotes and addresses of pictures; "
        "or numbers, a sentence in quotes, or - for standard input",
    )
    parser.add_argument(
        "--pair",
        action="store_true",
        help="the inputs are two texts that the model reads together",
    )
    parser.add_argument(
        "--version", dest="model_version", metavar="NAME", help="the version"
    )
    parser.add_argument(
        "--top-k", type=int, metavar="N", help="maximum number of entries"
    )
    parser.add_argument(
        "--threshold", type=float, metavar="SCORE", help="lowest score to show"
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="PNG|DIR",
        help="save the picture with the answer drawn on it, or several into a folder",
    )
    parser.add_argument(
        "--sequence",
        action="store_true",
        help="the inputs are steps of a sequence, for a model that keeps state",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another parameter of the model's task, such as language=de or iou=0.4",
    )
    parser.add_argument(
        "--local",
        action="store_true",
        help="load the model in this process; no server is needed",
    )
    parser.add_argument(
        "--models-dir",
        metavar="DIR",
        help="with --local: the models folder [the one that is served]",
    )
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument(
        "--json",
        action="store_true",
        help="print the whole answer as JSON; a list for several inputs",
    )
    formats.add_argument(
        "--jsonl",
        action="store_true",
        help="print a line of JSON for each input, as soon as it is answered",
    )
    formats.add_argument(
        "--csv",
        action="store_true",
        help="print a line of CSV for each entry of the answers",
    )
    formats.add_argument(
        "--plain",
        action="store_true",
        help="print only the best label, value or text; with --top-k one a line",
    )
    formats.add_argument(
        "--format",
        choices=("text", SRT, VTT, "json"),
        help="print a transcript as text, as subtitles, or as --json does",
    )
    add_connection_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the answer to each input; continue after invalid ones."""
    options.json = options.json or options.format == "json"
    run_of_inputs = _InputRun(options, _inputs(options))
    with _open(options) as ask:
        failures = run_of_inputs.answer_all(ask)
    if failures:
        return EXIT_FAILED
    return EXIT_DONE


class _InputRun:
    """A run of the command over its inputs."""

    def __init__(self, options: argparse.Namespace, inputs: list[NamedInput]) -> None:
        self._options = options
        self._inputs = inputs
        self._several = len(inputs) > 1
        self._query = _parameters(options)
        folder = _picture_folder(options.save, self._several)
        self._pictures = _SavedPictures(options.save, folder)
        self._answers: list[dict[str, Any]] = []
        self._write = _writer(options, self._several, self._answers)
        self._sequence = Steps(len(inputs)) if options.sequence else None

    def answer_all(self, ask: AskModel) -> int:
        """Print all answers; return the number of inputs that failed."""
        failures = 0
        for source in self._inputs:
            try:
                answer = self._ask(ask, source)
            except Exception as error:
                if not self._several or not _is_about_input(error):
                    raise _with_file(error, source) from None
                failures += 1
                self._report(error, source)
            else:
                self._show(answer, source)
        if self._options.json:
            print_json(self._answers if self._several else self._answers[0])
        return failures

    def _ask(self, ask: AskModel, source: NamedInput) -> InputAnswer:
        content = source.read()
        marks = self._sequence.next() if self._sequence else {}
        title = f"waiting for {self._options.model}, which may be loading"
        with Progress().waiting(title):
            return ask(content, {**self._query, **marks})

    def _report(self, error: Exception, source: NamedInput) -> None:
        reason = getattr(error, "strerror", None) or str(error)
        sentence = printable(f"{source.name}: {reason}")
        print(f"pocketserve: {sentence}", file=sys.stderr)
        if self._options.json or self._options.jsonl:
            self._write(source.name, {"error": reason})

    def _show(self, answer: InputAnswer, source: NamedInput) -> None:
        if self._sequence:
            self._sequence.is_open = True
        if answer.picture is not None:
            path = self._pictures.save(source.name, answer.picture)
            answer.document["saved"] = str(path)
        with reading_answers():
            self._write(source.name, answer.document)


def _inputs(options: argparse.Namespace) -> list[NamedInput]:
    """Return the inputs; with ``--pair`` a single one of two texts.

    Raises:
        CommandError: a word is not an input, or ``--pair`` has not exactly two.
    """
    if not options.pair:
        return read_inputs(options.input)
    if len(options.input) != 2:
        raise CommandError(
            f"--pair takes two texts in quotes, not {len(options.input)}"
        )
    text, other = options.input
    content = json.dumps({"text": text, "text_pair": other}).encode()
    return [NamedInput("--pair", lambda: content, is_file=False)]


@dataclass
class Steps:
    """The sequence parameters of inputs that are steps of one sequence.

    The first step that succeeds opens the sequence, the last input closes it.
    """

    left: int
    is_open: bool = False
    id: str = field(default_factory=lambda: f"predict-{secrets.token_hex(8)}")

    def next(self) -> dict[str, str]:
        """Return the query parameters of the next step."""
        self.left -= 1
        query = {"sequence_id": self.id}
        if not self.is_open:
            query["sequence_start"] = "true"
        if not self.left:
            query["sequence_end"] = "true"
        return query


def _picture_folder(save: Path | None, several: bool) -> Path | None:
    """Create the folder for annotated pictures, if one is named."""
    if save is None or not (several or save.is_dir()):
        return None
    if save.suffix.lower() in PICTURES and not save.is_dir():
        raise CommandError(
            f"{str(save)!r} is the name of one picture, and there are several; "
            "name a folder for them"
        )
    try:
        save.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"{str(save)!r} cannot be a folder for pictures: {error.strerror}; "
            "name another"
        ) from None
    return save


class _SavedPictures:
    """Annotated pictures, in one file or in a folder."""

    def __init__(self, file: Path | None, folder: Path | None) -> None:
        self._file = file
        self._folder = folder
        self._saved: set[Path] = set()

    def save(self, name: str, picture: bytes) -> Path:
        """Save the picture for an input; return its path."""
        path = self._new_path(name)
        self._saved.add(path)
        try:
            path.write_bytes(picture)
        except OSError as error:
            raise CommandError(
                f"{str(path)!r} cannot be saved: {error.strerror}; name another file"
            ) from None
        return path

    def _new_path(self, name: str) -> Path:
        if self._folder is None:
            assert self._file is not None  # there are pictures only with --save
            return self._file
        name_without_query = name.partition("?")[0]
        stem = re.sub(r"[^\w.-]+", "_", Path(name_without_query).stem)[-MAX_STEM:]
        path = self._folder / f"{stem}.answer.png"
        number = 0
        while path in self._saved:
            number += 1
            path = self._folder / f"{stem}.answer{number}.png"
        return path


def _is_about_input(error: Exception) -> bool:
    """Return whether other inputs may succeed."""
    if isinstance(error, InputError | OSError):
        return True
    code = getattr(error, "code", "")
    return getattr(code, "name", code) in ABOUT_INPUT


def _with_file(error: Exception, source: NamedInput) -> Exception:
    """Add the file's name to an error that doesn't mention it."""
    is_named = isinstance(error, InputError | OSError)
    if source.is_file and _is_about_input(error) and not is_named:
        return CommandError(f"{source.name}: {error}")
    return error


def _writer(
    options: argparse.Namespace, several: bool, answers: list[dict[str, Any]]
) -> WriteAnswer:
    """Return the function that prints or collects answers."""
    if options.jsonl:
        return _write_line
    if options.csv:
        return _TableWriter().write
    if options.json:
        return partial(_collect, answers, several)
    if options.plain:
        return partial(_write_plain, options.top_k is not None)
    if options.format:
        return partial(_write_transcript, options.format)
    return _Display(options.model, several).show


def _collect(
    answers: list[dict[str, Any]], several: bool, name: str, answer: dict[str, Any]
) -> None:
    answers.append({"source": name, **answer} if several else answer)


class _Display:
    """Print answers for people, and each assumed setting once."""

    def __init__(self, model: str, several: bool) -> None:
        self._model = model
        self._several = several
        self._reported: set[str] = set()

    def show(self, name: str, answer: dict[str, Any]) -> None:
        """Print an answer, under its input's name if there are several."""
        if self._several:
            print(f"{printable(name)}:")
        _print_answer(answer)
        _print_assumed(self._model, answer, self._reported)
        if self._several:
            print(flush=True)


def _write_transcript(form: str, name: str, answer: dict[str, Any]) -> None:
    """Print a transcript as text or subtitles.

    Raises:
        CommandError: the answer is none.
    """
    if answer.get("task") != SPEECH_TO_TEXT:
        raise CommandError(
            f"--format {form} is for transcripts, and {answer.get('model')!r} is not a"
            " speech model; leave it out"
        )
    if form == "text":
        print_text(answer["text"])
        return
    cues = []
    for entry in answer["predictions"]:
        cues.append(Cue(entry["start"], entry["end"], entry["text"]))
    print_text(subtitles(cues, form).rstrip("\n"))


def _write_line(name: str, answer: dict[str, Any]) -> None:
    print(json.dumps({"source": name, **answer}), flush=True)


def _write_plain(show_all: bool, name: str, answer: dict[str, Any]) -> None:
    for line in plain_lines(answer, show_all=show_all):
        print(line, flush=True)


class _TableWriter:
    """Print CSV, with the columns of the first entry."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def write(self, name: str, answer: dict[str, Any]) -> None:
        """Print a line for each entry of an answer."""
        rows: list[dict[str, Any]] = answer["predictions"]
        table = csv.writer(sys.stdout, lineterminator="\n")
        if rows and not self._columns:
            self._columns = list(rows[0])
            table.writerow(["source", *self._columns])
        for row in rows:
            cells = [_csv_cell(row.get(key, "")) for key in self._columns]
            table.writerow([name, *cells])
        sys.stdout.flush()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value)
    return value


def _parameters(options: argparse.Namespace) -> dict[str, str]:
    values = {
        "top_k": options.top_k,
        "threshold": options.threshold,
        "version": options.model_version,
    }
    query = {name: str(value) for name, value in values.items() if value is not None}
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--set takes NAME=VALUE, not {text!r}")
        query[name] = value
    return query


@contextlib.contextmanager
def _open(options: argparse.Namespace) -> Iterator[AskModel]:
    """Yield a function that sends an input to the model.

    All inputs use the same connection, or the same service in this process.
    """
    if options.local:
        with _local(options) as ask:
            yield ask
        return
    if "/" in options.model:
        raise CommandError(
            f"{options.model!r} is not a model's name; `pocketserve models` lists those "
            "of the server, and --local loads a file or folder without one"
        )
    with open_client(options) as client:
        yield partial(_ask_server, client, options)


def _ask_server(
    client: Client,
    options: argparse.Namespace,
    body: bytes,
    query: Mapping[str, str],
) -> InputAnswer:
    if not options.save:
        answer = client.predict(options.model, body, parameters=query)
        return InputAnswer(answer)
    answer = client.predict(options.model, body, parameters=query, annotate="both")
    with reading_answers():
        picture = base64.b64decode(answer.pop("picture"))
    return InputAnswer(answer, picture)


@contextlib.contextmanager
def _local(options: argparse.Namespace) -> Iterator[AskModel]:
    from pocketserve.api import predictions
    from pocketserve.api.messages import ApiRequest

    service, name, version = open_local(options.model, options.models_dir)
    defaults = {} if version is None else {"version": version}
    annotate = {"annotate": "png"} if options.save else {}

    def ask(body: bytes, query: Mapping[str, str]) -> InputAnswer:
        request = ApiRequest(
            path={"model": name},
            query={**defaults, **query, **annotate},
            body=memoryview(body),
        )
        prediction = predictions.ask(service, request)
        return InputAnswer(predictions.document(prediction), prediction.picture)

    try:
        with quiet_frameworks(options):
            yield ask
    finally:
        service.close()


def _print_answer(answer: dict[str, Any]) -> None:
    predictions: list[dict[str, Any]] = answer["predictions"]
    if predictions:
        _print_predictions(predictions)
        if _may_have_logits(answer["task"]) and _are_logits(predictions):
            print(LOGITS_ADVICE)
        _print_timing(answer)
    else:
        print("Nothing scores above the threshold.")
    if "saved" in answer:
        _print_saved(answer["saved"])


def _print_timing(answer: dict[str, Any]) -> None:
    timing = answer["timing_ms"]
    model = printable(f"{answer['model']}/{answer['version']}")
    total = sum(timing.values())
    infer = timing["infer"]
    print()
    print_text(f"{model}: {total:.1f} ms, of which model {infer:.1f} ms")


def _print_saved(path: str) -> None:
    print_text(f"The picture with the answer drawn on it is in {printable(path)}")
    if shutil.which(VIEWER) is not None:
        # Not wrapped, so that the command can be copied.
        print(f"Look at it: {VIEWER} {printable(shlex.quote(path))}")


def _may_have_logits(task: str) -> bool:
    """Return whether a task's scores can become probabilities by an activation.

    Scores of tables are often decision values or distances, which can't.
    """
    return task.endswith("classification") and not task.startswith("tabular")


def _print_assumed(model: str, answer: dict[str, Any], reported: set[str]) -> None:
    """Print the assumed settings of the model, once for all inputs."""
    text = ", ".join(answer.get("assumed", ()))
    if not text or text in reported:
        return
    reported.add(text)
    way = f"to check: pocketserve init {shlex.quote(model)} --try PHOTO"
    print_text(printable(f"Assumed: {text}. No file of the model states it; {way}"))


def _print_predictions(predictions: list[dict[str, Any]]) -> None:
    first = predictions[0]
    omitted: tuple[str, ...] = ("keypoints", "corners", "mask", "mask_box")
    if "label" in first:  # it says more than its number
        omitted = ("index", *omitted)
    keys = [key for key in first if key not in omitted]
    rows = [[_cell(row.get(key)) for key in keys] for row in predictions[:MAX_ROWS]]
    print_table([key.upper() for key in keys], rows)
    if len(predictions) > MAX_ROWS:
        print(f"… {len(predictions) - MAX_ROWS} more; --json prints all")


def _are_logits(predictions: Sequence[dict[str, Any]]) -> bool:
    """Return whether scores of several classes are no probabilities.

    Outlier detectors, with labels -1 and 1, and single classes have other scores.
    """
    labels = {str(entry.get("label")) for entry in predictions}
    classes = {entry.get("index") for entry in predictions}
    if labels <= {"-1", "1"} or len(classes) < 2:
        return False
    return any(map(_is_no_probability, predictions))


def _is_no_probability(entry: dict[str, Any]) -> bool:
    return not -ROUNDING <= entry["score"] <= 1 + ROUNDING


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict) and set(value) == {"x", "y", "width", "height"}:
        return "{x:.0f},{y:.0f} {width:.0f}x{height:.0f}".format(**value)
    text = str(value)
    if len(text) <= 120:
        return text
    return f"{text[:117]}..."
