"""Provide a handwritten digit and servers for other people's clients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from conftest import MODELS, ROOT, Server, start_server

# A zero in 16 grey levels: the first picture of scikit-learn's digits.
PIXELS = (
    (0, 0, 5, 13, 9, 1, 0, 0),
    (0, 0, 13, 15, 10, 15, 5, 0),
    (0, 3, 15, 2, 0, 11, 8, 0),
    (0, 4, 12, 0, 0, 8, 8, 0),
    (0, 5, 8, 0, 0, 9, 8, 0),
    (0, 4, 11, 0, 1, 12, 7, 0),
    (0, 2, 14, 5, 10, 12, 0, 0),
    (0, 0, 6, 13, 10, 0, 0, 0),
)


@pytest.fixture(scope="session")
def digit() -> npt.NDArray[np.float32]:
    """Return the zero as the digits model's input: FP32 [1, 8, 8, 1]."""
    return (np.array(PIXELS, np.float32) / 16).reshape(1, 8, 8, 1)


@pytest.fixture(scope="session")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server without a token on the embedded models."""
    running = start_server(tmp_path_factory.mktemp("open-server"), MODELS, "--no-auth")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def odd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on the TFLite fixtures: several inputs and outputs, unusual
    datatypes.
    """
    running = start_server(
        tmp_path_factory.mktemp("odd-server"), ROOT / "tests" / "runtimes" / "data"
    )
    yield running
    assert running.stop() == 0
