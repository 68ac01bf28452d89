"""Overwrite the files of a served model.

The server must survive, and answers must not change.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import CALL_TIMEOUT_S, MODELS, Server, StartServer, start_server
from pocketserve_client import Client
from soaking import note
from trusting import trust_one

pytestmark = pytest.mark.live

DIGITS = MODELS / "digits"
HEAD = (
    (DIGITS / "model.toml")
    .read_text()
    .partition("[versions")[0]
    .replace('default_version = "tflite"\n', "")
)
INPUT = {"image": np.random.default_rng(3).random((1, 8, 8, 1), dtype=np.float32)}
THREADS = 3
ANSWERS = 10
"""Answers that each thread awaits after the files were written to."""

Files = Mapping[str, bytes]
"""File contents by path relative to the model's folder."""


def read_all(names: Mapping[str, str]) -> Files:
    """Read files of the embedded model, renamed for this test."""
    found = {}
    for name, source in names.items():
        path = DIGITS / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                found[
                    (Path(name) / file.relative_to(path)).as_posix()
                    if path.is_dir()
                    else name
                ] = file.read_bytes()
    return found


def embedded(**names: str) -> Callable[[Path], Files]:
    """Read files of the embedded model under their own names."""
    return lambda _: read_all({source: source for source in names.values()})


def external_onnx(folder: Path) -> Files:
    """Return the embedded ONNX model with its weights in an external file."""
    onnx = pytest.importorskip(
        "onnx", reason="the environment of the older runtime has no ONNX"
    )
    model = onnx.load(DIGITS / "digits.onnx")
    onnx.save(
        model,
        folder / "m.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=1024,
    )
    return {name: (folder / name).read_bytes() for name in ("m.onnx", "weights.bin")}


def state_dict(folder: Path) -> Files:
    """Return the embedded PyTorch model with weights saved by ``torch.save``."""
    import torch

    from pocketserve.runtimes.torch.safetensors import read_safetensors

    tensors = read_safetensors(DIGITS / "weights.safetensors")
    torch.save(
        {name: torch.from_numpy(array.copy()) for name, (_, array) in tensors.items()},
        folder / "weights.pt",
    )
    return {
        **read_all({"model.py": "model.py"}),
        "weights.pt": (folder / "weights.pt").read_bytes(),
    }


def hdf5(folder: Path) -> Files:
    """Return the embedded Keras model in the older format."""
    import keras

    keras.models.load_model(DIGITS / "digits.keras", compile=False).save(
        folder / "m.h5"
    )
    return {"m.h5": (folder / "m.h5").read_bytes()}


@dataclass(frozen=True)
class Format:
    """A way to store a model.

    Attributes:
        version: its table in the manifest.
        files: makes its files.
        kept: files that are never written to: the code, which is not data.
    """

    version: str
    files: Callable[[Path], Files]
    kept: tuple[str, ...] = ()


CODE = ("model.py",)
FORMATS = {
    "tflite": Format('file = "digits.tflite"', embedded(a="digits.tflite")),
    "tflite-plain": Format(
        'file = "digits.tflite"\nxnnpack = false', embedded(a="digits.tflite")
    ),
    "tflite-int8": Format(
        'file = "digits.int8.tflite"', embedded(a="digits.int8.tflite")
    ),
    "onnx": Format('file = "digits.onnx"', embedded(a="digits.onnx")),
    "onnx-external": Format('file = "m.onnx"', external_onnx),
    "torchscript": Format('file = "digits.ts"', embedded(a="digits.ts")),
    "ptl": Format('file = "digits.ptl"', embedded(a="digits.ptl")),
    "torch-safetensors": Format(
        'file = "model.py"\nweights = "weights.safetensors"',
        embedded(a="model.py", b="weights.safetensors"),
        CODE,
    ),
    "torch-state-dict": Format(
        'file = "model.py"\nweights = "weights.pt"', state_dict, CODE
    ),
    "pt2": Format('file = "digits.pt2"\ntrust = true', embedded(a="digits.pt2")),
    "executorch": Format('file = "digits.pte"', embedded(a="digits.pte")),
    "keras": Format('file = "digits.keras"', embedded(a="digits.keras")),
    "h5": Format('file = "m.h5"', hdf5),
    "savedmodel": Format('file = "savedmodel"', embedded(a="savedmodel")),
    "tfjs": Format('file = "tfjs"', embedded(a="tfjs")),
}
MARKS: dict[str, Any] = {
    **dict.fromkeys(("onnx", "onnx-external"), pytest.mark.onnx),
    **dict.fromkeys(
        (
            "torchscript",
            "ptl",
            "torch-safetensors",
            "torch-state-dict",
            "pt2",
            "executorch",
        ),
        pytest.mark.torch,
    ),
    **dict.fromkeys(("keras", "h5", "savedmodel"), pytest.mark.tensorflow),
    "tfjs": pytest.mark.tfjs,
}
EVERY = [pytest.param(name, marks=MARKS.get(name, ())) for name in FORMATS]


