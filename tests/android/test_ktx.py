"""Compile and run the library for Kotlin as an app would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS, ROOT, Server, start_server
from held_server import HeldServer, until
from sequence_models import FEEDBACK, running_sum

from .conftest import Compile, load_script

pytestmark = [pytest.mark.java, pytest.mark.live]

SCRIPT = load_script(ROOT / "android_bridge" / "build.py")
KTX = ROOT / "android_bridge" / "ktx"
PICTURE = MODELS / "digits/samples/7.png"
TRANSPORTS = ["SOCKET", "HTTP"]
ALLOWED_S = 120.0
DOCUMENTED = r"^( *)public (?!companion)[a-z ]*(?:fun|class|object) .*"

CALLS = [
    "classify 7",
    "predict 7",
    "infer 10",
    "live true ready true digits true false",
    "server pocketserve model digits",
    "models true true",
    "unloaded false",
    "loaded true",
    "sums [1.0, 3.0, 6.0]",
]
FRAMES = ["null 0 7", "nv21 90 7", "nv21 90 7", "rgba 90 7", "rgba 90 7", "7"]
RULES = """
{inputs}
-outjars {out}
-libraryjars {stubs}
-libraryjars {android}
-dontwarn
-dontnote
-optimizationpasses 1
-allowaccessmodification
-repackageclasses x
-keep class ProgramKt {{ public static void main(java.lang.String[]); }}
# These three are coroutines' own rules, which Gradle takes from their jar.
-keepclassmembers class kotlinx.coroutines.** {{ volatile <fields>; }}
-keepclassmembers class kotlin.coroutines.SafeContinuation {{ volatile <fields>; }}
-keepnames class kotlinx.coroutines.internal.MainDispatcherFactory {{}}
# The program takes its transport by name, for which every app has this rule from Android's own default file.
-keepclassmembers enum dev.pocketserve.bridge.Transport {{ public static **[] values(); public static ** valueOf(*); }}
"""

Command = Callable[..., list[str]]


@dataclass
class Built:
    """Results of the build.

    Attributes:
        build: the steps.
        libraries: the jars of both libraries.
        stubs: stand-ins for Android's and CameraX's classes.
        program: the test program's classes.
    """

    build: Any
    libraries: list[Path]
    stubs: Path
    program: Path


@pytest.fixture(scope="module")
def built(
    toolchain: Any, kotlinc: Compile, tmp_path_factory: pytest.TempPathFactory
) -> Built:
    """Build the libraries and a program that uses them."""
    folder = tmp_path_factory.mktemp("ktx")
    build = SCRIPT.Build(toolchain, folder)
    stubs = folder / "stubs"
    library = build.library()
    libraries = [library, build.ktx(library)]
    java8 = ["-source", "8", "-target", "8", "-Xlint:-options"]
    sources = sorted((KTX / "test").rglob("*.java"))
    subprocess.run(
        [toolchain.javac, *java8, "-d", stubs, *sources], check=True, timeout=120
    )
    path = os.pathsep.join(map(str, [*libraries, stubs]))
    kotlinc([KTX / "test/Program.kt"], path, folder / "program")
    return Built(build, libraries, stubs, folder / "program")


@pytest.fixture(scope="module")
def shrunk(
    built: Built, toolchain: Any, app_tools: Any, kotlin_tools: Any
) -> list[Path]:
    """Shrink program and libraries, Kotlin's included, without rules for the libraries."""
    folder = built.build.output
    parts = [*built.libraries, built.program, *kotlin_tools.libraries.split(os.pathsep)]
    inputs = "".join(
        f"-injars {part}(!META-INF/**,!module-info.class)\n" for part in parts
    )
    rules = RULES.format(
        inputs=inputs,
        out=folder / "shrunk.jar",
        stubs=built.stubs,
        android=toolchain.android_jar,
    )
    (folder / "rules.pro").write_text(rules)
    command = [
        toolchain.java,
        "-cp",
        app_tools.proguard,
        "proguard.ProGuard",
        f"@{folder / 'rules.pro'}",
    ]
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(folder / "shrunk.jar") as archive:
        assert not [
            name for name in archive.namelist() if name.startswith("dev/pocketserve")
        ]
    return [folder / "shrunk.jar"]


@pytest.fixture(scope="module")
def forms(built: Built, shrunk: list[Path], kotlin_tools: Any) -> dict[str, list[Path]]:
    """Return the class path of each form of the libraries."""
    kotlin = [Path(jar) for jar in kotlin_tools.libraries.split(os.pathsep)]
    dexed = built.build.dexed(*built.libraries)
    return {"dexed": [dexed, built.program, *kotlin], "shrunk": shrunk}


@pytest.fixture(scope="module")
def command(built: Built, toolchain: Any, kotlin_tools: Any) -> Command:
    """Return a function that gives the test program's command.

    ``command("calls", "HTTP", *addresses)``, optionally with other jars.
    """

    def start(
        what: str, transport: str, *addresses: str, jars: list[Path] | None = None
    ) -> list[str]:
        parts = jars or [*built.libraries, built.program, kotlin_tools.libraries]
        path = os.pathsep.join(map(str, [*parts, built.stubs, toolchain.json_jar]))
        return [
            str(toolchain.java),
            "-cp",
            path,
            "ProgramKt",
            what,
            transport,
            *addresses,
            str(PICTURE),
        ]

    return start


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server, with a stateful model, whose models the program may unload."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(MODELS, folder / "models")
    memory = folder / "models/sum"
    memory.mkdir()
    running_sum(memory / "sum.onnx", 2)
    (memory / "model.toml").write_text(FEEDBACK)
    running = start_server(folder, folder / "models")
    yield running
    assert running.stop() == 0


