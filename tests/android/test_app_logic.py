"""Run the app's plain classes before and after dex."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter

from conftest import MODELS, ROOT
from pocketserve.tasks.vision.drawing import colour

from .conftest import load_script

pytestmark = pytest.mark.java
BRIDGE = ROOT / "android_bridge"
PURE = "dev/pocketserve/sample/pure"
TESTS = BRIDGE / "sample/test" / PURE
PACKAGE = PURE.replace("/", ".")
MODULE_PX = 6
FRAME = (640, 480)
PORTS = (18470, 18471)


def run(*command: object) -> str:
    """Run a program and return its output."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def builder() -> Any:
    return load_script(BRIDGE / "build_apk.py")


@pytest.fixture(scope="module")
def zxing(builder: Any) -> Path:
    return builder.load_zxing()


@pytest.fixture(scope="module")
def compiled(
    toolchain: Any, zxing: Path, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return the class path of the library and the app's plain classes.

    javac saw only Android 6.
    """
    classes = tmp_path_factory.mktemp("pure")
    sources = [
        *(BRIDGE / "java/src").rglob("*.java"),
        *(BRIDGE / "sample/src" / PURE).glob("*.java"),
    ]
    command = [
        toolchain.javac,
        "-nowarn",
        "-source",
        "8",
        "-target",
        "8",
        "-Xlint:-options",
        "-d",
        classes,
    ]
    run(
        *command,
        "-bootclasspath",
        toolchain.android_jar,
        "-cp",
        zxing,
        *sources,
    )
    return os.pathsep.join(map(str, (classes, zxing, toolchain.json_jar)))


@pytest.fixture(scope="module")
def dexed(
    builder: Any, toolchain: Any, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return the class path of the APK's classes, converted back from dex."""
    folder = tmp_path_factory.mktemp("dexed")
    with zipfile.ZipFile(builder.build(toolchain, folder / "sample.apk")) as archive:
        archive.extract("classes.dex", folder)
    run(toolchain.enjarify, "--force", "-o", folder / "app.jar", folder / "classes.dex")
    return os.pathsep.join(map(str, (folder / "app.jar", toolchain.json_jar)))


@pytest.fixture(scope="module")
def tests(
    toolchain: Any, compiled: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Compile the tests."""
    classes = tmp_path_factory.mktemp("tests")
    path = os.pathsep.join((compiled, toolchain.junit4))
    run(
        toolchain.javac,
        "--release",
        "8",
        "-Xlint:-options",
        "-cp",
        path,
        "-d",
        classes,
        *TESTS.glob("*.java"),
    )
    return classes


def passed(
    toolchain: Any, path: str, tests: Path, names: list[str], **properties: object
) -> int:
    """Return the number of passed tests; check that none failed."""
    given = [f"-Dpocketserve.{key}={value}" for key, value in properties.items()]
    whole = os.pathsep.join((path, str(tests), toolchain.junit4))
    classes = [f"{PACKAGE}.{name}" for name in names]
    told = run(
        toolchain.java, *given, "-cp", whole, "org.junit.runner.JUnitCore", *classes
    )
    match = re.search(r"OK \((\d+) tests?\)", told)
    assert match is not None, told
    return int(match[1])


# Frames with QR codes


def qr_matrix(text: str) -> Any:
    """Return the modules of a QR code as a terminal shows it, light ones 255."""
    rows = []
    for line in text.splitlines():
        rows.append([255 * (character in "█▀") for character in line])
        rows.append([255 * (character in "█▄") for character in line])
    return np.array(rows, np.uint8)


def frame(code: Any = None, degrees: float = 0.0) -> Image.Image:
    """Return a camera's frame with the code in the middle of a grey area."""
    whole = Image.new("L", FRAME, 128)
    if code is not None:
        side = MODULE_PX * code.shape[1]
        picture = Image.fromarray(code).resize(
            (side, MODULE_PX * code.shape[0]), Image.Resampling.NEAREST
        )
        picture = picture.rotate(
            degrees, Image.Resampling.BICUBIC, expand=True, fillcolor=128
        )
        whole.paste(
            picture, ((FRAME[0] - picture.width) // 2, (FRAME[1] - picture.height) // 2)
        )
    return whole


def aslant(picture: Image.Image) -> Image.Image:
    """Return the frame as a hand-held camera sees it: in perspective, blurred and
    noisy.
    """
    seen = picture.transform(
        FRAME,
        Image.Transform.PERSPECTIVE,
        (1.05, 0.08, -20, 0.03, 1.1, -30, 0.0001, 0.0002),
        Image.Resampling.BICUBIC,
    ).filter(ImageFilter.GaussianBlur(1.2))
    grain = np.random.default_rng(18).normal(0, 6, (FRAME[1], FRAME[0]))
    return Image.fromarray(
        (np.asarray(seen, float) * 0.7 + 25 + grain).clip(0, 255).astype(np.uint8)
    )


def save(path: Path, picture: Image.Image, gap: int = 0) -> None:
    """Write width, height and row stride, then rows with gaps between them.

    The last row has no gap after it.
    """
    stride = picture.width + gap
    rows = np.zeros((picture.height, stride), np.uint8)
    rows[:, : picture.width] = np.asarray(picture)
    pixels = rows.tobytes()[: stride * (picture.height - 1) + picture.width]
    path.write_bytes(
        struct.pack(">iii", picture.width, picture.height, stride) + pixels
    )


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Write a folder of frames that show the command's QR code, and its token."""
    folder = tmp_path_factory.mktemp("frames")
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "token",
        "--token-file",
        folder / "token",
    ]
    token = run(*command).strip()
    ports = ["--http-port", PORTS[0], "--socket-port", PORTS[1]]
    code = qr_matrix(run(*command, "--qr", *ports).rstrip("\n"))
    import segno

    foreign = np.array(
        [
            [255 * (not dark) for dark in row]
            for row in segno.make("https://example.org").matrix_iter(border=4)
        ]
    )
    save(folder / "plain", frame(code))
    save(folder / "inverted", frame(255 - code))
    save(folder / "turned", frame(code, 90), gap=32)
    save(folder / "photo", aslant(frame(code, 8)))
    save(folder / "foreign", frame(foreign.astype(np.uint8)))
    save(folder / "empty", frame())
    return folder, token


CASES = (
    "TokenTextTest",
    "PicturesTest",
    "ScreenTest",
    "ModelMenuTest",
    "OverlayTest",
    "QrScanTest",
)


def test_every_test_class_is_run() -> None:
    assert {file.stem for file in TESTS.glob("*Test.java")} == {*CASES, "LiveTest"}


@pytest.mark.parametrize("form", ["compiled", "dexed"])
def test_the_plain_classes_pass_their_tests(
    form, toolchain, tests, frames, request
) -> None:
    path = request.getfixturevalue(form)
    colours = ",".join(
        "{:02x}{:02x}{:02x}".format(*colour(index)) for index in range(256)
    )
    folder, token = frames
    count = passed(
        toolchain, path, tests, list(CASES), frames=folder, token=token, colours=colours
    )
    written = sum(
        file.read_text("utf-8").count("@Test") for file in TESTS.glob("*.java")
    )
    assert count == written - 1  # except LiveTest's


@pytest.mark.live
def test_a_real_servers_models_are_chosen_queried_and_drawn(
    toolchain, dexed, tests, new_server
) -> None:
    server = new_server(MODELS)
    picture = sorted((MODELS / "numbers" / "samples").glob("*.jpg"))[0]
    ports = {"http": server.port, "socket": server.socket_port}
    assert (
        passed(
            toolchain,
            dexed,
            tests,
            ["LiveTest"],
            token=server.token,
            picture=picture,
            **ports,
        )
        == 1
    )


def test_the_plain_classes_do_not_use_android() -> None:
    for file in (BRIDGE / "sample/src" / PURE).glob("*.java"):
        assert not re.search(
            r"^import android", file.read_text("utf-8"), re.MULTILINE
        ), file
