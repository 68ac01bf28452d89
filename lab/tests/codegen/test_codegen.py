"""Compile classes generated from a live server, and run them before and after dex.

They must answer like the Python client, over both transports.
"""

from __future__ import annotations

import shutil
import subprocess
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen_models import write_models
from conftest import MODELS, Server, StartServer, start_server
from drawn import objects, person
from pocketserve_client import Client
from sounds import tone

from .codegen_answers import Lines, all_lines, check
from .codegen_apps import (
    PROGRAMS,
    TIMEOUT_S,
    App,
    class_path,
    compile_java,
    compile_kotlin,
    compile_programs,
    dexed,
    generate,
)

pytest.importorskip("onnx", reason="makes the models")
Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
pytestmark = [pytest.mark.java, pytest.mark.live, pytest.mark.onnx]

TRANSPORTS = ("socket", "http")
FORMS = ("java", "dexed", "kotlin")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on all of these models."""
    models = tmp_path_factory.mktemp("models")
    running = start_server(tmp_path_factory.mktemp("server"), write_models(models))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def kotlin(
    toolchain: Any,
    app_tools: Any,
    library: Path,
    live: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> App:
    """Compile the programs in Kotlin."""
    folder = tmp_path_factory.mktemp("kotlin")
    sources = [
        *generate(live, "kotlin", folder / "src"),
        *sorted(PROGRAMS.glob("*.kt")),
    ]
    classes = compile_kotlin(toolchain, app_tools, library, folder / "classes", sources)
    return App(
        toolchain.java,
        class_path(classes, library, app_tools.kotlin_libraries, toolchain.json_jar),
    )


@pytest.fixture(scope="module")
def apps(
    toolchain: Any,
    library: Path,
    live: Server,
    kotlin: App,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, App]:
    """Return the programs in Kotlin, in Java, and in Java after dex."""
    folder = tmp_path_factory.mktemp("java")
    classes = compile_java(
        toolchain, library, folder / "classes", generate(live, "java", folder / "src")
    )
    programs = compile_programs(
        toolchain,
        folder / "programs",
        sorted(PROGRAMS.glob("*.java")),
        classes,
        library,
        toolchain.json_jar,
    )
    back = dexed(toolchain, folder, library, classes)
    return {
        "kotlin": kotlin,
        "java": App(
            toolchain.java, class_path(programs, classes, library, toolchain.json_jar)
        ),
        "dexed": App(toolchain.java, class_path(programs, back, toolchain.json_jar)),
    }


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the inputs of the programs."""
    folder = tmp_path_factory.mktemp("inputs")
    shutil.copyfile(MODELS / "digits/samples/7.png", folder / "seven.png")
    shutil.copyfile(MODELS / "numbers/samples/page.jpg", folder / "page.jpg")
    for name, draw in (("drawing", objects), ("person", person)):
        draw(1, 320, 240)[0].save(folder / f"{name}.png")
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 4), np.uint8)
    pixels[..., 3] = 255
    (folder / "frame.rgba").write_bytes(pixels.tobytes())
    (folder / "frame.nv21").write_bytes(pixels.tobytes()[:384])
    samples = (tone(1.0) * 20000).astype("<i2")
    (folder / "tone.raw").write_bytes(samples.tobytes())
    with wave.open(str(folder / "tone.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return folder


@pytest.fixture(scope="module")
def expected(live: Server, inputs: Path) -> Lines:
    """Return the programs' expected output."""
    with Client(live.url, live.token) as client:
        return all_lines(client, inputs)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("form", FORMS)
def test_programs_answer_like_the_python_client(
    apps: dict[str, App],
    form: str,
    transport: str,
    live: Server,
    inputs: Path,
    expected: Lines,
) -> None:
    command = apps[form].command("Ask", inputs, transport, live)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    check(done.stdout, expected)


@contextmanager
def led(app: App, *arguments: Any) -> Iterator[Any]:
    """Start a program that queries the digits on each command and prints the result."""
    command = app.command("Faults", *arguments)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:

        def tell(word: str) -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        yield tell
    finally:
        process.communicate(timeout=60)


NO_TOKEN = (
    "the server does not know this token; use the one that `pocketserve token` prints"
)
START = "; is the server running? Start it with `pocketserve serve` "
AGAIN = "generate the class again: pocketserve codegen digits --language {} --package com.example.app --class Digits"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("form", FORMS)
def test_each_fault_has_its_code_and_sentence(
    apps: dict[str, App],
    form: str,
    transport: str,
    inputs: Path,
    new_server: StartServer,
    tmp_path: Path,
) -> None:
    """The faults are changed and deleted models, a wrong token and a stopped server."""
    app = apps[form]
    models = tmp_path / "models"
    models.mkdir()
    shutil.copytree(MODELS / "digits", models / "digits")
    server = new_server(models)
    with led(app, inputs, transport, server) as tell:
        assert tell("ask") == "7"
        labels = "zero\n" + "\n".join("123456789") + "\n"
        (models / "digits/labels.txt").write_text(labels)
        assert tell("ask") == "7"  # a checked interface is not checked again

        loaded = server.call("POST", "/v2/repository/models/digits/load")
        assert loaded.status_code == 200
        language = "java"
        if form == "kotlin":
            language = "kotlin"
        changed = "model 'digits' is not the one that this class was made from"
        again = AGAIN.format(language)
        assert tell("check") == f"MODEL_CHANGED: {changed}; {again}"
        assert tell("ask").startswith("MODEL_CHANGED: ")

        shutil.rmtree(models / "digits")
        unknown = "Request for unknown model: 'digits' is not found"
        assert tell("ask").startswith(f"MODEL_NOT_FOUND: {unknown}")

        wrong = tmp_path / "wrong"
        wrong.write_text("0" * 43)
        with led(app, inputs, transport, server, wrong) as unauthenticated:
            assert unauthenticated("ask") == f"TOKEN_UNKNOWN: {NO_TOKEN}"
    assert server.stop() == 0
    with led(app, inputs, transport, server) as tell:
        answer = tell("ask")
        assert answer.startswith("SERVER_UNREACHABLE: nothing answers at ")
        assert START in answer
