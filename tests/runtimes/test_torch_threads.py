"""Each run of a PyTorch model uses the threads that its session was opened for, on whichever thread it runs."""

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
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning"
    ),  # TorchScript is what is tested, however old
]


@pytest.fixture
def pool():
    """One thread, which runs everything that a request would."""
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
    """PyTorch's own setting is each calling thread's: one that has run a model would go on as before."""
    many = open_with(2, version)
    assert pool.submit(threads_of_a_run, many).result(60) == 2
    few = open_with(1, version)  # here, as the reaper does when power is low
    assert pool.submit(threads_of_a_run, few).result(60) == 1
    assert pool.submit(threads_of_a_run, many).result(60) == 2