@pytest.fixture
def program_output(command: Command, live: Server) -> Callable[..., list[str]]:
    """Return a function that runs a program to its end and gives its lines."""

    def start(what: str, transport: str, jars: list[Path] | None = None) -> list[str]:
        where = [
            str(live.socket_port),
            str(live.port),
            live.ready["token_file"],
        ]
        words = command(what, transport, *where, jars=jars)
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=ALLOWED_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return start


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldServer]:
    """Start a server whose model can be kept busy."""
    server = HeldServer(tmp_path)
    yield server
    server.close()


class Dialog:
    """A program that reads commands from its standard input."""

    def __init__(self, words: list[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )
        self._limit = threading.Timer(ALLOWED_S, self._process.kill)
        self._limit.start()

    def say(self, word: str) -> None:
        """Write a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """Read a line; empty at the end."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        """Wait for the end and check the exit code."""
        self._process.communicate(timeout=ALLOWED_S)
        assert self._process.returncode == 0

    def close(self) -> None:
        """Kill the program."""
        self._limit.cancel()
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def dialog(command: Command, held: HeldServer) -> Iterator[Callable[..., Dialog]]:
    """Return a function that starts the program while the server's model is busy."""
    with ThreadPoolExecutor(1) as pool, ExitStack() as ends:

        def start(what: str, transport: str) -> Dialog:
            talk = Dialog(command(what, transport, *held.addresses))
            ends.callback(talk.close)
            assert talk.hear() == "ready"
            held.model.hold(pool)
            ends.callback(held.model.go)
            talk.say("begin")
            return talk

        yield start


def test_everything_public_is_documented() -> None:
    for file in sorted((KTX / "src").rglob("*.kt")):
        lines = file.read_text("utf-8").splitlines()
        places = [
            number for number, line in enumerate(lines) if re.match(DOCUMENTED, line)
        ]
        assert places, file
        for number in places:
            assert lines[number - 1].strip().endswith("*/"), f"{file.name}:{number + 1}"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_call_answers(
    program_output: Callable[..., list[str]], transport: str
) -> None:
    assert program_output("calls", transport) == CALLS


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("form", ["dexed", "shrunk"])
def test_a_phones_form_behaves_the_same(
    program_output: Callable[..., list[str]],
    forms: dict[str, list[Path]],
    form: str,
    transport: str,
) -> None:
    """The forms are dex and back, and renamed by a shrinker."""
    assert program_output("calls", transport, forms[form]) == CALLS
    assert program_output("frames", transport, forms[form]) == FRAMES


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_fault_is_the_librarys_exception(
    program_output: Callable[..., list[str]], transport: str
) -> None:
    lines = program_output("faults", transport)
    assert lines[:-1] == [
        *(
            "MODEL_NOT_FOUND",
            "INVALID_INPUT",
            "MODEL_NOT_FOUND",
            "MODEL_NOT_FOUND",
            "the work's own",
            "CLOSED",
        ),
        *("TOKEN_UNKNOWN", "SERVER_UNREACHABLE", "SERVER_UNREACHABLE"),
    ]
    assert lines[-1].startswith("this client was closed")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_frames_of_every_kind_are_the_same_picture(
    program_output: Callable[..., list[str]], transport: str
) -> None:
    assert program_output("frames", transport) == FRAMES


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_flow_continues_after_an_error_if_requested(
    program_output: Callable[..., list[str]], transport: str
) -> None:
    assert program_output("retry", transport) == ["7 after 1"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_only_the_first_and_the_newest_of_ten_frames_are_sent(
    dialog: Callable[..., Dialog], held: HeldServer, transport: str
) -> None:
    """Nine frames arrive during the first request: the server gets two."""
    talk = dialog("newest", transport)
    before = held.answered
    queue = held.model.queue
    until(lambda: queue.waiting == 1)
    talk.say("more")
    assert talk.hear() == "given"
    assert queue.waiting == 1
    held.model.go()
    assert [talk.hear(), talk.hear()] == ["answer 0 7", "answer 9 7"]
    talk.say("end")
    assert talk.hear() == "over"
    talk.end()
    until(lambda: held.answered == before + 2)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "what", ["cancel-call", "cancel-flow", "cancel-work", "cancel-work-flow"]
)
def test_a_cancelled_coroutine_cancels_its_request(
    dialog: Callable[..., Dialog], held: HeldServer, transport: str, what: str
) -> None:
    """The model is still busy.

    HTTP doesn't detect that the client has gone.
    """
    talk = dialog(what, transport)
    before = held.answered
    queue = held.model.queue
    until(lambda: queue.waiting == 1)
    talk.say("cancel")
    assert [talk.hear(), talk.hear()] == ["cancelled", "over"]
    assert held.answered == before
    if transport == "SOCKET":
        until(lambda: held.model.ended("cancelled") == 1)
        assert queue.waiting == 0
    talk.say("end")
    talk.end()


def test_a_frame_that_the_server_dropped_is_not_an_error(
    dialog: Callable[..., Dialog], held: HeldServer
) -> None:
    """Another client sends frames of the same stream."""
    talk = dialog("newest", "SOCKET")
    queue = held.model.queue
    until(lambda: queue.waiting == 1)
    [(_, stream)] = queue._entries.streams
    held.model.peer.ask(
        f"POST /predictions/digits?stream={stream}", PICTURE.read_bytes()
    )
    until(lambda: held.model.ended("superseded") == 1)
    talk.say("more")
    assert talk.hear() == "given"
    held.model.go()
    # Of the nine, the first may have been sent before the others arrived.
    answers = [talk.hear()]
    while answers[-1] != "answer 9 7":
        assert answers[-1] == "answer 1 7"
        answers.append(talk.hear())
    talk.say("end")
    assert talk.hear() == "over"
    talk.end()
