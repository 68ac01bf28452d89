"""Compile and run the Java and Kotlin that the web page shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from codegen.codegen_apps import class_path, run
from conftest import MODELS, ROOT, Server

from .conftest import Compile

pytestmark = [pytest.mark.java, pytest.mark.live]

WEB = ROOT / "server" / "pocketserve" / "web"
HOSTILE = 'a "b" $c ${d} \\ \\u0041 \\f \f\b\t\r\n\x01\x7f\u2028 Σ 🙂'
ROWS = "[[5.1, 3.5, 1.4]]"
REQUESTS: dict[str, dict[str, Any]] = {
    "File": {
        "model": "digits",
        "version": "tflite",
        "query": {"top_k": "1"},
        "file": "7.png",
    },
    "Json": {"model": "petals", "query": {}, "inline": ROWS, "file": "input"},
    "Text": {
        "model": "petals",
        "query": {"note": HOSTILE},
        "inline": HOSTILE,
        "file": "input",
    },
}
WRITE = """
globalThis.location = { origin: process.argv[1], port: new URL(process.argv[1]).port };
const { java, kotlin } = await import(process.argv[2]);
const texts = Object.entries(JSON.parse(process.argv[3])).map(([name, asked]) => [name, [java(asked), kotlin(asked)]]);
console.log(JSON.stringify(Object.fromEntries(texts)));
"""
JAVA = """
import dev.pocketserve.bridge.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;

public class Java%s {
    public static void main(String[] arguments) throws Exception {
        String token = arguments[0];
        try {
            %s
        } catch (PocketServeException error) {
            System.out.println(error.getCode());
        }
        %s
    }
}
"""
KOTLIN = """
import dev.pocketserve.bridge.*
import java.io.File

object Kotlin%s {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val token = arguments[0]
        try {
            %s
        } catch (error: PocketServeException) {
            println(error.code)
        }
        %s
    }
}
"""
ECHO = {
    "java": "System.out.println(new org.json.JSONArray().put({}));",
    "kotlin": "println(org.json.JSONArray().put({}))",
}


def shown(origin: str, folder: Path) -> dict[str, tuple[str, str]]:
    """Return the page's Java and Kotlin for these requests."""
    node = shutil.which("node")
    if node is None:
        pytest.fail("node is missing: install nodejs, which runs the page's scripts")
    folder.mkdir()
    for name in ("requests.js", "predict.js", "server.js"):
        shutil.copy(WEB / name, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    arguments = [
        origin,
        str(folder / "requests.js"),
        json.dumps(REQUESTS),
    ]
    command = [node, "--input-type=module", "--eval", WRITE, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return {
        name: (java, kotlin) for name, (java, kotlin) in json.loads(done.stdout).items()
    }


@pytest.fixture(scope="module")
def programs(
    toolchain: Any,
    kotlin_tools: Any,
    kotlinc: Compile,
    library: Path,
    server: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """Return the class path of a program per request and language.

    Each also prints the text that it contains.
    """
    folder = tmp_path_factory.mktemp("page")
    java = folder / "java"
    kotlin = folder / "kotlin"
    java.mkdir()
    kotlin.mkdir()
    for name, texts in shown(server.url, folder / "web").items():
        for language, frame, text, target in (
            ("java", JAVA, texts[0], java / f"Java{name}.java"),
            ("kotlin", KOTLIN, texts[1], kotlin / f"Kotlin{name}.kt"),
        ):
            literals = re.findall(r'\.parameter\("note", (".*")\)', text)
            echo = ""
            if literals:
                echo = ECHO[language].format(literals[0])
            target.write_text(frame % (name, text, echo), "utf-8")
    run([toolchain.javac, "-encoding", "UTF-8", "-cp", class_path(library, toolchain.json_jar), "-d", folder / "out",
         *sorted(java.iterdir())])  # fmt: skip
    kotlinc(sorted(kotlin.iterdir()), class_path(library), folder / "out-kotlin")
    return class_path(
        folder / "out",
        folder / "out-kotlin",
        library,
        kotlin_tools.libraries,
        toolchain.json_jar,
    )


@pytest.mark.parametrize("language", ["Java", "Kotlin"])
def test_the_pages_code_runs(
    toolchain: Any, programs: str, server: Server, language: str
) -> None:
    """A file and JSON are answered.

    A text of any characters arrives unchanged.
    """
    said = {}
    for name in REQUESTS:
        command = [
            toolchain.java,
            "-Dfile.encoding=UTF-8",
            "-cp",
            programs,
            f"{language}{name}",
            server.token,
        ]
        done = subprocess.run(
            [str(word) for word in command],
            cwd=MODELS / "digits/samples",
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said[name] = done.stdout.split("\n")
    assert json.loads(said["File"][0])[0]["label"] == "7"
    assert json.loads(said["Json"][0])[0]["unit"] == "cm"
    assert said["Text"][0] == "INVALID_PARAMETER"
    assert json.loads(said["Text"][1]) == [HOSTILE]
