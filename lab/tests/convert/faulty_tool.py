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


def end_process(fault: str) -> None:
    """End the process if the fault demands it."""
    if fault == "crash":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "exit":
        os._exit(3)
    if fault == "system exit":
        sys.exit("wrong usage")


def print_without_end() -> None:
    """Print more than a log keeps, then the same line for ever."""
    for _ in range(64):
        print("x" * (1 << 20))
    # A line may be lost while the log is truncated.
    while True:
        print("the last words", flush=True)
        time.sleep(0.2)


def leave_process_behind(output: Path) -> None:
    """Start a process in its own session by a child that has ended, then hang."""
    code = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', "
        "'600'], stdout=-3, start_new_session=True).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True
    )
    output.write_bytes(done.stdout)
    signal.pause()


def hang_with_children() -> None:
    """Start children in both kinds of session, write all process ids, then hang."""
    ids = [os.getpid()]
    for own_session in (False, True):
        child = subprocess.Popen(["sleep", "600"], start_new_session=own_session)
        ids.append(child.pid)
    text = " ".join(str(pid) for pid in ids)
    Path(os.environ["PIDS"]).write_text(f"{text}.")
    signal.pause()


def take_memory() -> None:
    """Use 400 MiB, then hang."""
    held = bytearray(400 << 20)
    held[::4096] = b"x" * len(held[::4096])
    signal.pause()


def take_memory_in_a_child() -> None:
    """Let an orphan in its own session use 400 MiB, then hang."""
    code = "import signal; held = bytearray(b'x') * (400 << 20); signal.pause()"
    start = (
        "import subprocess, sys; "
        f"subprocess.Popen([sys.executable, '-c', {code!r}], start_new_session=True)"
    )
    subprocess.run([sys.executable, "-c", start], check=True)
    signal.pause()


def hang(fault: str, output: Path) -> None:
    """Hang in the way that the fault demands."""
    if fault == "noise":
        print_without_end()
    if fault == "left behind":
        leave_process_behind(output)
    if fault == "children hang":
        hang_with_children()
    if fault == "hang":
        signal.pause()
    if fault == "memory":
        take_memory()
    if fault == "memory of a child":
        take_memory_in_a_child()


def raise_error(fault: str, request: ConversionRequest) -> None:
    """Raise the error that the fault demands."""
    if fault == "too much at once":
        bytearray(1 << 60)
    if fault == "refusal":
        raise ConversionError(
            "the operator odd::op of layer conv1 is unknown",
            detail="a trace",
            nearest="--to onnx",
        )
    if fault == "exception":
        raise RuntimeError("it is\nbroken")
    if fault == "full disk":
        copy_to_full_disk(request)
    if fault == "refusal of the second step" and request.format == "onnx":
        raise ConversionError(f"{request.title} has an operator odd::op")


def copy_to_full_disk(request: ConversionRequest) -> None:
    """Copy the source while files are limited to 512 bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        shutil.copyfile(request.source, request.output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def changed_content(fault: str, request: ConversionRequest) -> bytes:
    """Return the source's content, changed if the fault demands it."""
    content = request.source.read_bytes()
    if fault == "empty":
        return b""
    if fault == "not a model":
        return b"\x1c\0\0\0TFL3" + b"garbage" * 100
    if fault == "other weights":
        weights = bytes.fromhex(str(request.options["weights"]))
        assert content.count(weights) == 1
        return content.replace(weights, bytes(len(weights)))
    return content


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Copy the source, or fail."""
    fault = str(request.options.get("fault") or os.environ.get("FAULT", ""))
    print(f"the tool's own words on {fault}", flush=True)
    if fault == "count":
        with open(str(request.options["runs"]), "a", encoding="utf-8") as runs:
            runs.write(f"{request.format}\n")
    end_process(fault)
    hang(fault, request.output)
    raise_error(fault, request)
    if fault == "nothing":
        return ConversionOutcome("faulty", "1")
    content = changed_content(fault, request)
    request.output.write_bytes(content)
    before = 2 * len(content)
    if fault == "as large":
        before = 0
    return ConversionOutcome("faulty", "1", notes=("it is a copy",), float_bytes=before)
