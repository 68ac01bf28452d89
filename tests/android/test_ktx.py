"""The library for Kotlin: suspend functions and flows, compiled as for an app and run against a live server."""

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
    """What was compiled.

    Attributes:
        build: the steps.
        libraries: the jars of both libraries.
        stubs: classes that stand for Android's and CameraX's.
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
    """The libraries, and a program that uses them."""
    folder = tmp_path_factory.mktemp("ktx")
    build, stubs = SCRIPT.Build(toolchain, folder), folder / "stubs"
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
    """Program and libraries, Kotlin's own among them, after a shrinker: no rule is the libraries' own."""
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
    """Form of the libraries -> all that the program runs on."""
    kotlin = [Path(jar) for jar in kotlin_tools.libraries.split(os.pathsep)]
    dexed = built.build.dexed(*built.libraries)
    return {"dexed": [dexed, built.program, *kotlin], "shrunk": shrunk}


@pytest.fixture(scope="module")
def command(built: Built, toolchain: Any, kotlin_tools: Any) -> Command:
    """How to start the test program: ``command("calls", "HTTP", *addresses)``, or on other jars."""

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
    """A server of its own, because the program unloads models, with a model that has a memory."""
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
def said(command: Command, live: Server) -> Callable[..., list[str]]:
    """The lines of a program that ends by itself."""

    def start(what: str, transport: str, jars: list[Path] | None = None) -> list[str]:
        where = [str(live.socket_port), str(live.port), live.ready["token_file"]]
        words = command(what, transport, *where, jars=jars)
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=ALLOWED_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return start


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldServer]:
    """A server whose model can be held."""
    server = HeldServer(tmp_path)
    yield server
    server.close()


class Dialog:
    """A program that waits for words."""

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
        """Make sure that it ends well."""
        self._process.communicate(timeout=ALLOWED_S)
        assert self._process.returncode == 0

    def close(self) -> None:
        """End it, whatever it does."""
        self._limit.cancel()
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def dialog(command: Command, held: HeldServer) -> Iterator[Callable[..., Dialog]]:
    """Starts the program against the server, whose model is busy from then on."""
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
def test_every_call_answers(said: Callable[..., list[str]], transport: str) -> None:
    assert said("calls", transport) == CALLS


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("form", ["dexed", "shrunk"])
def test_a_phone_s_form_says_the_same(
    said: Callable[..., list[str]],
    forms: dict[str, list[Path]],
    form: str,
    transport: str,
) -> None:
    """After Android's bytecode and back, and after a shrinker has renamed what it could."""
    assert said("calls", transport, forms[form]) == CALLS
    assert said("frames", transport, forms[form]) == FRAMES


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_fault_is_the_library_s_exception(
    said: Callable[..., list[str]], transport: str
) -> None:
    lines = said("faults", transport)
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
    said: Callable[..., list[str]], transport: str
) -> None:
    assert said("frames", transport) == FRAMES


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_flow_goes_on_after_an_error_if_asked_to(
    said: Callable[..., list[str]], transport: str
) -> None:
    assert said("retry", transport) == ["7 after 1"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_of_ten_frames_the_first_and_the_newest_are_asked(
    dialog: Callable[..., Dialog], held: HeldServer, transport: str
) -> None:
    """One is under way while nine come: the server is asked twice."""
    talk = dialog("newest", transport)
    before, queue = held.answered, held.model.queue
    until(lambda: queue.waiting == 1)
    talk.say("more")
    assert talk.hear() == "given" and queue.waiting == 1
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
    """While the model is still busy. Over HTTP nobody looks whether the caller is still there."""
    talk = dialog(what, transport)
    before, queue = held.answered, held.model.queue
    until(lambda: queue.waiting == 1)
    talk.say("cancel")
    assert [talk.hear(), talk.hear()] == ["cancelled", "over"]
    assert held.answered == before
    if transport == "SOCKET":
        until(lambda: held.model.ended("cancelled") == 1)
        assert queue.waiting == 0
    talk.say("end")
    talk.end()


def test_a_frame_that_the_server_dropped_is_no_error(
    dialog: Callable[..., Dialog], held: HeldServer
) -> None:
    """As when another client sends frames of the same stream."""
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
    answers = [
        talk.hear()
    ]  # of the nine, the first may have been sent before the others came
    while answers[-1] != "answer 9 7":
        assert answers[-1] == "answer 1 7"
        answers.append(talk.hear())
    talk.say("end")
    assert talk.hear() == "over"
    talk.end()
