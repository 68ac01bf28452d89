"""The process that a tool runs in: ``python -m pocketserve.convert.tool_process request.json``.

It runs in the converter's environment and needs the standard library only. Its result is a file beside the request,
because tools print what they like: ``{"ok", "message", "detail", "nearest", "outcome"}``.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from pocketserve.convert.converter import ConversionError, ConversionOutcome, ConversionRequest

RESULT_NAME = "result.json"


def main(path: Path) -> int:
    """Run one conversion; the file names the tool's module. Return the exit code: 0 if it is done, else 1."""
    document = json.loads(path.read_text(encoding="utf-8"))
    try:
        request = ConversionRequest.from_json(json.dumps(document["request"]))
        outcome: ConversionOutcome = importlib.import_module(document["module"]).convert(request)
        result: dict[str, Any] = {"ok": True, "outcome": dataclasses.asdict(outcome)}
    except ConversionError as error:
        result = {"ok": False, "message": error.message, "detail": error.detail, "nearest": error.nearest}
    except MemoryError:
        result = {"ok": False, "message": "the model is too large for the memory that the converter may take"}
    except BaseException as error:  # also SystemExit, by which command-line tools end
        words = " ".join(str(error).split())
        result = {"ok": False, "message": f"{type(error).__name__}: {words:.300}", "detail": traceback.format_exc()}
    path.with_name(RESULT_NAME).write_text(json.dumps(result, default=str), encoding="utf-8")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
