"""Test the runtime of exported programs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch")

from pocketserve.runtimes.base import ModelLoadError, ModelSource, ResettableSession  # noqa: E402
from pocketserve.runtimes.torch.pt2 import RUNTIME, Pt2Session  # noqa: E402
from pocketserve.runtimes.torch.pt2_containers import class_names, stand_ins  # noqa: E402
from pocketserve.tensors import TensorSpec  # noqa: E402
from trusting import trusted  # noqa: E402

pytestmark = pytest.mark.torch


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x, more, scale=2):
        y = self.layer(x)
        return {
            "logits": y * scale + more["bias"],
            "pair": (x, y.to(torch.bfloat16)),
            "fixed": [3, None],
        }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program for 1 to 8 rows with a dictionary and a fixed number as inputs."""
    path = tmp_path_factory.mktemp("pt2") / "model.pt2"
    rows = torch.export.Dim("rows", min=1, max=8)
    shapes = {
        "x": {0: rows},
        "more": {"bias": {0: rows}},
        "scale": None,
    }
    arguments = (torch.ones(2, 3), {"bias": torch.ones(2, 1)})
    torch.export.save(
        torch.export.export(Model(), arguments, {"scale": 3}, dynamic_shapes=shapes),
        path,
    )
    return path


def opened(path: Path, **options: object) -> Pt2Session:
    return RUNTIME.open(ModelSource(path, options=options, trusted=trusted(path)))


def rows(count: int) -> dict[str, np.ndarray]:
    return {
        "x": np.ones((count, 3), np.float32),
        "more_bias": np.zeros((count, 1), np.float32),
    }


def test_the_session_names_its_format_and_package(model: Path):
    session = opened(model, trust=True)
    assert RUNTIME.platform == "pytorch_export"
    assert RUNTIME.option_keys == {"trust"}
    assert session.runtime == f"torch {torch.__version__} (torch.export)"
    assert session.device == "cpu"
    assert session.signatures == {}
    assert session.memory_bytes == 4 * (6 + 2)
    assert not isinstance(session, ResettableSession)


ELSEWHERE = """
import dataclasses, sys, torch

@dataclasses.dataclass
class Scores:
    logits: torch.Tensor
    more: torch.Tensor | None = None

class Bag(dict):
    pass

torch.export.register_dataclass(Scores, serialized_type_name="elsewhere.Scores")
torch.utils._pytree.register_pytree_node(
    Bag, lambda bag: (list(bag.values()), list(bag)), lambda values, names: Bag(zip(names, values)),
    serialized_type_name="elsewhere.Bag",
    flatten_with_keys_fn=lambda bag: ([(torch.utils._pytree.MappingKey(k), v) for k, v in bag.items()], list(bag)),
)

class Model(torch.nn.Module):
    def forward(self, x):
        return Scores(x + 1), Bag(twice=x * 2)

torch.export.save(torch.export.export(Model(), (torch.ones(2),)), sys.argv[1])
"""


def test_a_program_with_classes_of_a_missing_package_is_loaded(tmp_path: Path):
    """Programs exported from Hugging Face's models return such classes."""
    path = tmp_path / "model.pt2"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ELSEWHERE, str(path)],
        check=True,
        timeout=300,
    )
    names = torch.utils._pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
    for _ in range(2):  # the first load left nothing behind
        session = opened(path, trust=True)
        assert [spec.name for spec in session.outputs] == ["logits", "twice"]
        result = session.run({"x": np.array([1, 2], np.float32)})
        assert result["logits"].tolist() == [2, 3]
        assert result["twice"].tolist() == [
            2,
            4,
        ]
        assert not [name for name in names if name.startswith("elsewhere.")]


