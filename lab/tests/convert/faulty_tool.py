"""Copy a TFLite model, or fail in the way that the option ``fault`` names."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
)


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Copy the source, or fail."""
    fault = request.options.get("fault") or os.environ.get("FAULT", "")
    print(f"the tool's own words on {fault}", flush=True)
    if fault == "crash":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "noise":
        for _ in range(64):
            print("x" * (1 << 20))
        # A line may be lost while the log is truncated.
        while True:
            print("the last words", flush=True)
            time.sleep(0.2)
    if fault == "left behind":  # by a child that has ended, in a session of its own
        code = (
            "import subprocess, sys; print(subprocess.Popen(['sleep', "
            "'600'], stdout=-3, start_new_session=True).pid)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True
        )
        request.output.write_bytes(done.stdout)
        signal.pause()
    if fault == "children hang":
        children = [
            subprocess.Popen(["sleep", "600"], start_new_session=own)
            for own in (False, True)
        ]
        Path(os.environ["PIDS"]).write_text(
            " ".join(str(pid) for pid in (os.getpid(), *(c.pid for c in children)))
            + "."
        )
        signal.pause()
    if fault == "hang":
        signal.pause()
    if fault == "memory":
        held = bytearray(400 << 20)
        held[::4096] = b"x" * len(held[::4096])
        signal.pause()
    if fault == "memory of a child":
        code = "import signal; held = bytearray(b'x') * (400 << 20); signal.pause()"
        start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}], start_new_session=True)"
        subprocess.run([sys.executable, "-c", start], check=True)
        signal.pause()
    if fault == "too much at once":
        bytearray(1 << 60)
    if fault == "count":
        with open(str(request.options["runs"]), "a", encoding="utf-8") as runs:
            runs.write(f"{request.format}\n")
    if fault == "exit":
        os._exit(3)
    if fault == "system exit":
        sys.exit("wrong usage")
    if fault == "refusal":
        raise ConversionError(
            "the operator odd::op of layer conv1 is unknown",
            detail="a trace",
            nearest="--to onnx",
        )
    if fault == "exception":
        raise RuntimeError("it is\nbroken")
    if fault == "full disk":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (512, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        )
        try:
            shutil.copyfile(request.source, request.output)
        finally:
            resource.setrlimit(
                resource.RLIMIT_FSIZE,
                (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2,
            )
    if fault == "nothing":
        return ConversionOutcome("faulty", "1")
    content = request.source.read_bytes()
    if fault == "empty":
        content = b""
    if fault == "not a model":
        content = b"\x1c\0\0\0TFL3" + b"garbage" * 100
    if fault == "other weights":
        weights = bytes.fromhex(str(request.options["weights"]))
        assert content.count(weights) == 1
        content = content.replace(weights, bytes(len(weights)))
    if fault == "refusal of the second step" and request.format == "onnx":
        raise ConversionError(f"{request.title} has an operator odd::op")
    request.output.write_bytes(content)
    before = 0 if fault == "as large" else 2 * len(content)
    return ConversionOutcome("faulty", "1", notes=("it is a copy",), float_bytes=before)
