"""Run PyTorch models with their session's number of threads on any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import numpy as np
import pytest

from conftest import MODELS, STATE
from pocketserve.engine.lifecycle.loaded_model import load_model
from pocketserve.repository.scan import scan
from pocketserve.runtimes.base import Session
from pocketserve.trust.store import TrustStore

pytestmark = [
    pytest.mark.torch,
    # TorchScript is tested, though it is deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def pool():
    """Return a pool with one thread, as requests use it."""
    with ThreadPoolExecutor(1) as one:
        yield one


def open_with(threads: int, version: str) -> Session:
    entry = scan(MODELS)["digits"]
    return load_model(
        entry,
        entry.versions[version],
        threads,
        10**6,
        None,
        monotonic() + 60,
        trust=TrustStore(STATE),
    ).sessions[0]


def threads_of_a_run(session: Session) -> int:
    import torch

    (spec,) = session.inputs
    session.run({spec.name: np.zeros((1, 8, 8, 1), np.float32)})
    return torch.get_num_threads()


@pytest.mark.parametrize("version", ["torch", "torchscript", "ptl"])
def test_a_run_uses_its_own_sessions_threads(pool, version):
    """PyTorch's setting belongs to the calling thread, which would keep it for the next
    model.
    """
    many = open_with(2, version)
    assert pool.submit(threads_of_a_run, many).result(60) == 2
    few = open_with(1, version)  # on this thread, as the reaper does when power is low
    assert pool.submit(threads_of_a_run, few).result(60) == 1
    assert pool.submit(threads_of_a_run, many).result(60) == 2