def described(path: Path, *names: str) -> Path:
    """Return a program's archive that only contains the container names."""
    spec = {
        "type": "tuple",
        "context": "null",
        "children_spec": [{"type": n, "children_spec": []} for n in names],
    }
    graph = {
        "module_call_graph": [
            {"signature": {"in_spec": "", "out_spec": json.dumps([1, spec])}}
        ]
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/models/model.json", json.dumps({"graph_module": graph}))
    return path


def test_names_stay_until_the_last_program_that_needs_them_is_loaded(tmp_path: Path):
    path = described(tmp_path / "m.pt2", "elsewhere.Both")
    registered = torch.utils._pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
    inside = threading.Event()
    left = threading.Event()
    seen = []

    def other() -> None:
        with stand_ins(path):
            inside.set()
            left.wait(120)
            seen.append("elsewhere.Both" in registered)

    with stand_ins(path):
        thread = threading.Thread(target=other)
        thread.start()
        assert not inside.wait(0.2)
    left.set()
    thread.join(120)
    assert seen == [True]
    assert "elsewhere.Both" not in registered


def test_reopening_a_program_leaves_no_more_classes(tmp_path: Path):
    path = described(tmp_path / "m.pt2", "elsewhere.Again", "elsewhere.More")
    counts = []
    for _ in range(3):
        with stand_ins(path):
            counts.append(len(torch.utils._pytree.SUPPORTED_NODES))
    assert counts[0] == counts[1] == counts[2]


def test_names_that_cannot_be_registered_leave_nothing_behind(tmp_path: Path):
    path = described(
        tmp_path / "m.pt2", "elsewhere.Fine", "elsewhere.\0", "elsewhere.Good"
    )
    with pytest.raises(ValueError, match="null"), stand_ins(path):
        pass
    names = torch.utils._pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
    assert not [name for name in names if name.startswith("elsewhere.")]


@pytest.mark.parametrize(
    "text",
    ["[]", "7", '{"graph_module": []}', '{"graph_module": {"module_call_graph": [7]}}'],
)
def test_malformed_descriptions_name_no_classes(tmp_path: Path, text: str):
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("m/models/model.json", text)
    assert class_names(tmp_path / "m.pt2") == []


def test_specs_come_from_the_program(model: Path):
    session = opened(model, trust=True)
    assert list(session.inputs) == [
        TensorSpec("x", "FP32", (-1, 3)),
        TensorSpec("more_bias", "FP32", (-1, 1)),
    ]
    assert list(session.outputs) == [
        TensorSpec("logits", "FP32", (-1, 2)),
        TensorSpec("pair.0", "FP32", (-1, 3)),
        TensorSpec("pair.1", "BF16", (-1, 2)),
        TensorSpec("fixed.0", "INT64", ()),
    ]


def test_runs_any_number_of_rows(model: Path):
    session = opened(model, trust=True)
    for count in (1, 5, 8):
        result = session.run(rows(count))
        assert list(result) == [spec.name for spec in session.outputs]
        assert result["logits"].shape == (count, 2)
        assert result["pair.1"].dtype == np.uint16
        assert result["fixed.0"] == 3
        assert result["pair.0"].flags.owndata


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (rows(9), r"Guard failed: x\.size\(\)\[0\] <= 8"),
        ({**rows(2), "x": np.ones((3, 3), np.float32)}, "Guard failed"),
        ({**rows(2), "x": np.ones((2, 4), np.float32)}, "Guard failed"),
        ({**rows(2), "x": np.ones((2, 3), np.float64)}, "dtype"),
    ],
)
def test_inputs_that_do_not_fit(
    model: Path, inputs: dict[str, np.ndarray], message: str
):
    session = opened(model, trust=True)
    with pytest.raises(ValueError, match=message):
        session.run(inputs)
    assert session.run(rows(2))["logits"].shape == (2, 2)


def test_closed(model: Path):
    session = opened(model, trust=True)
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.run(rows(1))


# --- Trust


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"trust": False},
        {"trust": True},
    ],
)
def test_without_consent_nothing_is_loaded(
    model: Path, options: dict, monkeypatch: pytest.MonkeyPatch
):
    """A manifest beside the file cannot give consent."""
    monkeypatch.setattr(torch.export, "load", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(
        ModelLoadError,
        match=r"model\.pt2 is code that is not trusted; `pocketserve trust /",
    ):
        RUNTIME.open(ModelSource(model, options=options))


def test_trust_is_a_boolean(model: Path):
    with pytest.raises(ModelLoadError, match="trust is true or false, not 'yes'"):
        opened(model, trust="yes")


@pytest.mark.assets
def test_the_hostile_file_is_not_run(
    assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hostile = assets.parent / "hostile" / "pt2-executes-mkdir.pt2"
    if not hostile.is_file():
        pytest.skip("the folder of hostile files is not there")
    monkeypatch.chdir(tmp_path)
    for options in ({}, {"trust": True}):
        with pytest.raises(ModelLoadError, match="is code that is not trusted"):
            RUNTIME.open(ModelSource(hostile, options=options))
    assert list(tmp_path.iterdir()) == []


# --- Other files


def test_compiled_packages_are_refused_even_if_trusted(tmp_path: Path):
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("archive_format", "data/aotinductor/model/a.so"):
            archive.writestr(f"model/{name}", b"")
    with pytest.raises(ModelLoadError, match="native code compiled by AOTInductor"):
        opened(path, trust=True)


def test_other_files_are_named(tmp_path: Path):
    torch.save(Model().state_dict(), tmp_path / "weights.pt2")
    with pytest.raises(ModelLoadError, match="holds weights without a model"):
        opened(tmp_path / "weights.pt2", trust=True)
    (tmp_path / "text.pt2").write_text("no zip")
    with pytest.raises(ModelLoadError, match="is not an exported program"):
        opened(tmp_path / "text.pt2", trust=True)
    with pytest.raises(ModelLoadError, match="cannot be read"):
        RUNTIME.open(ModelSource(tmp_path / "missing.pt2"))


def test_damaged_programs_raise_load_errors(model: Path, tmp_path: Path):
    """Only the description is damaged: random bytes in a pickle could call anything."""
    path = tmp_path / "model.pt2"
    for length in (0, 1, 50, 500):
        with zipfile.ZipFile(model) as old, zipfile.ZipFile(path, "w") as new:
            for name in old.namelist():
                new.writestr(
                    name,
                    old.read(name)[
                        : length if name.endswith("models/model.json") else None
                    ],
                )
        with pytest.raises(ModelLoadError, match="may be damaged"):
            opened(path, trust=True)
