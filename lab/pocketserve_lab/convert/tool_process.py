"""The process that a tool runs in: ``python -m pocketserve_lab.convert.tool_process request.json``.

It runs in the converter's environment and needs the standard library only. Its result is a file beside the request,
because tools print what they like: ``{"ok", "message", "detail", "nearest", "outcome"}``.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pocketserve.engine.device.processes import bind_to
from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
)

RESULT_NAME = "result.json"
MAX_WORDS = 300


def report(path: Path, work: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> int:
    """Do what a request says, and write the result beside it. Return the exit code: 0 if it is done, else 1.

    Args:
        path: of the request, in JSON.
        work: takes the request; what it returns is added to the result.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    if not bind_to(document["parent"], adopt=True):
        return 1
    try:
        result: dict[str, Any] = {"ok": True, **work(document)}
    except ConversionError as error:
        result = {
            "ok": False,
            "message": error.message,
            "detail": error.detail,
            "nearest": error.nearest,
        }
    except MemoryError:
        result = {
            "ok": False,
            "message": "the model is too large for the memory that is free; convert it on a machine that has more",
        }
    except BaseException as error:  # also SystemExit, by which command-line tools end
        words = " ".join(str(error).split())
        message = f"{type(error).__name__}: {words[:MAX_WORDS]}{' …' if len(words) > MAX_WORDS else ''}"
        result = {"ok": False, "message": message, "detail": traceback.format_exc()}
    path.with_name(RESULT_NAME).write_text(
        json.dumps(result, default=str), encoding="utf-8"
    )
    return 0 if result["ok"] else 1


def _convert(document: Mapping[str, Any]) -> dict[str, Any]:
    request = ConversionRequest.from_json(document["request"])
    outcome: ConversionOutcome = importlib.import_module(document["module"]).convert(
        request
    )
    return {"outcome": dataclasses.asdict(outcome)}


if __name__ == "__main__":
    sys.exit(report(Path(sys.argv[1]), _convert))
