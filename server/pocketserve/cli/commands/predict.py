"""``pocketserve predict``: asks a model one thing."""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pocketserve.cli import CommandError
from pocketserve.cli.connection import add_connection_options, open_client, reading_answers
from pocketserve.cli.local import open_local
from pocketserve.cli.output import print_json, print_table, printable

MAX_ROWS = 50
ROUNDING = 1e-3  # of a probability, in half precision
LOGITS_ADVICE = (
    "\nThese scores are no probabilities. If the model gives logits, write into its model.toml:\n"
    '  [classification]\n  activation = "softmax"'
)
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")  # several such words are fractions, not twice as many numbers


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "predict",
        help="ask a model: a picture, sound, text, JSON or .npy file, numbers, a sentence, or - for standard input",
        description="Asks a running server, or with --local loads the model in this process.",
    )
    parser.add_argument("model", metavar="MODEL", help="a model's name; with --local also a model file")
    parser.add_argument(
        "input", nargs="+", metavar="INPUT", help="a file, numbers, a sentence in quotes, or - for standard input"
    )
    parser.add_argument("--version", dest="model_version", metavar="NAME", help="the version to ask")
    parser.add_argument("--top-k", type=int, metavar="N", help="entries of the answer at most")
    parser.add_argument("--threshold", type=float, metavar="SCORE", help="lowest score to show")
    parser.add_argument("--save", type=Path, metavar="PNG", help="save the picture with the answer drawn on it")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another parameter of the model's task, such as language=de or iou=0.4",
    )
    parser.add_argument("--local", action="store_true", help="load the model in this process; no server is needed")
    parser.add_argument("--models-dir", metavar="DIR", help="with --local: the folder that holds MODEL")
    parser.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    add_connection_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Ask and print."""
    body = read_input(options.input)
    if options.save is not None and options.save.is_dir():
        raise CommandError(f"{str(options.save)!r} is a folder; name the file to save to")
    answer, picture = _ask_local(options, body) if options.local else _ask_server(options, body)
    if picture is not None:
        try:
            options.save.write_bytes(picture)
        except OSError as error:
            text = f"{str(options.save)!r} cannot be saved: {error.strerror}; name another file"
            raise CommandError(text) from None
        answer["saved"] = str(options.save)
    if options.json:
        print_json(answer)
    else:
        with reading_answers():
            _print_answer(answer)
    return 0


def read_input(words: Sequence[str]) -> bytes:
    """Return the bytes to send: standard input, a file's content, numbers as a JSON array, or a text in quotes."""
    if list(words) == ["-"]:
        if sys.stdin is None:
            raise CommandError("standard input is closed; name a file")
        return sys.stdin.buffer.read()
    if not any(words):
        raise CommandError("the input is empty; name a file, numbers, or a sentence in quotes")
    if len(words) == 1 and os.path.isfile(words[0]):
        return Path(words[0]).read_bytes()
    text = ",".join(words).strip()
    if text.startswith(("[", "{")):
        return text.encode()
    if len(words) == 1 and _is_sentence(text):
        return words[0].encode()
    for word in words:
        if os.path.lexists(word):
            fault = "is a folder; name a file" if os.path.isdir(word) else "is a file, but one is asked at a time"
            raise CommandError(f"{word!r} {fault}")
    parts = " ".join(words).split()
    if len(parts) > 1 and all(DECIMAL_COMMA.fullmatch(part) for part in parts):
        raise CommandError(
            f"{parts[0]!r} is a decimal comma or two numbers: write {parts[0].replace(',', '.')} for the one, and "
            f"{parts[0].replace(',', ' ')} for the other"
        )
    numbers = [_number(word) for word in text.replace(",", " ").split()]
    return json.dumps(numbers).encode()


def _is_sentence(text: str) -> bool:
    """Return whether an argument is a text of several words: no number, and no list of numbers."""
    try:
        list(map(_number, text.replace(",", " ").split()))
    except CommandError:
        return len(text.split()) > 1
    return False


def _number(word: str) -> int | float:
    for kind in (int, float):
        if "_" not in word:  # Python's own spelling of numbers, nobody else's
            with contextlib.suppress(ValueError):
                number = kind(word)
                if math.isinf(number) and "inf" not in word.lower():
                    raise CommandError(f"{word!r} is too large for a number")
                return number
    raise CommandError(f"{word!r} is neither a file nor a number")


def _parameters(options: argparse.Namespace) -> dict[str, str]:
    values = {"top_k": options.top_k, "threshold": options.threshold, "version": options.model_version}
    query = {name: str(value) for name, value in values.items() if value is not None}
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--set takes NAME=VALUE, not {text!r}")
        query[name] = value
    return query


def _ask_server(options: argparse.Namespace, body: bytes) -> tuple[dict[str, Any], bytes | None]:
    """Return the answer, and with ``--save`` the picture with the answer drawn on it."""
    query = _parameters(options)
    if "/" in options.model:
        raise CommandError(
            f"{options.model!r} is no model's name; `pocketserve models` lists those of the server, and --local loads "
            "a file or folder without one"
        )
    with open_client(options) as client:
        if not options.save:
            return client.predict(options.model, body, parameters=query), None
        answer = client.predict(options.model, body, parameters=query, annotate="both")
    with reading_answers():
        return answer, base64.b64decode(answer.pop("picture"))


def _ask_local(options: argparse.Namespace, body: bytes) -> tuple[dict[str, Any], bytes | None]:
    from pocketserve.api import predictions
    from pocketserve.api.messages import ApiRequest

    query = _parameters(options)
    service, name, version = open_local(options.model, options.models_dir)
    if version is not None:
        query.setdefault("version", version)
    if options.save:
        query["annotate"] = "png"
    try:
        prediction = predictions.ask(service, ApiRequest(path={"model": name}, query=query, body=memoryview(body)))
        return predictions.document(prediction), prediction.picture
    finally:
        service.close()


def _print_answer(answer: dict[str, Any]) -> None:
    predictions: list[dict[str, Any]] = answer["predictions"]
    if predictions:
        _print_predictions(predictions)
        if answer["task"].endswith("classification") and any(map(_is_no_probability, predictions)):
            print(LOGITS_ADVICE)
        timing = answer["timing_ms"]
        model = printable(f"{answer['model']}/{answer['version']}")
        print(f"\n{model}: {sum(timing.values()):.1f} ms, of which model {timing['infer']:.1f} ms")
    else:
        print("Nothing scores above the threshold.")
    if "saved" in answer:
        print(f"The picture with the answer drawn on it is in {printable(answer['saved'])}")


def _print_predictions(predictions: list[dict[str, Any]]) -> None:
    first = predictions[0]
    omitted = ("index", "keypoints") if "label" in first else ("keypoints",)  # a label says more than its number
    keys = [key for key in first if key not in omitted]
    rows = [[_cell(row.get(key)) for key in keys] for row in predictions[:MAX_ROWS]]
    print_table([key.upper() for key in keys], rows)
    if len(predictions) > MAX_ROWS:
        print(f"… {len(predictions) - MAX_ROWS} more; --json prints all")


def _is_no_probability(entry: dict[str, Any]) -> bool:
    return not -ROUNDING <= entry["score"] <= 1 + ROUNDING


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict) and set(value) == {"x", "y", "width", "height"}:
        return "{x:.0f},{y:.0f} {width:.0f}x{height:.0f}".format(**value)
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
