"""Mutated models of every kind are rejected or served, and the server survives."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import MODELS, ROOT, Server, StartServer
from pocketserve.repository.scan import VersionEntry, scan
from pocketserve_client import Client, ServerError
from soaking import FULL, note, rounds

pytestmark = [
    pytest.mark.live,
    pytest.mark.soak,
    pytest.mark.torch,
    pytest.mark.tensorflow,
    pytest.mark.tfjs,
]

COUNTS = {
    "tflite": 42,
    "onnx": 28,
    "torchscript": 6,
    "ptl": 5,
    "torch": 3,
    "pt2": 2,
    "executorch": 4,
    "keras": 4,
    "savedmodel": 3,
    "tfjs": 3,
}
"""Mutations by kind, 100 in a round.

Slow frameworks get fewer, since each trial loads them.
"""

SHARES = (
    ("tflite", "onnx", "tfjs", "keras"),
    ("torchscript", "ptl", "torch", "pt2", "executorch", "savedmodel"),
)
"""Two servers that take about as long, since machines have at least two cores and
trials run in child processes.
"""

IMPORTED = (
    "ai_edge_litert.interpreter,onnxruntime,tensorflow,keras,h5py",
    "torch,executorch.runtime,tensorflow",
)
"""Packages that the trials of these servers need."""

TIMES = rounds(1, 50)
"""Number of rounds of these mutations."""

FORKED = ROOT / "tests" / "forked_trials.py"

SEED = 20260101


def smallest_versions() -> dict[str, VersionEntry]:
    """Return the smallest embedded version of each kind."""
    found: dict[str, VersionEntry] = {}
    for entry in scan(MODELS).values():
        for version in entry.versions.values():
            known = found.get(version.format.name)
            if known is None or _size(version) < _size(known):
                found[version.format.name] = version
    return found


def _size(version: VersionEntry) -> int:
    return sum(path.stat().st_size for path in _files(version))


def _files(version: VersionEntry) -> list[Path]:
    """Return the files to mutate, preferring weights over code."""
    weights = version.options.get("weights")
    if isinstance(weights, str):
        return [version.path.parent / weights]
    if version.path.is_dir():
        return sorted(path for path in version.path.rglob("*") if path.is_file())
    return [version.path]


def mutate(content: bytes, source: random.Random) -> bytes:
    """Truncate, flip a bit, overwrite 16 bytes, zero a run, or change 4 bytes near an
    end.
    """
    data = bytearray(content)
    kind = source.randrange(5)
    at = source.randrange(max(1, len(data)))
    if kind == 0:
        return bytes(data[:at])
    if kind == 1:
        data[at] ^= 1 << source.randrange(8)
    elif kind == 2:
        data[at : at + 16] = source.randbytes(16)
    elif kind == 3:
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    else:
        at = source.randrange(64) if source.random() < 0.5 else max(0, len(data) - 64)
        data[at : at + 4] = source.randbytes(4)
    return bytes(data)


def plant(
    models: Path, kind: str, version: VersionEntry, number: int, source: random.Random
) -> str:
    """Put a mutated copy of a model into the folder; return its name."""
    name = f"{kind}-{number}"
    folder = models / name
    shutil.copytree(
        version.path.parent,
        folder,
        ignore=shutil.ignore_patterns("samples", "README.md"),
    )
    copy = VersionEntry(
        "v", version.format, folder / version.path.name, version.options
    )
    victim = source.choice(_files(copy))
    victim.write_bytes(mutate(victim.read_bytes(), source))
    return name


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, dict[str, VersionEntry]]:
    """Return a folder of mutations and one good model, with the original versions."""
    models = tmp_path / "models"
    shutil.copytree(MODELS / "petals", models / "good")
    versions = smallest_versions()
    assert set(versions) == set(COUNTS)
    source = random.Random(SEED)
    for kind, count in COUNTS.items():
        for number in range(count * TIMES):
            plant(models, kind, versions[kind], number, source)
    return models, versions


def _names(kinds: Sequence[str]) -> Iterator[tuple[str, str]]:
    return (
        (f"{kind}-{number}", kind)
        for kind in kinds
        for number in range(COUNTS[kind] * TIMES)
    )


def ask_all(
    server: Server, kinds: Sequence[str], versions: dict[str, VersionEntry]
) -> tuple[int, list[ServerError]]:
    """Load every mutated model of these kinds; return the served count and the
    rejections.

    The good model must answer after each.
    """
    served = 0
    refusals = []
    with Client(server.url, server.token, timeout=180) as client:
        for name, kind in _names(kinds):
            try:
                client.model_metadata(name, versions[kind].name)
                served += 1
            except ServerError as error:
                refusals.append(error)
            client.unload(name)
            good = client.predict("good", [5.1, 3.5, 1.4])["predictions"][0]["value"]
            assert abs(good - 0.2266) < 0.001
    return served, refusals


def own_files(models: Path) -> set[Path]:
    """Return the files of a folder without Python's caches."""
    return {path for path in models.rglob("*") if "__pycache__" not in path.parts}


def start_servers(new_server: StartServer, models: Path) -> list[Server]:
    """Start one server for each share of the kinds."""
    servers = []
    for number, packages in enumerate(IMPORTED):
        state = models.parent / f"state-{number}"
        options = ("--state-dir", str(state), "--trial-timeout", "60")
        program = (str(FORKED), packages) if FULL else ("-m", "pocketserve")
        servers.append(new_server(models, *options, program=program))
    return servers


def test_the_mutations_are_100_in_a_round() -> None:
    assert sum(COUNTS.values()) == 100
    assert sorted(kind for kinds in SHARES for kind in kinds) == sorted(COUNTS)


def test_mutated_files_do_no_harm(
    new_server: StartServer, damaged: tuple[Path, dict[str, VersionEntry]]
) -> None:
    """Each is rejected with one sentence or served.

    Nothing else is written.
    """
    models, versions = damaged
    before = own_files(models)
    servers = start_servers(new_server, models)
    with ThreadPoolExecutor(len(SHARES)) as pool:
        results = list(pool.map(ask_all, servers, SHARES, [versions] * len(SHARES)))
    for server in servers:
        assert server.process.poll() is None
    served = 0
    rejections: list[ServerError] = []
    for count, errors in results:
        served += count
        rejections += errors
    assert served + len(rejections) == 100 * TIMES
    assert len(rejections) > 20 * TIMES
    note(
        "damaged model files, all formats",
        f"{100 * TIMES}: {served} served, {len(rejections)} refused, 0 deaths",
    )
    for error in rejections:
        assert error.status == 503
        assert len(str(error)) > 40
        assert "\n" not in str(error)
    assert own_files(models) == before
