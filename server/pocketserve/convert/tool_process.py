"""The process that a tool runs in: ``python -m pocketserve.convert.tool_process request.json``.

It runs in the converter's environment and needs the standard library only. Its result is a file beside the request,
because tools print what they like: ``{"ok", "message", "detail", "nearest", "outcome"}``.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pocketserve.convert.converter import ConversionError, ConversionOutcome, ConversionRequest

RESULT_NAME = "result.json"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MAX_WORDS = 300


def report(path: Path, work: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> int:
    """Do what a request says, and write the result beside it. Return the exit code: 0 if it is done, else 1.

    Args:
        path: of the request, in JSON.
        work: takes the request; what it returns is added to the result.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    _end_with(document.get("parent"))
    try:
        result: dict[str, Any] = {"ok": True, **work(document)}
    except ConversionError as error:
        result = {"ok": False, "message": error.message, "detail": error.detail, "nearest": error.nearest}
    except MemoryError:
        result = {"ok": False, "message": "the model is too large for the memory that its conversion may take"}
    except BaseException as error:  # also SystemExit, by which command-line tools end
        words = " ".join(str(error).split())
        message = f"{type(error).__name__}: {words[:MAX_WORDS]}{' …' if len(words) > MAX_WORDS else ''}"
        result = {"ok": False, "message": message, "detail": traceback.format_exc()}
    path.with_name(RESULT_NAME).write_text(json.dumps(result, default=str), encoding="utf-8")
    return 0 if result["ok"] else 1


def _end_with(parent: object) -> None:
    """End this process with the command that started it, even if that is ended by signal 9 (Linux and Android)."""
    if parent is None or sys.platform not in ("linux", "android"):
        return
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what a child leaves behind is still found, and ended, as ours
    if os.getppid() != parent:
        sys.exit(1)


def _convert(document: Mapping[str, Any]) -> dict[str, Any]:
    request = ConversionRequest.from_json(document["request"])
    outcome: ConversionOutcome = importlib.import_module(document["module"]).convert(request)
    return {"outcome": dataclasses.asdict(outcome)}


if __name__ == "__main__":
    sys.exit(report(Path(sys.argv[1]), _convert))
