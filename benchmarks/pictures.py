"""I1 and V2: our share of a photo's cost."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.model_work import ask, find_mobilenet
from benchmarks.processes import CLIENT_CORE, NO_TOKEN, module, our_server, pinned
from benchmarks.samples import Comparison, Missing, Result
from benchmarks.timing import Effort, interleave
from pocketserve.tasks.vision.picture_input import PictureInput
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve.tensors import TensorSpec
from pocketserve_client import Client

ROUNDS, WARM_UP = 60, 5
WIDTH, HEIGHT = 4000, 3000
SIDE, DRAWN_SIDE = 224, 1600
GOAL = 1.3
PLAIN_GOAL, DRAWN_GOAL = 1.05, 1.5
DRAWINGS = ("png", "jpeg")
SIDEWAYS = 6
NO_MOBILENET = "left out: there is no MobileNet among public test models (tests/README.md says where they may lie)"


def run() -> list[Comparison]:
    """Compare upright and rotated photos, into float and uint8."""
    cases = [
        ("upright, to FP32", "FP32", 1),
        ("upright, to UINT8", "UINT8", 1),
        ("sideways, to FP32", "FP32", SIDEWAYS),
    ]
    return [
        _compare(what, datatype, orientation) for what, datatype, orientation in cases
    ]


def _compare(what: str, datatype: str, orientation: int) -> Comparison:
    body = photo(orientation)
    options = ImageOptions(mean=(127.5,), std=(127.5,))
    picture = PictureInput(
        TensorSpec("image", datatype, (1, SIDE, SIDE, 3)), options, 64_000_000
    )
    sides: tuple[Callable[[], Any], ...] = (
        lambda: picture.read(memoryview(body)),
        lambda: pillow_alone(body),
    )
    samples: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS + WARM_UP):
        for side, kept in zip(sides, samples, strict=True):
            began = time.perf_counter()
            side()
            if turn >= WARM_UP:
                kept.append((time.perf_counter() - began) * 1e3)
    return Comparison(
        "I1", f"12 MP JPEG, {what}", "ms", *samples, goal=GOAL, against="Pillow alone"
    )


def run_v2(effort: Effort) -> list[Result]:
    """Measure from a file's bytes to labels or a picture."""
    file = find_mobilenet()
    if file is None:
        return [Missing("V2", "12 MP JPEG to labels", NO_MOBILENET)]
    body = photo(SIDEWAYS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "photo.jpg").write_bytes(body)
        (folder / "models").mkdir()
        shutil.copyfile(file, folder / "models" / "mobilenet.tflite")
        stack.enter_context(pinned(CLIENT_CORE))
        ours = stack.enter_context(our_server(folder / "models", "--threads", "1"))
        script = ("labels", "pillow", str(file), str(folder / "photo.jpg"))
        client = stack.enter_context(
            Client(f"socket://127.0.0.1:{ours.socket}", token_file=NO_TOKEN)
        )
        floors = _start_floors(stack, client, body, script)
        sides: dict[str, Callable[[], object]] = {
            "plain": lambda: client.predict("mobilenet", body),
            "alone": floors["plain"].measure,
        }
        for kind in DRAWINGS:
            sides[kind] = partial(client.predict, "mobilenet", body, annotate=kind)
            sides[f"{kind} alone"] = floors[kind].measure
        samples = interleave(sides, effort.of(0.1))
    return _v2_results(samples, floors)


def _start_floors(
    stack: ExitStack, client: Client, body: bytes, script: tuple[str, ...]
) -> dict[str, _Floor]:
    """Start a script for plain answers, and one for each kind of drawing."""
    child, _ = stack.enter_context(module(*script))
    check_labels(child, client.predict("mobilenet", body))
    floors = {"plain": _Floor(child)}
    for kind in DRAWINGS:
        picture = client.predict("mobilenet", body, annotate=kind)
        query = ",".join(map(str, _kind_and_size(picture)))
        drawing, _ = stack.enter_context(module(*script, query))
        floors[kind] = _Floor(drawing)
    return floors


