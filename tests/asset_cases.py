"""Send the public models' verified cases to a running server.

``python tests/asset_cases.py`` (or ``make cases``) serves every format, runs every case
and prints a table; ``test_assets.py`` runs the same cases one by one.
"""

from __future__ import annotations

import json
import sys
import tempfile
import wave
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conftest import Server, find_assets, start_server
from places import copy_folder
from pocketserve_client import Client

FORMATS = ("tflite", "onnx", "torchscript", "ptl", "keras", "savedmodel", "tfjs")
CHUNK = 512
CONTEXT = 64
"""Samples per chunk of Silero's models, and the context that its ONNX form needs from
the previous chunk.
"""

TOLERANCES = {
    "abs 0.01": 0.01,
    "abs 0.02": 0.02,
    "abs 1e-3": 1e-3,
    "abs 1e-4": 1e-4,
}
OLDER_TOLERANCE = 0.05
SILERO_MANIFEST = '[state.feedback]\nstate = "stateN"\n'

Arrays = dict[str, Any]
Engine = Callable[[Path, Path], AbstractContextManager[Server]]
"""Serves a folder of models, given an empty folder for its own files."""


@dataclass(frozen=True)
class Case:
    """One verified case.

    Attributes:
        root: the folder of assets.
        content: its JSON description.
    """

    root: Path
    content: dict[str, Any]

    def __str__(self) -> str:
        return str(self.content["id"])

    @property
    def format(self) -> str:
        """Return the model's folder, which names its format."""
        return str(self.content["model"].split("/")[1])

    @property
    def model(self) -> str:
        """Return the model's name on a server."""
        path = Path(self.content["model"])
        parts = path.parts[2:]
        if len(parts) > 1:
            return parts[0]
        return path.name if (self.root / path).is_dir() else path.stem

    @property
    def is_sequence(self) -> bool:
        """Return whether the answer needs state from request to request."""
        return any(
            output["name"] == "prob_per_chunk" for output in self.content["outputs"]
        )

    def expected(self) -> Iterator[tuple[str, Any]]:
        """Return the outputs whose values are kept in full."""
        for output in self.content["outputs"]:
            if "npy" in output:
                yield output["name"], np.load(self.root / output["npy"])

    def inputs(self) -> list[Any]:
        """Return the exact input tensors, in the model's order."""
        items = self.content["inputs"]
        if all("npy" in item for item in items):
            return [np.load(self.root / item["npy"]) for item in items]
        return [PREPARED[str(self)](self.root)]


def all_cases(root: Path | None) -> list[Case]:
    """Return every case whose format is served."""
    if root is None:
        return []
    cases = []
    for path in sorted((root / "expected").glob("*.json")):
        cases.append(Case(root, json.loads(path.read_text())))
    return [case for case in cases if case.format in FORMATS]


@contextmanager
def plain_server(folder: Path, models: Path) -> Iterator[Server]:
    """Start our own server."""
    server = start_server(folder, models)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def serving(root: Path, form: str, engine: Engine = plain_server) -> Iterator[Client]:
    """Return a client of a server on all models of one format."""
    with tempfile.TemporaryDirectory() as folder:
        models = root / "models" / form
        if form == "onnx":  # a manifest must declare how its state is passed on
            models = copy_folder(root / "models" / form, Path(folder, "models"))
            stateful = models / "silero_vad_v6"
            stateful.mkdir()
            (models / "silero_vad_v6.onnx").rename(stateful / "silero_vad_v6.onnx")
            (stateful / "model.toml").write_text(SILERO_MANIFEST)
        with (
            engine(Path(folder), models) as server,
            Client(server.url, server.token, timeout=300) as client,
        ):
            yield client


def run_case(client: Client, case: Case) -> None:
    """Send a case and compare its answer.

    Raises:
        AssertionError: the answer differs by more than the case's tolerance.
    """
    if case.is_sequence:
        check_sequence(client, case)
        return
    metadata = client.model_metadata(case.model)
    inputs = {}
    for spec, array in zip(metadata["inputs"], case.inputs(), strict=True):
        inputs[spec["name"]] = array
    outputs = client.infer(case.model, inputs)
    expected = list(case.expected())
    for position, (name, values) in enumerate(expected):
        same_count = len(outputs) == len(case.content["outputs"])
        found = outputs.get(name, list(outputs.values())[position if same_count else 0])
        compare(
            case,
            name,
            found,
            values,
            older=metadata["parameters"]["runtime"].startswith("tflite-runtime"),
        )
    if not expected:
        READABLE[str(case)](case, next(iter(outputs.values())))


def compare(case: Case, name: str, found: Any, expected: Any, *, older: bool) -> None:
    """Compare one output within the case's tolerance.

    Args:
        older: the answers were verified with ai-edge-litert; the kernels of tflite_runtime
        round differently, and a detector's nearly equal boxes change places.
    """
    text = case.content["tolerance"]
    if name == "argmax":
        assert np.mean(found.argmax(-1).reshape(expected.shape) == expected) >= 0.99
        return
    found = found.reshape(expected.shape)
    if text.startswith("score within"):  # a detector's boxes, classes and scores
        best = ...
        if older and found.ndim > 1:
            best = (slice(None), slice(0, 1))
        assert np.allclose(found[best], expected[best], atol=0.05)
    elif older and text.startswith("abs 0.01"):
        assert np.allclose(found, expected, rtol=0, atol=OLDER_TOLERANCE)
    elif text.startswith("same ai-edge-litert build"):
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= 20
    elif text.startswith("rtol"):
        named = dict(part.split() for part in text.split(";")[0].split(","))
        assert np.allclose(
            found,
            expected,
            rtol=float(named["rtol"]),
            atol=float(named.get("atol", 1e-5)),
        )
    else:
        tolerance = next(
            value for start, value in TOLERANCES.items() if text.startswith(start)
        )
        assert np.allclose(found, expected, rtol=0, atol=tolerance)


