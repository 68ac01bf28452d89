"""Compile and run every Kotlin example of the guides."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from codegen.codegen_apps import generate
from conftest import MODELS, ROOT, Server
from pocketserve_client import Client

from .conftest import Compile, load_script

pytestmark = [pytest.mark.java, pytest.mark.live]

KTX = ROOT / "android_bridge" / "ktx"
SCRIPT = load_script(ROOT / "android_bridge" / "build.py")
EXAMPLES = [
    (guide.stem, code)
    for guide in sorted((ROOT / "docs").rglob("*.md"))
    for code in re.findall(
        r"^```kotlin(?: generated)?\n(.*?)^```$",
        guide.read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
]
TEXT_VIEW = """
package android.widget;

import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** Stands for Android's class of this name, which the example shows its answers in. */
public class TextView {
    public final BlockingQueue<CharSequence> shown = new LinkedBlockingQueue<>();

    public final void setText(CharSequence text) {
        shown.add(text);
    }
}
"""
PROGRAM = """
import android.widget.TextView
import dev.pocketserve.bridge.PocketServe
import androidx.camera.core.ImageAnalysis
import dev.pocketserve.bridge.Transport
import java.io.File
import java.util.concurrent.Executor
import java.util.concurrent.TimeUnit
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.async
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.flowOf
import kotlinx.coroutines.launch
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.yield

fun shown(label: Any) =
    (label.javaClass.getField("shown").get(label) as java.util.concurrent.BlockingQueue<*>).poll(20, TimeUnit.SECONDS)

fun main(given: Array<String>) = runBlocking<Unit> {
    val picture = File(given[0]).readBytes()
    val builder = PocketServe.builder().tokenFile(File(given[3]))
    builder.socketPort(given[1].toInt()).httpPort(given[2].toInt())
    for (way in listOf(Transport.SOCKET, Transport.HTTP)) {
        builder.transport(way).build().use { server ->
            println(describe(server, picture))
            val label = TextView::class.java.getConstructor().newInstance()
            val live = LiveLabels(server, label)
            live.onCameraFrame(ByteArray(64 * 64 * 3 / 2) { 128.toByte() }, 64, 64, 0)
            println(shown(label))
            live.close()
            val analysis = ImageAnalysis()
            val screen = launch(Dispatchers.Default) { show(analysis.frames(Executor { it.run() }), server, label) }
            while (!analysis.give(Pictures.proxy(given[0], 90))) yield() // until the camera is asked for frames
            println(shown(label))
            screen.cancelAndJoin()
            check(!analysis.give(Pictures.proxy(given[0], 90))) { "nobody looks any more" }
            val reader = DigitReader(server)
            val frames = flowOf(Pictures.proxy(given[0], 90).toFrame())
            println("${reader.isSeven(picture)} ${reader.labels(frames).first()}")
            println(petalWidth(server))
        }
    }
    val client = builder.build()
    val waiting = async { describe(client, picture) }
    waiting.cancel()
    println(try { waiting.await() } catch (error: CancellationException) { "cancelled" })
    client.close()
    println(describe(client, picture))
    println(describe(PocketServe.builder().socketPort(1).build(), picture))
}
"""


def write_examples(folder: Path) -> list[Path]:
    """Write the examples and the program that runs them."""
    sources = []
    for number, (guide, code) in enumerate(EXAMPLES):
        file = folder / f"{guide.replace('-', '_')}{number}.kt"
        file.write_text(code, "utf-8")
        sources.append(file)
    program = folder / "Main.kt"
    program.write_text(PROGRAM, "utf-8")
    return [*sources, program]


@pytest.fixture(scope="module")
def compiled(
    toolchain: Any,
    kotlin_tools: Any,
    kotlinc: Compile,
    server: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, str]:
    """Compile all examples; return their folder and class path."""
    folder = tmp_path_factory.mktemp("kotlin")
    build = SCRIPT.Build(toolchain, folder / "library")
    library = build.library()
    camera = folder / "camera"
    view = folder / "view"
    text_view = folder / "TextView.java"
    text_view.write_text(TEXT_VIEW)
    stubs = {camera: sorted((KTX / "test").rglob("*.java")), view: [text_view]}
    for classes, java in stubs.items():
        subprocess.run([toolchain.javac, "-d", classes, *java], check=True, timeout=120)

    generated = generate(server, "kotlin", folder / "generated", ("digits", "petals"))
    sources = [*write_examples(folder), *generated]
    libraries = [library, build.ktx(library)]
    # Android's classes come first, so only CameraX's stand-ins are used.
    path = os.pathsep.join(map(str, (*libraries, toolchain.android_jar, camera)))
    kotlinc(sources, path, folder / "classes")
    parts = [
        folder / "classes",
        *libraries,
        camera,
        view,
        kotlin_tools.libraries,
        toolchain.json_jar,
    ]
    return folder / "classes", os.pathsep.join(map(str, parts))


def test_every_example_compiles(compiled: tuple[Path, str]) -> None:
    assert len(EXAMPLES) >= 2
    assert (compiled[0] / "MainKt.class").exists()


def test_the_examples_run(
    toolchain: Any, compiled: tuple[Path, str], server: Server
) -> None:
    picture = MODELS / "digits" / "samples" / "7.png"
    ports = [str(server.ready[name]["port"]) for name in ("socket", "http")]
    command = [
        toolchain.java,
        "-cp",
        compiled[1],
        "MainKt",
        picture,
        *ports,
        server.ready["token_file"],
    ]
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 13, done
    with Client(server.url, server.token) as client:
        width = client.predict("petals", [[5.1, 3.5, 1.4]])["predictions"][0]["value"]
    for described, shown, seen, typed, petal in (lines[0:5], lines[5:10]):
        assert described.startswith("7 (") and re.fullmatch(
            r"\d \([\d.]+ %\)", shown
        ), done
        assert re.fullmatch(r"\d+: 7 \([\d.]+ %\)", seen), done
        assert typed == "true LABEL_7" and float(petal) == pytest.approx(width), done
    assert lines[10] == "cancelled"
    assert lines[11].startswith("this client was closed")
    assert lines[12] == "Start the server in Termux"