def flipped(content: bytes) -> bytes:
    """Return other bytes of the same size."""
    return np.bitwise_xor(np.frombuffer(content, np.uint8), 0x35).tobytes()


def copy_over(files: Mapping[Path, bytes]) -> None:
    """Copy the same files over themselves, as ``cp`` does: truncate, then write.

    Repeated often, because the window is short.
    """
    for _ in range(20):
        for path, content in files.items():
            path.write_bytes(content)


def write_in_place(files: Mapping[Path, bytes]) -> None:
    """Write other contents in place, as ``rsync --inplace`` does."""
    for path, content in files.items():
        with path.open("r+b") as file:
            file.write(flipped(content))


def shorten(files: Mapping[Path, bytes]) -> None:
    """Truncate the files, like an interrupted copy."""
    for path in files:
        os.truncate(path, 0)


def replace(files: Mapping[Path, bytes]) -> None:
    """Replace the files by renaming, as ``mv`` and careful programs do."""
    for path, content in files.items():
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_bytes(flipped(content))
        fresh.replace(path)


def delete(files: Mapping[Path, bytes]) -> None:
    """Delete the files, as ``rm`` does."""
    for path in files:
        path.unlink()


WAYS: dict[str, Callable[[Mapping[Path, bytes]], None]] = {
    "same": copy_over,
    "other": write_in_place,
    "shorter": shorten,
    "replaced": replace,
    "deleted": delete,
}


class Asking:
    """Queries a model from several threads, and compares each answer with the first.

    Attributes:
        wrong: answers with other numbers.
        failed: errors.
    """

    def __init__(self, server: Server, model: str) -> None:
        self._server = server
        self._model = model
        self._told = threading.Condition()
        self._counts = [0] * THREADS
        self._done = False
        self.wrong = 0
        self.failed: list[str] = []
        with self._client() as client:
            self._first = client.infer(model, INPUT)
        self._threads = [
            threading.Thread(target=self._ask, args=(number,))
            for number in range(THREADS)
        ]

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        self.await_more()
        return self

    def __exit__(self, *raised: object) -> None:
        with self._told:
            self._done = True
        for thread in self._threads:
            thread.join(CALL_TIMEOUT_S)

    def await_more(self) -> None:
        """Wait until each thread got a few more answers, or one failed."""
        with self._told:
            wanted = [count + ANSWERS for count in self._counts]
            self._told.wait_for(
                lambda: (
                    self.failed
                    or all(n >= w for n, w in zip(self._counts, wanted, strict=True))
                ),
                CALL_TIMEOUT_S,
            )

    def _client(self) -> Client:
        return Client(
            self._server.url, self._server.token, timeout=CALL_TIMEOUT_S, reconnect=0.0
        )

    def _ask(self, number: int) -> None:
        with self._client() as client:
            while not self._done and not self.failed:
                try:
                    answer = client.infer(self._model, INPUT)
                except Exception as error:
                    with self._told:
                        self.failed.append(f"{type(error).__name__}: {error}")
                        self._told.notify_all()
                    return
                same = answer.keys() == self._first.keys() and all(
                    np.allclose(answer[name], first, rtol=1e-4, atol=1e-6)
                    for name, first in self._first.items()
                )
                with self._told:
                    self.wrong += not same
                    self._counts[number] += 1
                    self._told.notify_all()


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Files]:
    """Return a format's files, which are made once."""
    made: dict[str, Files] = {}

    def find(name: str) -> Files:
        if name not in made:
            made[name] = FORMATS[name].files(tmp_path_factory.mktemp(name))
        return made[name]

    return find


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """Start a server with an empty models folder."""
    models = tmp_path_factory.mktemp("models")
    server = start_server(
        tmp_path_factory.mktemp("server"), models, "--keep-alive", "0"
    )
    yield server, models
    assert server.stop() == 0


