"""Keep changes that a PyTorch model makes to itself from other clients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch")

from pocketserve.runtimes.base import ModelSource, ResettableSession  # noqa: E402
from pocketserve.runtimes.torch import graphs as torch_graphs  # noqa: E402
from pocketserve.runtimes.torch import pt2, ptl, torchscript  # noqa: E402
from pocketserve.runtimes.torch import state as torch_state  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

X = np.ones((2, 3), np.float32)


class Everything(torch.nn.Module):
    """Changes numbers, tensors, lists, dictionaries and tuples, one level deep."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.steps = 0
        self.seen = [1]
        self.by_name = {"a": torch.ones(1)}
        self.pair = (torch.ones(1), 2)

    def forward(self, x):
        self.total += x.sum(0)
        self.total.add_(1)
        self.scale.mul_(2)
        self.steps += 1
        self.seen.append(1)
        self.by_name["a"].add_(1)
        self.pair[0].add_(1)
        return (
            x
            + self.total
            + self.scale
            + self.steps
            + len(self.seen)
            + self.by_name["a"]
            + self.pair[0]
        )


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Everything()

    def forward(self, x):
        return self.inner(x)


class Replaced(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x):
        y = x + self.last
        self.last = x.repeat(1, 1)
        return y


class Viewed(torch.nn.Module):
    """Writes to a part of a buffer that is in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        parts = [self.total[1:]]
        parts[0].add_(1)
        return x + self.total


class Shrunk(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.ones(2, 3))

    def forward(self, x):
        y = x + self.memory.sum(0)
        self.memory.resize_(1, 3)
        return y


class Exchanged(torch.nn.Module):
    """Assigns one attribute to another, then changes it under the first name."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(3))
        self.register_buffer("b", torch.ones(3))

    def forward(self, x):
        self.a = self.b
        self.a.add_(1)
        return x + self.b


class Forked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def later(self, x):
        self.total.add_(1)
        return x + self.total

    def forward(self, x):
        future = torch.jit.fork(self.later, x)
        return torch.jit.wait(future)


class Tally:
    def __init__(self):
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


class Held(torch.nn.Module):
    """Keeps its state in an object of its own class."""

    def __init__(self) -> None:
        super().__init__()
        self.tally = torch.jit.script(Tally)()

    def forward(self, x):
        return x + self.tally.add()


STATEFUL = [Outer, Replaced, Viewed, Shrunk, Exchanged, Forked, Held]
NOT_MOBILE = [Forked, Held]
"""Models that the mobile form cannot store."""


class Normalised(torch.nn.Module):
    """Writes in place to its own results only.

    Its layer would count while training.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.act = torch.nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.norm(x)).add_(1)


class Local(torch.nn.Module):
    """Discards its object after the run."""

    def forward(self, x):
        tally = Tally()
        return x + tally.add()


Save = Callable[..., Any]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Save]:
    """Return a function that saves a module in the format of a name, and opens it."""

    def served(module: Any, ending: str) -> Any:
        path = tmp_path / f"model.{ending}"
        script = torch.jit.script(module.eval())
        script._save_for_lite_interpreter(
            str(path)
        ) if ending == "ptl" else script.save(str(path))
        return (ptl.RUNTIME if ending == "ptl" else torchscript.RUNTIME).open(
            ModelSource(path)
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield served


def run(session: Any) -> np.ndarray:
    return next(iter(session.run({spec.name: X for spec in session.inputs}).values()))


@pytest.mark.parametrize(
    ("module", "ending"),
    [
        (module, ending)
        for module in STATEFUL
        for ending in ("ts", "ptl")
        if ending == "ts" or module not in NOT_MOBILE
    ],
)
def test_a_reset_discards_the_state_of_earlier_runs(
    serve: Save, module: type, ending: str
):
    session = serve(module(), ending)
    assert isinstance(session, ResettableSession)
    first = run(session)
    second = run(session)
    assert first.shape != second.shape or (first != second).any()
    for _ in range(3):
        session.reset()
        np.testing.assert_array_equal(run(session), first)
    session.reset()
    run(session)
    # state continues within a sequence
    np.testing.assert_array_equal(run(session), second)


@pytest.mark.parametrize(
    ("module", "ending"),
    [
        (Normalised, "ts"),
        (Normalised, "ptl"),
        (Local, "ts"),
    ],
)
def test_a_model_without_writes_is_not_copied(serve: Save, module: type, ending: str):
    session = serve(module(), ending)
    assert not isinstance(session, ResettableSession)
    np.testing.assert_array_equal(run(session), run(session))


def test_only_changed_state_is_copied(serve: Save, tmp_path: Path):
    class Two(Viewed):
        def __init__(self) -> None:
            super().__init__()
            self.large = torch.nn.Linear(3, 3)

        def forward(self, x):
            self.total.add_(1)
            return self.large(x) + self.total

    serve(Two(), "ts")
    restore = torch_state.state_restorer(
        torch, torch_graphs.load_checked(torch, tmp_path / "model.ts")
    )
    assert restore is not None
    assert restore.__closure__ is not None
    kept = next(
        cell.cell_contents
        for cell in restore.__closure__
        if isinstance(cell.cell_contents, list)
    )
    assert [attribute._name for attribute in kept] == ["total"]


def test_an_exported_program_is_reset(tmp_path: Path):
    path = tmp_path / "model.pt2"
    torch.export.save(
        torch.export.export(Viewed().eval(), (torch.from_numpy(X),)), path
    )
    program = torch.export.load(path)
    session = pt2.Pt2Session(torch, program, 1)
    assert isinstance(session, ResettableSession)
    first = run(session)
    second = run(session)
    assert (first != second).any()
    session.reset()
    np.testing.assert_array_equal(run(session), first)
    plain = torch.export.export(Normalised().eval(), (torch.from_numpy(X),))
    assert not isinstance(pt2.Pt2Session(torch, plain, 1), ResettableSession)
