"""The flags of llama.cpp's server, whose names differ between its versions."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from typing import Final, NamedTuple

from pocketserve.runtimes.base import RuntimeMissingError
from pocketserve.runtimes.llm.settings import EngineSettings

HELP_TIMEOUT_S: Final = 30.0
_FLAG: Final = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_NO_VALUE: Final = ""


class Flag(NamedTuple):
    """A flag and its value.

    Attributes:
        names: in the order of preference; versions know one of them.
        value: empty for a switch.
        required: without it, the engine can't be used.
    """

    names: tuple[str, ...]
    value: str
    required: bool = False


@functools.lru_cache(8)
def _flags_of(program: str, modified_ns: int) -> frozenset[str]:
    environment = {}
    for name, value in os.environ.items():
        if not name.startswith(("LLAMA_", "POCKETSERVE_TOKEN", "HF_TOKEN")):
            environment[name] = value
    try:
        completed = subprocess.run(
            [program, "--help"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=HELP_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeMissingError(f"{program} --help failed: {error}") from error
    return frozenset(_FLAG.findall(completed.stdout.decode("utf-8", errors="replace")))


def flags_of(program: str) -> frozenset[str]:
    """Return the flags that a program lists in its help; asked once per version.

    Raises:
        RuntimeMissingError: it can't be started.
    """
    return _flags_of(program, os.stat(program).st_mtime_ns)


def program_arguments(settings: EngineSettings, supported: frozenset[str]) -> list[str]:
    """Return the command line of llama.cpp's server.

    Args:
        supported: the flags that it knows.

    Raises:
        RuntimeMissingError: it lacks a required flag.
    """
    arguments = [settings.program]
    for flag in _flags(settings):
        name = next((name for name in flag.names if name in supported), None)
        if name is not None:
            arguments.append(name)
            if flag.value != _NO_VALUE:
                arguments.append(flag.value)
        elif flag.required:
            raise RuntimeMissingError(
                f"{settings.program} doesn't know {flag.names[0]}; install a newer"
                " llama.cpp (in Termux: pkg upgrade llama-cpp)"
            )
    return arguments


def _flags(settings: EngineSettings) -> list[Flag]:
    flags = [
        Flag(("--model",), settings.model, required=True),
        Flag(("--alias",), settings.alias),
        Flag(("--host",), settings.socket, required=True),
        Flag(("--ctx-size",), str(settings.context), required=True),
        Flag(("--parallel",), "1", required=True),
        Flag(("--batch-size",), str(settings.batch), required=True),
        Flag(("--ubatch-size",), str(settings.batch), required=True),
        Flag(("--threads",), str(settings.threads), required=True),
        Flag(("--threads-batch",), str(settings.threads)),
        Flag(("--threads-http",), str(settings.http_threads)),
        Flag(("--cache-type-k",), settings.cache, required=settings.cache != "f16"),
        Flag(("--cache-type-v",), settings.cache, required=settings.cache != "f16"),
        Flag(("--cache-ram",), "0"),
        Flag(("--fit",), "off"),
        Flag(("--gpu-layers", "--n-gpu-layers"), "0"),
        Flag(("--jinja",), _NO_VALUE),
        Flag(("--offline",), _NO_VALUE),
        Flag(("--no-ui", "--no-webui"), _NO_VALUE),
        Flag(("--no-slots",), _NO_VALUE),
    ]
    if settings.pooling:
        embedding = ("--embedding", "--embeddings")
        flags.append(Flag(embedding, _NO_VALUE, required=True))
        flags.append(Flag(("--pooling",), settings.pooling, required=True))
    return flags