def lay(models: Path, name: str, files: Files) -> dict[Path, bytes]:
    """Write a format's files anew.

    Return those that may be overwritten.
    """
    folder = models / name
    shutil.rmtree(folder, ignore_errors=True)
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    shutil.copy(DIGITS / "labels.txt", folder)
    (folder / "model.toml").write_text(
        f"{HEAD}\n[versions.v]\n{FORMATS[name].version}\n"
    )
    trust_one(models, name)  # the other models have lost their files
    return {
        folder / file: content
        for file, content in files.items()
        if file not in FORMATS[name].kept
    }


def attack(server: Server, models: Path, name: str, way: str, files: Files) -> Asking:
    """Load a format, query it, and write to its files meanwhile."""
    written = lay(models, name, files)
    with Client(server.url, server.token, timeout=CALL_TIMEOUT_S) as client:
        client.load(name)
    with Asking(server, name) as asking:
        WAYS[way](written)
        asking.await_more()
    return asking


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EVERY)
def test_a_loaded_model_keeps_its_answers_when_its_files_change(
    served: tuple[Server, Path], contents: Callable[[str], Files], name: str, way: str
) -> None:
    """All answers equal the first one until the model is loaded again."""
    server, models = served
    asking = attack(server, models, name, way, contents(name))
    assert server.process.poll() is None, (
        f"the server died ({server.process.returncode})"
    )
    assert asking.failed == []
    assert asking.wrong == 0


RUNS = 10
"""Repetitions of each attack on each format."""


def print_outcomes(table: dict[str, dict[str, list[int]]]) -> None:
    """Print the counts of each attack on each format."""
    print(f"\nof {RUNS} runs each: server died / other numbers / refused")
    print(" " * 18 + "".join(f"{way:>12}" for way in WAYS))
    for name, ways in table.items():
        row = f"{name:18}"
        for counts in ways.values():
            cell = "/".join(str(count) for count in counts)
            row += f"{cell:>12}"
        print(row)


class Outcomes:
    """Runs attacks on a server, which is restarted if it dies, and counts outcomes."""

    def __init__(self, new_server: StartServer, models: Path) -> None:
        self.new_server = new_server
        self.models = models
        self.server: Server | None = None

    def of(self, name: str, way: str, files: Files) -> list[int]:
        """Return the numbers of deaths, of wrong and of refused answers."""
        deaths = wrong = failed = 0
        for _ in range(RUNS):
            if self.server is None or self.server.process.poll() is not None:
                self.server = self.new_server(self.models, "--keep-alive", "0")
            asking = attack(self.server, self.models, name, way, files)
            deaths += self.server.process.poll() is not None
            wrong += asking.wrong > 0
            failed += bool(asking.failed)
        return [deaths, wrong, failed]


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.tfjs
@pytest.mark.onnx
@pytest.mark.filterwarnings("ignore")
def test_all_formats_and_attacks_many_times(
    tmp_path: Path,
    new_server: StartServer,
    contents: Callable[[str], Files],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Repeat each combination and print a table.

    A server that died is restarted.
    """
    models = tmp_path / "models"
    models.mkdir()
    outcomes = Outcomes(new_server, models)
    table: dict[str, dict[str, list[int]]] = {}
    for name in FORMATS:
        table[name] = {}
        for way in WAYS:
            table[name][way] = outcomes.of(name, way, contents(name))
        shutil.rmtree(models / name)
    with capsys.disabled():
        print_outcomes(table)
    runs = RUNS * len(table) * len(WAYS)
    deaths, wrong, failed = (sum(column) for column in zip(*_cells(table), strict=True))
    note(
        "served files overwritten, cut short, replaced, deleted under load",
        f"{len(table)} formats, {runs} runs: {deaths} deaths, "
        f"{wrong} with other numbers, {failed} refused",
    )
    assert (deaths, wrong, failed) == (0, 0, 0)


def _cells(table: Mapping[str, Mapping[str, list[int]]]) -> list[list[int]]:
    return [counts for ways in table.values() for counts in ways.values()]
