"""``pocketserve predict``: asks a model, once or for each of many inputs."""

from __future__ import annotations

import argparse
import base64
import contextlib
import csv
import itertools
import json
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pocketserve.cli.raw_inputs import InputError, NamedInput, read_inputs
from pocketserve.terminal.connection import (
    add_connection_options,
    open_client,
    reading_answers,
)
from pocketserve.terminal.errors import EXIT_DONE, EXIT_FAILED, CommandError
from pocketserve.terminal.local import open_local, quiet_frameworks
from pocketserve.terminal.output import print_json, print_table, print_text, printable
from pocketserve.terminal.progress import Progress

Ask = Callable[[bytes, Mapping[str, str]], tuple[dict[str, Any], bytes | None]]

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
"""Codes of errors that another input may not have."""

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".avif")
VIEWER = "termux-open"  # of termux-tools, which every Termux has
MAX_STEM = 100  # characters of an input's name in that of its picture
MAX_ROWS = 50
ROUNDING = 1e-3  # of a probability, in half precision
LOGITS_ADVICE = (
    "\nThese scores are no probabilities. If the model gives logits, write into its model.toml:\n"
    '  [classification]\n  activation = "softmax"'
)


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "predict",
        help="ask a model: pictures, sounds, texts, JSON or .npy files, numbers, a sentence, or - for standard input",
        description="Asks a running server, or with --local loads the model in this process.",
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a model's name; with --local also a model file"
    )
    parser.add_argument(
        "input",
        nargs="+",
        metavar="INPUT",
        help="files, folders, patterns in quotes and addresses of pictures; or numbers, a sentence in quotes, or - for "
        "standard input",
    )
    parser.add_argument(
        "--pair",
        action="store_true",
        help="the inputs are two texts that the model reads together",
    )
    parser.add_argument(
        "--version", dest="model_version", metavar="NAME", help="the version to ask"
    )
    parser.add_argument(
        "--top-k", type=int, metavar="N", help="entries of the answer at most"
    )
    parser.add_argument(
        "--threshold", type=float, metavar="SCORE", help="lowest score to show"
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="PNG|DIR",
        help="save the picture with the answer drawn on it, or all in a folder",
    )
    parser.add_argument(
        "--sequence",
        action="store_true",
        help="the inputs are steps: a model with a memory goes on",
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
        help="print the whole answer as JSON, of several inputs a list",
    )
    formats.add_argument(
        "--jsonl",
        action="store_true",
        help="print a line of JSON for each input, as soon as it is there",
    )
    formats.add_argument(
        "--csv",
        action="store_true",
        help="print a line of CSV for each entry of the answers",
    )
    add_connection_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Ask and print; what is wrong with one input of several is said, and the others are asked all the same."""
    inputs, query = _inputs(options), _parameters(options)
    several = len(inputs) > 1
    folder = _picture_folder(options.save, several)
    answers: list[dict[str, Any]] = []
    write = _writer(options, several, answers)
    sequence = Steps(len(inputs)) if options.sequence else None
    saved: list[Path] = []
    failures = 0
    with _open(options) as ask:
        for source in inputs:
            try:
                content, marks = source.read(), sequence.next() if sequence else {}
                with Progress().waiting(
                    f"waiting for {options.model}, which may be loading"
                ):
                    answer, picture = ask(content, {**query, **marks})
            except Exception as error:
                if not several or not _is_about_input(error):
                    raise _with_file(error, source) from None
                failures += 1
                reason = getattr(error, "strerror", None) or str(error)
                print(
                    f"pocketserve: {printable(f'{source.name}: {reason}')}",
                    file=sys.stderr,
                )
                if options.json or options.jsonl:
                    write(source.name, {"error": reason})
                continue
            if sequence:
                sequence.is_open = True
            if picture is not None:
                saved.append(
                    options.save
                    if folder is None
                    else _picture_path(folder, source.name, saved)
                )
                answer["saved"] = _save(picture, saved[-1])
            with reading_answers():
                write(source.name, answer)
    if options.json:
        print_json(answers if several else answers[0])
    return EXIT_FAILED if failures else EXIT_DONE


def _inputs(options: argparse.Namespace) -> list[NamedInput]:
    """Return the inputs; with ``--pair`` the two texts as one.

    Raises:
        CommandError: the words are no input, or ``--pair`` has others than two.
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
    """The marks of a sequence whose steps are the inputs: the first that succeeds opens it, the last one closes it."""

    left: int
    is_open: bool = False
    id: str = field(default_factory=lambda: f"predict-{secrets.token_hex(8)}")

    def next(self) -> dict[str, str]:
        """Return the query parameters of the next step."""
        self.left -= 1
        flags = {"sequence_start": not self.is_open, "sequence_end": not self.left}
        return {
            "sequence_id": self.id,
            **{name: "true" for name, value in flags.items() if value},
        }


def _picture_folder(save: Path | None, several: bool) -> Path | None:
    """Return the folder for drawn pictures, made where it is missing; None for the path of one, or none at all."""
    if save is None or not (several or save.is_dir()):
        return None
    if save.suffix.lower() in PICTURES and not save.is_dir():
        raise CommandError(
            f"{str(save)!r} is the name of one picture, and there are several; name a folder for them"
        )
    try:
        save.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"{str(save)!r} cannot be a folder for pictures: {error.strerror}; name another"
        ) from None
    return save


