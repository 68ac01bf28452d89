"""Compile extreme classes and the guide's examples, without a server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS, ROOT
from pocketserve.engine.interface import describe_interface
from pocketserve.terminal.local import open_local
from pocketserve_lab.codegen.render import ClassRequest, render_class
from pocketserve_lab.codegen.view import MAX_ENUM, MAX_PARAMETERS, read_interface

from .codegen_apps import compile_java, compile_kotlin, dexed

pytestmark = pytest.mark.java

FIELD = {
    "name": "label",
    "kind": "label",
    "meaning": "the class",
}
GUIDE = (ROOT / "docs" / "codegen.md").read_text(encoding="utf-8")


def tensor(
    name: str,
    datatype: str = "FP32",
    shape: tuple[int, ...] = (1, 2),
    **parameters: Any,
) -> dict[str, Any]:
    """Return one input or output."""
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(shape),
        "parameters": parameters,
    }


def interface(**changes: Any) -> dict[str, Any]:
    """Return a picture classifier's interface."""
    call = {
        "verb": "classify",
        "takes": "picture",
        "entry": "Classification",
        "fields": [FIELD],
    }
    facts = {
        "name": "m",
        "version": "1",
        "fingerprint": "0" * 32,
        "task": "t",
        "about": {},
        "calls": [call],
    }
    return {
        **facts,
        "inputs": [tensor("x")],
        "outputs": [tensor("y")],
        **changes,
    }


def features(
    count: int, datatype: str = "FP32", name: str = "column {}"
) -> dict[str, Any]:
    """Return the interface of a table with so many columns."""
    columns = [
        {
            "name": name.format(i),
            "unit": "",
            "datatype": datatype,
        }
        for i in range(count)
    ]
    call = {
        "verb": "classify",
        "takes": "rows",
        "entry": "Classification",
        "fields": [FIELD],
    }
    return interface(features=columns, calls=[call])


EXTREMES = {
    "LabelsOfImageNet": interface(
        labels=[f"class number {i}, which has a long name" for i in range(1001)]
    ),
    "MostLabels": interface(labels=["x" * 300 + str(i) for i in range(MAX_ENUM)]),
    "SameLabels": interface(labels=["same"] * 500),
    "TooManyLabels": interface(labels=[f"label {i}" for i in range(20_000)]),
    "NoLabels": interface(),
    "NoCalls": interface(calls=[], task="custom"),
    "NoTensors": interface(inputs=[], outputs=[]),
    "ManyInputs": interface(
        inputs=[tensor(f"x{i}") for i in range(MAX_PARAMETERS + 1)]
    ),
    "MostInputs": interface(
        inputs=[tensor(f"x{i}", shape=(-1, -1)) for i in range(MAX_PARAMETERS)]
    ),
    "ManyOutputs": interface(outputs=[tensor(f"y{i}") for i in range(500)]),
    "OpenTensors": interface(
        inputs=[tensor("x", open=True)], outputs=[tensor("y", open=True)]
    ),
    "SameTensors": interface(
        inputs=[tensor("a b"), tensor("a-b"), tensor("A b")], outputs=[tensor("served")]
    ),
    "ShapesBeside": interface(
        inputs=[tensor("image_shape"), tensor("image", shape=(-1, -1))]
    ),
    "SingleValues": interface(
        inputs=[tensor("served", shape=())], outputs=[tensor("result", shape=())]
    ),
    "Remembering": interface(inputs=[tensor("x"), tensor("state", optional=True)]),
    "MostColumns": features(MAX_PARAMETERS),
    "ManyColumns": features(MAX_PARAMETERS + 1),
    "NamelessColumns": features(3, name=""),
    "TextColumns": features(3, "BYTES"),
    "ManyTextColumns": features(MAX_PARAMETERS + 1, "BYTES"),
}


def write(
    folder: Path, language: str, answers: dict[str, dict[str, Any]], package: str
) -> list[Path]:
    """Write a class for each interface."""
    folder.mkdir()
    files = []
    for name, answer in answers.items():
        request = ClassRequest("m", language, package, name, None)
        files.append(folder / request.file_name)
        files[-1].write_text(render_class(read_interface(answer), request), "ascii")
    return files


def test_extreme_classes_compile_for_android(
    toolchain: Any, library: Path, tmp_path: Path
) -> None:
    """They are in Java, and dx accepts the result."""
    sources = write(tmp_path / "src", "java", EXTREMES, "com.example.extremes")
    classes = compile_java(toolchain, library, tmp_path / "classes", sources)
    assert dexed(toolchain, tmp_path, classes).stat().st_size > 0


def test_extreme_classes_compile_in_kotlin(
    toolchain: Any, app_tools: Any, library: Path, tmp_path: Path
) -> None:
    sources = write(tmp_path / "src", "kotlin", EXTREMES, "com.example.extremes")
    compile_kotlin(toolchain, app_tools, library, tmp_path / "classes", sources)


def embedded(*names: str) -> dict[str, dict[str, Any]]:
    """Return the embedded models' interfaces by class name."""
    answers = {}
    for name in names:
        service, model, version = open_local(name, str(MODELS))
        try:
            with service.running(model, version) as (_, handle):
                answers[name.capitalize()] = describe_interface(handle.model)
        finally:
            service.close()
    return answers


def test_the_guides_examples_compile(
    toolchain: Any, app_tools: Any, library: Path, tmp_path: Path
) -> None:
    """They use the classes that the commands above them write."""
    for language, compiler in (("java", compile_java), ("kotlin", None)):
        (code,) = re.findall(
            rf"^```{language} generated\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL
        )
        sources = write(
            tmp_path / language,
            language,
            embedded("digits", "petals"),
            "com.example.app",
        )
        sources.append(
            tmp_path / language / ("Reader.java" if compiler else "Reader.kt")
        )
        sources[-1].write_text(code)
        if compiler:
            compiler(toolchain, library, tmp_path / "java-classes", sources)
        else:
            compile_kotlin(
                toolchain, app_tools, library, tmp_path / "kotlin-classes", sources
            )
