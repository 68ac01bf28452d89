"""Every Kotlin example of the guides: compiled against Android's classes, and run against a live server."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS, ROOT, Server

from .conftest import load_script

pytestmark = [pytest.mark.java, pytest.mark.live]

SCRIPT = load_script(ROOT / "android_bridge" / "build.py")
EXAMPLES = [
    (guide.stem, code)
    for guide in sorted((ROOT / "docs").rglob("*.md"))
    for code in re.findall(r"^```kotlin\n(.*?)^```$", guide.read_text("utf-8"), re.MULTILINE | re.DOTALL)
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
import dev.pocketserve.bridge.PredictOptions
import dev.pocketserve.bridge.Transport
import java.io.File
import java.util.concurrent.TimeUnit
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.async
import kotlinx.coroutines.runBlocking

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
        }
    }
    val client = builder.build()
    val waiting = async { client.ask("digits", picture) }
    waiting.cancel()
    println(try { waiting.await() } catch (error: CancellationException) { "cancelled" })
    client.close()
    println(describe(client, picture))
    println(describe(PocketServe.builder().socketPort(1).build(), picture))
}
"""


@pytest.fixture(scope="module")
def compiled(toolchain: Any, app_tools: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with the classes of all examples, and the class path that they run on."""
    folder = tmp_path_factory.mktemp("kotlin")
    library = SCRIPT.Build(toolchain, folder / "library").library()
    sources = [folder / f"{guide.replace('-', '_')}{number}.kt" for number, (guide, _) in enumerate(EXAMPLES)]
    for file, (_, code) in zip(sources, EXAMPLES, strict=True):
        file.write_text(code, "utf-8")
    sources.append(folder / "Main.kt")
    sources[-1].write_text(PROGRAM, "utf-8")
    seen = os.pathsep.join([str(library), app_tools.kotlin_libraries, str(toolchain.android_jar)])
    command = [toolchain.java, "-cp", app_tools.kotlin, "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler", "-Werror"]
    # Its own class library is Android's, which says what Android 6 has and what an example may use.
    command += ["-no-jdk", "-no-stdlib", "-no-reflect", "-cp", seen, "-d", folder / "classes", *sources]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    stub = folder / "TextView.java"
    stub.write_text(TEXT_VIEW)
    subprocess.run([toolchain.javac, "-d", folder / "classes", stub], check=True, timeout=120)
    path = [str(folder / "classes"), str(library), app_tools.kotlin_libraries, str(toolchain.json_jar)]
    return folder / "classes", os.pathsep.join(path)


def test_every_example_compiles(compiled: tuple[Path, str]) -> None:
    assert len(EXAMPLES) >= 2 and (compiled[0] / "MainKt.class").exists()


def test_the_examples_run(toolchain: Any, compiled: tuple[Path, str], server: Server) -> None:
    picture = MODELS / "digits" / "samples" / "7.png"
    ports = [str(server.ready[name]["port"]) for name in ("socket", "http")]
    command = [toolchain.java, "-cp", compiled[1], "MainKt", picture, *ports, server.ready["token_file"]]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 7, done
    for described, shown in (lines[0:2], lines[2:4]):
        assert described.startswith("7 (") and re.fullmatch(r"\d \([\d.]+ %\)", shown), done
    assert lines[4] == "cancelled"
    assert lines[5].startswith("this client was closed") and lines[6] == "Start the server in Termux"
