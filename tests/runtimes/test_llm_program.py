"""llama.cpp's own server as an engine: its flags are those that its version knows."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import gguf_files
import stand_in_engine
from pocketserve.runtimes.base import ModelSource, RuntimeMissingError
from pocketserve.runtimes.llm import engines
from pocketserve.runtimes.llm.flags import flags_of, program_arguments
from pocketserve.runtimes.llm.session import RUNTIME, LlmSession
from pocketserve.runtimes.llm.settings import CHAT, EngineSettings

WAIT_S = 120.0
SETTINGS = EngineSettings(
    "p",
    "m.gguf",
    "e.sock",
    "model",
    512,
    "f16",
    2,
)


@pytest.fixture(autouse=True)
def _without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is used where the package isn't installed."""
    monkeypatch.setattr(engines, "PACKAGE", "no_such_package")


def open_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LlmSession:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return RUNTIME.open(ModelSource(gguf_files.write_tiny(tmp_path / "m.gguf")))


@pytest.mark.parametrize(
    "known", [stand_in_engine.NEW_FLAGS, stand_in_engine.OLD_FLAGS]
)
def test_new_and_old_versions_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: tuple[str, ...]
) -> None:
    stand_in_engine.write(tmp_path / "bin", known)
    session = open_session(tmp_path, monkeypatch)
    try:
        session.try_out()
        body = {"messages": [{"role": "user", "content": "Hello"}]}
        with session.stream(CHAT, body, time.monotonic() + WAIT_S) as events:
            pieces = []
            for event in events:
                for choice in event["choices"]:
                    pieces.append(choice["delta"].get("content", ""))
        assert "".join(pieces) == "".join(stand_in_engine.WORDS)
    finally:
        session.close()


def test_a_version_without_a_required_flag_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_engine.write(tmp_path / "bin", ("--model", "--ctx-size"))
    with pytest.raises(RuntimeMissingError, match="know --host; install a newer"):
        open_session(tmp_path, monkeypatch)


def test_flags_are_read_again_after_an_upgrade(tmp_path: Path) -> None:
    program = stand_in_engine.write(tmp_path / "bin", stand_in_engine.OLD_FLAGS)
    os.utime(program, ns=(1, 1))
    assert "--no-ui" not in flags_of(str(program))
    stand_in_engine.write(tmp_path / "bin")
    assert "--no-ui" in flags_of(str(program))


def test_a_program_that_does_not_start_is_named(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o700)
    with pytest.raises(RuntimeMissingError, match="--help failed"):
        flags_of(str(program))


def test_a_compressed_cache_needs_its_flag() -> None:
    known = frozenset(stand_in_engine.OLD_FLAGS)
    assert "--cache-type-k" not in program_arguments(SETTINGS, known)
    compressed = EngineSettings(
        "p",
        "m.gguf",
        "e.sock",
        "model",
        512,
        "q8_0",
        2,
    )
    with pytest.raises(RuntimeMissingError, match="--cache-type-k"):
        program_arguments(compressed, known)
