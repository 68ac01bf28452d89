"""Run generated classes of eleven public models before and after dex.

They must answer like the Python client; ``test_vision_assets.py`` and similar tests
verify its answers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Server
from pocketserve_client import Client

from .codegen_answers import box, near
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

pytestmark = [pytest.mark.java, pytest.mark.live, pytest.mark.assets]

TRANSPORTS = ("socket", "http")
CLASSIFIERS = (
    "mobilenet_v1_0.25_224_float_metadata",
    "mobilenet_v1_0.25_224_quant",
    "mobilenet_v2_1.0_224_quant",
)


@pytest.fixture(scope="module")
def apps(
    toolchain: Any,
    library: Path,
    asset_server: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """Compile the program; return it before and after dex."""
    folder = tmp_path_factory.mktemp("public")
    sources = generate(asset_server, "java", folder / "src")
    assert len(sources) >= 10
    classes = compile_java(toolchain, library, folder / "classes", sources)
    program = [PROGRAMS / "assets" / "Public.java"]
    json_jar = toolchain.json_jar
    programs = compile_programs(
        toolchain, folder / "programs", program, classes, library, json_jar
    )
    back = dexed(toolchain, folder, library, classes)
    return {
        "java": App(toolchain.java, class_path(programs, classes, library, json_jar)),
        "dexed": App(toolchain.java, class_path(programs, back, json_jar)),
    }


@pytest.fixture(scope="module")
def kotlin(
    toolchain: Any,
    app_tools: Any,
    library: Path,
    asset_server: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> App:
    """Compile the program in Kotlin, which takes minutes for thousands of labels."""
    folder = tmp_path_factory.mktemp("public-kotlin")
    sources = [
        *generate(asset_server, "kotlin", folder / "src"),
        PROGRAMS / "assets" / "Public.kt",
    ]
    classes = compile_kotlin(toolchain, app_tools, library, folder / "classes", sources)
    return App(
        toolchain.java,
        class_path(classes, library, app_tools.kotlin_libraries, toolchain.json_jar),
    )


@pytest.fixture(scope="module")
def inputs(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the program's inputs."""
    folder = tmp_path_factory.mktemp("public-inputs")
    shutil.copyfile(assets / "inputs/images/chelsea.png", folder / "photo")
    shutil.copyfile(min((assets / "inputs").rglob("*.wav")), folder / "sound.wav")
    return folder


def predictions(client: Client, model: str, data: Any) -> list[dict[str, Any]]:
    """Return the entries of an answer."""
    entries: list[dict[str, Any]] = client.predict(model, data)["predictions"]
    return entries


def ranked(client: Client, model: str, data: Any) -> list[list[Any]]:
    """Return label, index and score of each entry."""
    lines = []
    for entry in predictions(client, model, data):
        lines.append(
            [
                entry["label"],
                entry["index"],
                entry["score"],
            ]
        )
    return lines


def tensor(client: Client, model: str, values: Any, output: int = 0) -> Any:
    """Return the first 500 numbers of an output, as a single line."""
    name = client.model_metadata(model)["inputs"][0]["name"]
    outputs = list(client.infer(model, {name: values}).values())
    return [[outputs[output].reshape(-1).tolist()[:500]]]


def tensor_inputs() -> dict[str, tuple[Any, int]]:
    """Return the input of each tensor model, and the index of the output."""
    ramp = (np.arange(43844) % 64 / 64).astype(np.float32)
    return {
        "basic_pitch_nmp": (ramp.reshape(1, 43844, 1), 2),
        "fer_emotion_dynrange": (ramp[:4096].reshape(1, 64, 64, 1), 0),
        "hello_world_float": (ramp[:5].reshape(5, 1), 0),
        "hello_world_int8": (np.array([[-100], [0], [100]], np.int8), 0),
    }


@pytest.fixture(scope="module")
def expected(asset_server: Server, inputs: Path) -> dict[str, list[list[Any]]]:
    """Return the program's expected output."""
    photo = inputs / "photo"
    detector = "coco_ssd_mobilenet_v1_1.0_quant"
    mask = "deeplabv3"
    opinion = "nl_classifier_regex_tokenizer"
    yamnet = "yamnet_audio_classifier_with_metadata"
    lines: dict[str, list[list[Any]]] = {}
    with Client(asset_server.url, asset_server.token, timeout=300) as client:
        for model in CLASSIFIERS:
            lines[model] = ranked(client, model, photo)
        lines[detector] = []
        for e in predictions(client, detector, photo):
            lines[detector].append(
                [
                    e["label"],
                    e["index"],
                    e["score"],
                    *box(e),
                ]
            )
        lines[mask] = []
        for e in predictions(client, mask, photo):
            lines[mask].append(
                [
                    e["label"],
                    e["index"],
                    e["share"],
                    e["pixels"],
                ]
            )
        lines[opinion] = ranked(client, opinion, "a wonderful film")
        lines[yamnet] = ranked(client, yamnet, inputs / "sound.wav")
        for model, (values, output) in tensor_inputs().items():
            lines[model] = tensor(client, model, values, output)
    return lines


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("form", ["java", "dexed"])
def test_public_models_are_answered_in_java(
    apps: Any,
    form: str,
    transport: str,
    asset_server: Server,
    inputs: Path,
    expected: dict[str, list[list[Any]]],
) -> None:
    check_answers(
        apps[form].command("Public", inputs, transport, asset_server), expected
    )


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_public_models_are_answered_in_kotlin(
    kotlin: App,
    transport: str,
    asset_server: Server,
    inputs: Path,
    expected: dict[str, list[list[Any]]],
) -> None:
    check_answers(
        kotlin.command("PublicKotlin", inputs, transport, asset_server), expected
    )


def check_answers(command: list[str], expected: dict[str, list[list[Any]]]) -> None:
    """Run a program and compare its output for every model."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    lines: defaultdict[str, list[list[Any]]] = defaultdict(list)
    for line in done.stdout.splitlines():
        name, _, values = line.partition("\t")
        lines[name].append(json.loads(values))
    assert lines.keys() == expected.keys()
    for name, rows in expected.items():
        assert rows and lines[name] == [
            [near(value) for value in row] for row in rows
        ], name
