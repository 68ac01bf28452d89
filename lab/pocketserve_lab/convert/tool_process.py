"""The process that a tool runs in: ``python -m pocketserve_lab.convert.tool_process request.json``.

It runs in the converter's environment and needs the standard library only. Its result
is a file beside the request, because tools print to standard output:
``{"ok", "message", "detail", "nearest", "outcome"}``.
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
    """Process a request and write the result beside it.

    The code is 0 for success, else 1.

    Args:
        path: of the request, in JSON.
        work: takes the request; its return value is added to the result.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    if not bind_to(document["parent"], adopt=True):
        return 1
    result: dict[str, Any] = {"ok": False}
    try:
        result.update(work(document))
        result["ok"] = True
    except ConversionError as error:
        result["message"] = error.message
        result["detail"] = error.detail
        result["nearest"] = error.nearest
    except MemoryError:
        result["message"] = (
            "the model is too large for the memory that is free; convert it on a "
            "machine that has more"
        )
    # Also SystemExit, by which command-line tools end.
    except BaseException as error:
        text = " ".join(str(error).split())
        if len(text) > MAX_WORDS:
            text = f"{text[:MAX_WORDS]} …"
        result["message"] = f"{type(error).__name__}: {text}"
        result["detail"] = traceback.format_exc()
    content = json.dumps(result, default=str)
    path.with_name(RESULT_NAME).write_text(content, encoding="utf-8")
    return 0 if result["ok"] else 1


def _convert(document: Mapping[str, Any]) -> dict[str, Any]:
    request = ConversionRequest.from_json(document["request"])
    tool = importlib.import_module(document["module"])
    outcome: ConversionOutcome = tool.convert(request)
    return {"outcome": dataclasses.asdict(outcome)}


if __name__ == "__main__":
    sys.exit(report(Path(sys.argv[1]), _convert))