class _Floor:
    """A script without a server; it measures its own runs in milliseconds."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self.samples: list[float] = []

    def measure(self) -> None:
        """Run the script once."""
        self.samples.append(ask(self._child, "") / 1e3)


def _v2_results(
    samples: Mapping[str, list[float]], floors: Mapping[str, _Floor]
) -> list[Result]:
    against = "Pillow, NumPy, model, one process"
    plain = [latency / 1e3 for latency in samples["plain"]]
    count = len(plain)  # the floors' samples begin with those of the warm-up
    title = "12 MP JPEG to labels, over the socket"
    floor = floors["plain"].samples[-count:]
    results: list[Result] = [
        Comparison("V2", title, "ms", plain, floor, PLAIN_GOAL, against=against)
    ]
    for kind in DRAWINGS:
        times = [latency / 1e3 for latency in samples[kind]]
        floor = floors[kind].samples[-count:]
        title = f"the same, drawn ({kind.upper()})"
        results.append(
            Comparison(
                "V2", title, "ms", times, floor, DRAWN_GOAL, against=f"{against}, drawn"
            )
        )
        results.append(
            Comparison("V2", title, "ms", times, plain, None, against="undrawn")
        )
    return results


def _kind_and_size(file: bytes) -> tuple[str, int, int]:
    from PIL import Image

    with Image.open(io.BytesIO(file)) as picture:
        return str(picture.format), picture.width, picture.height


def check_labels(child: subprocess.Popen[bytes], answer: dict[str, Any]) -> None:
    """Check that the module ``labels`` answers like the server.

    Raises:
        RuntimeError: it does not.
    """
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(b"labels\n")
    child.stdin.flush()
    labels = json.loads(child.stdout.readline())
    ours = [entry["label"] for entry in answer["predictions"]]
    if labels != ours:
        raise RuntimeError(
            f"both sides were asked the same: one process says {labels}, the server {ours}"
        )


def pillow_alone(body: bytes) -> Any:
    """Return an upright JPEG's pixels in the model's size."""
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(body)) as image:
        image.draft("RGB", (SIDE, SIDE))
        upright = ImageOps.exif_transpose(image)
        return np.asarray(upright.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def pillow_drawn(
    body: bytes, entries: list[dict[str, Any]], kind: str, width: int, height: int
) -> bytes:
    """Return the encoded photo with labels and bars below.

    The file is decoded again, like in our server: scaling the larger picture would change
    the scores.
    """
    from PIL import Image, ImageDraw, ImageFont, ImageOps

    with Image.open(io.BytesIO(body)) as image:
        image.draft("RGB", (DRAWN_SIDE, DRAWN_SIDE * 3 // 4))
        upright = ImageOps.exif_transpose(image)
    upright.thumbnail((width, DRAWN_SIDE), Image.Resampling.BILINEAR)
    picture = Image.new("RGB", (width, height), (24, 26, 31))
    picture.paste(upright)
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(40)
    line = (height - upright.height) / max(1, len(entries))
    for row, entry in enumerate(entries):
        top = upright.height + row * line
        draw.text((10, top), f"{entry['label']} {entry['score']:.1%}", "white", font)
        draw.rectangle(
            (
                10,
                top + 0.8 * line,
                10 + entry["score"] * (width - 20),
                top + 0.9 * line,
            ),
            "blue",
        )
    file = io.BytesIO()
    picture.save(file, kind, compress_level=3, quality=90)
    return file.getvalue()


def photo(orientation: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> bytes:
    """A JPEG, by default of 12 megapixels."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    scene(*size).save(file, "JPEG", quality=90, exif=exif)
    return file.getvalue()


def scene(width: int, height: int) -> Any:
    """Return a picture with a photo's detail and noise."""
    from PIL import Image

    random = np.random.default_rng(12)
    small = Image.fromarray(
        random.integers(0, 256, (height // 50, width // 50, 3), np.uint8)
    )
    soft = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noisy = soft + random.integers(-8, 9, (height, width, 1), np.int16)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
