"""A public speech model, and a talk, made once for all files of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketserve.tensors import Array
from public_speech import Opened, synthetic_talk
from whisper_public import write_public_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_public_model(tmp_path_factory.mktemp("models") / "whisper")


@pytest.fixture(scope="session")
def model(folder: Path) -> Opened:
    return Opened(folder)


@pytest.fixture(scope="session")
def talk() -> Array:
    return synthetic_talk()