def check_sequence(client: Client, case: Case) -> None:
    """Send a recording as one sequence, and a single chunk if the case has its answer."""
    expected = dict(case.expected())
    chunks = read_chunks(case.root / case.content["source_inputs"][0])
    steps = chunks
    if case.format == "onnx":
        steps = with_context(chunks)
    first = "x"
    if case.format == "onnx":
        first = "input"
    rate = np.array(16000, np.int64)
    found = []
    for index, step in enumerate(steps):
        marks = {"sequence_start": index == 0, "sequence_end": index == len(steps) - 1}
        parameters = {"sequence_id": str(case), **marks}
        outputs = client.infer(
            case.model, {first: step, "sr": rate}, parameters=parameters
        )
        found.append(float(next(iter(outputs.values())).reshape(-1)[0]))
    assert np.allclose(found, expected["prob_per_chunk"], rtol=0, atol=1e-3)
    if "fresh_state_prob_of_chunk" in expected:
        alone = client.infer(case.model, {first: case.inputs()[0], "sr": rate})
        assert np.allclose(
            next(iter(alone.values())),
            expected["fresh_state_prob_of_chunk"],
            rtol=0,
            atol=1e-3,
        )


def read_chunks(path: Path) -> list[Any]:
    """Return a 16-bit recording as chunks of shape [1, 512], float32 from -1 to 1."""
    with wave.open(str(path)) as recording:
        samples = (
            np.frombuffer(recording.readframes(recording.getnframes()), "<i2").astype(
                np.float32
            )
            / 32768
        )
    whole = len(samples) // CHUNK
    return list(samples[: whole * CHUNK].reshape(whole, 1, CHUNK))


def with_context(chunks: list[Any]) -> list[Any]:
    """Prepend to each chunk the last samples of the previous one."""
    before = [
        np.zeros((1, CONTEXT), np.float32),
        *(chunk[:, -CONTEXT:] for chunk in chunks[:-1]),
    ]
    return [np.concatenate(pair, axis=1) for pair in zip(before, chunks, strict=True)]


def _page(root: Path) -> Any:
    """Return a scanned page as the text detector's input: BGR, normalised, channels
    first.
    """
    pixels = _picture(root, "page.png", (768, 384))[..., ::-1] / 255
    values = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    return values.transpose(2, 0, 1)[np.newaxis].astype(np.float32)


def _picture(root: Path, name: str, size: tuple[int, int]) -> Any:
    from PIL import Image

    picture = Image.open(root / "inputs" / "images" / name).convert("RGB")
    return np.asarray(picture.resize(size, Image.Resampling.BILINEAR))


PREPARED: dict[str, Callable[[Path], Any]] = {
    "basic_pitch_savedmodel": lambda root: np.load(
        root / "inputs" / "tensors" / "basic_pitch_tflite.serving_default_input_2_0.npy"
    ),
    "handtrack__astronaut": lambda root: _picture(root, "astronaut.png", (512, 512))[
        np.newaxis
    ].astype(np.int32),
    "ppocr_det__page_png": _page,
}
"""Inputs that are only described in words."""


def _check_share(case: Case, heat: Any) -> None:
    assert (
        abs(float((heat > 0.3).mean()) - case.content["answer"]["share>0.3"]) <= 0.005
    )


def _check_shape(case: Case, scores: Any) -> None:
    """The text itself needs the model's own alphabet; its confidence doesn't."""
    best = scores.max(-1)[scores.argmax(-1) != 0]
    assert list(scores.shape) == case.content["outputs"][0]["shape"]
    assert abs(float(best.mean()) - case.content["answer"]["mean_conf"]) <= 0.005


READABLE: dict[str, Callable[[Case, Any], None]] = {
    "ppocr_det__page_png": _check_share,
    "ppocr_rec__page_png": _check_shape,
}
"""Cases whose outputs aren't kept in full."""


def main() -> int:
    """Run every case and print the table.

    Return 0 if all pass.
    """
    root = find_assets()
    if root is None:
        print("no folder of test models found; see tests/README.md", file=sys.stderr)
        return 1
    failed = 0
    print(f"{'format':13}{'case':36}{'runtime':44}result")
    for form in FORMATS:
        with serving(root, form) as client:
            for case in (case for case in all_cases(root) if case.format == form):
                failed += not _print_result(client, case)
    print(f"{failed} cases failed" if failed else "all cases passed")
    if failed:
        return 1
    return 0


def _print_result(client: Client, case: Case) -> bool:
    runtime = ""
    result = "passed"
    try:
        run_case(client, case)
        runtime = client.model_metadata(case.model)["parameters"]["runtime"]
    except Exception as error:
        result = f"FAILED: {str(error).splitlines()[0][:120] if str(error) else type(error).__name__}"
    print(f"{case.format:13}{case!s:36}{runtime:44}{result}", flush=True)
    return result == "passed"


if __name__ == "__main__":
    sys.exit(main())