def _picture_path(folder: Path, name: str, saved: Sequence[Path]) -> Path:
    """Return a path for the picture that was drawn of an input: not that of another one of this run."""
    stem = re.sub(r"[^\w.-]+", "_", Path(name.partition("?")[0]).stem)[-MAX_STEM:]
    paths = (
        folder / f"{stem}.answer{number or ''}.png" for number in itertools.count()
    )
    return next(path for path in paths if path not in saved)


def _save(picture: bytes, target: Path) -> str:
    try:
        target.write_bytes(picture)
    except OSError as error:
        raise CommandError(
            f"{str(target)!r} cannot be saved: {error.strerror}; name another file"
        ) from None
    return str(target)


def _is_about_input(error: Exception) -> bool:
    """Return whether other inputs may fare better."""
    code = getattr(error, "code", "")
    return (
        isinstance(error, InputError | OSError)
        or getattr(code, "name", code) in ABOUT_INPUT
    )


def _with_file(error: Exception, source: NamedInput) -> Exception:
    """Return an error that names the file that it is about."""
    is_unnamed = _is_about_input(error) and not isinstance(error, InputError | OSError)
    return (
        CommandError(f"{source.name}: {error}")
        if source.is_file and is_unnamed
        else error
    )


def _writer(
    options: argparse.Namespace, several: bool, answers: list[dict[str, Any]]
) -> Callable[[str, dict[str, Any]], None]:
    """Return what prints the answer to an input, or its error; for one JSON document, what adds it to ``answers``."""
    columns: list[str] = []
    reported: set[str] = set()

    def collect(name: str, answer: dict[str, Any]) -> None:
        answers.append({"source": name, **answer} if several else answer)

    def write_line(name: str, answer: dict[str, Any]) -> None:
        print(json.dumps({"source": name, **answer}), flush=True)

    def write_rows(name: str, answer: dict[str, Any]) -> None:
        rows: list[dict[str, Any]] = answer["predictions"]
        table = csv.writer(sys.stdout, lineterminator="\n")
        if rows and not columns:
            columns.extend(rows[0])
            table.writerow(["source", *columns])
        for row in rows:
            values = [row.get(key, "") for key in columns]
            table.writerow(
                [
                    name,
                    *(
                        json.dumps(v) if isinstance(v, dict | list) else v
                        for v in values
                    ),
                ]
            )
        sys.stdout.flush()

    def show(name: str, answer: dict[str, Any]) -> None:
        if several:
            print(f"{printable(name)}:")
        _print_answer(answer)
        _print_assumed(options.model, answer, reported)
        if several:
            print(flush=True)

    return (
        collect
        if options.json
        else write_line
        if options.jsonl
        else write_rows
        if options.csv
        else show
    )


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
def _open(options: argparse.Namespace) -> Iterator[Ask]:
    """Yield what asks the model, with the answer and, for ``--save``, the picture with the answer drawn on it.

    One connection, or one service of this process, answers all inputs.
    """
    if options.local:
        with _local(options) as ask:
            yield ask
        return
    if "/" in options.model:
        raise CommandError(
            f"{options.model!r} is no model's name; `pocketserve models` lists those of the server, and --local loads "
            "a file or folder without one"
        )
    with open_client(options) as client:

        def ask(
            body: bytes, query: Mapping[str, str]
        ) -> tuple[dict[str, Any], bytes | None]:
            if not options.save:
                return client.predict(options.model, body, parameters=query), None
            answer = client.predict(
                options.model, body, parameters=query, annotate="both"
            )
            with reading_answers():
                return answer, base64.b64decode(answer.pop("picture"))

        yield ask


@contextlib.contextmanager
def _local(options: argparse.Namespace) -> Iterator[Ask]:
    from pocketserve.api import predictions
    from pocketserve.api.messages import ApiRequest

    service, name, version = open_local(options.model, options.models_dir)
    own = {} if version is None else {"version": version}
    drawn = {"annotate": "png"} if options.save else {}

    def ask(
        body: bytes, query: Mapping[str, str]
    ) -> tuple[dict[str, Any], bytes | None]:
        request = ApiRequest(
            path={"model": name}, query={**own, **query, **drawn}, body=memoryview(body)
        )
        prediction = predictions.ask(service, request)
        return predictions.document(prediction), prediction.picture

    try:
        with quiet_frameworks(options):
            yield ask
    finally:
        service.close()


def _print_answer(answer: dict[str, Any]) -> None:
    predictions: list[dict[str, Any]] = answer["predictions"]
    if predictions:
        _print_predictions(predictions)
        # Scores of tables are often decision values or distances, which no activation makes probabilities.
        may_be_logits = answer["task"].endswith("classification") and not answer[
            "task"
        ].startswith("tabular")
        if may_be_logits and _are_logits(predictions):
            print(LOGITS_ADVICE)
        timing = answer["timing_ms"]
        model = printable(f"{answer['model']}/{answer['version']}")
        print()
        print_text(
            f"{model}: {sum(timing.values()):.1f} ms, of which model {timing['infer']:.1f} ms"
        )
    else:
        print("Nothing scores above the threshold.")
    if "saved" in answer:
        print_text(
            f"The picture with the answer drawn on it is in {printable(answer['saved'])}"
        )
        if (
            shutil.which(VIEWER) is not None
        ):  # a command is one line, so that it can be copied
            print(f"Look at it: {VIEWER} {printable(shlex.quote(answer['saved']))}")


def _print_assumed(model: str, answer: dict[str, Any], reported: set[str]) -> None:
    """Print the settings that no file of the model states, once for all inputs."""
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

    The score of an outlier detector, whose labels are -1 and 1, or of one class alone means something else.
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
    return text if len(text) <= 120 else f"{text[:117]}..."
