"""Test the Java library before and after dex."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pocketserve_wire
from conftest import MODELS, ROOT, Server, start_server
from pocketserve.api import openapi
from pocketserve.api.routes import ROUTES
from pocketserve.config import SETTINGS
from pocketserve_wire import ErrorCode
from pocketserve_wire.errors import ConnectionFault
from sequence_models import FEEDBACK, running_sum

from .conftest import load_script

pytestmark = pytest.mark.java

SCRIPT: ModuleType = load_script(ROOT / "android_bridge" / "build.py")
FORMS = ("library", "dexed")
SOCKET = "socket_port" in SETTINGS
STREAMS = b'"stream"' in b"".join(
    bytes(chunk) for chunk in openapi.describe_routes(ROUTES).chunks
)
LIVE = [
    name
    for name in SCRIPT.test_classes(live=True)
    if (SOCKET or "Socket" not in name)
    and (STREAMS or "Stream" not in name)
    and "Fallback" not in name  # with two servers: test_fallback_java.py
]
"""Live tests that this server supports."""


@dataclass
class Built:
    """Results of the build steps.

    Attributes:
        jars: the library as compiled, and converted to dex and back.
    """

    build: Any
    jars: dict[str, Path]
    tests: Path


@pytest.fixture(scope="module")
def built(toolchain: Any, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the library in both forms, and its tests."""
    build = SCRIPT.Build(toolchain, tmp_path_factory.mktemp("java"))
    library = build.library()
    return Built(
        build, {"library": library, "dexed": build.dexed()}, build.tests(library)
    )


@pytest.fixture(scope="module")
def live(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Server, dict[str, str]]]:
    """Start a server for tests that unload models.

    Return its Java properties.
    """
    folder = tmp_path_factory.mktemp("server")
    models = folder / "models"
    shutil.copytree(MODELS, models)
    (models / "sum").mkdir()
    running_sum(models / "sum/sum.onnx", 2)
    (models / "sum/model.toml").write_text(FEEDBACK)
    running = start_server(folder, models, *(["--socket-port", "0"] if SOCKET else []))
    properties = {
        "pocketserve.http": str(running.port),
        "pocketserve.pid": str(running.process.pid),
        "pocketserve.token": str(folder / "token"),
        "pocketserve.digits": str(MODELS / "digits" / "samples"),
    }
    if SOCKET:
        properties["pocketserve.socket"] = str(running.ready["socket"]["port"])
    yield running, properties
    assert running.stop() == 0


@pytest.fixture(scope="module")
def desktop(
    built: Built, live: tuple[Server, dict[str, str]]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that starts a program of the desktop stand-in.

    ``desktop("Main", "http", "--model", ...)``
    """
    built.build.desktop(built.jars["library"])

    def start(
        program: str, transport: str, *arguments: str
    ) -> subprocess.CompletedProcess[str]:
        where = [
            "--transport",
            transport,
            "--port",
            live[1][f"pocketserve.{transport}"],
        ]
        command = [
            *built.build.desktop_command(program),
            *where,
            "--token-file",
            live[1]["pocketserve.token"],
        ]
        return subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return start


TRANSPORTS = ["http", *(["socket"] if SOCKET else [])]
SAMPLES = MODELS / "digits" / "samples"


def expect_good(outcomes: list[Any]) -> None:
    """Fail with the traces of all failed tests."""
    assert outcomes, "no test was run"
    failed = [
        f"{outcome.test}\n{outcome.trace}" for outcome in outcomes if outcome.trace
    ]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SCRIPT.test_classes(live=False))
def test_unit_class(built: Built, name: str, form: str) -> None:
    """Run a class of tests without a server."""
    expect_good(built.build.run_tests(built.jars[form], built.tests, [name]))


@pytest.mark.live
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LIVE)
def test_live_class(
    built: Built, live: tuple[Server, dict[str, str]], name: str, form: str
) -> None:
    """Run a class of tests against a real server."""
    expect_good(built.build.run_tests(built.jars[form], built.tests, [name], live[1]))


@pytest.mark.live
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_desktop_stand_in_prints_the_toasts_text(
    desktop: Callable[..., Any], transport: str
) -> None:
    done = desktop("Main", transport, "--model", "digits", str(SAMPLES))
    assert done.returncode == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 10
    assert all(
        line.startswith(f"{digit}.png: {digit} (") for digit, line in enumerate(lines)
    )


@pytest.mark.live
def test_the_desktop_stand_in_names_unreadable_pictures(
    desktop: Callable[..., Any], tmp_path: Path
) -> None:
    """It exits with 1, escapes control characters, and answers for the other pictures."""
    shutil.copy(SAMPLES / "3.png", tmp_path / "good.png")
    (tmp_path / "bad\x1b]0;x\x07\n.jpg").write_bytes(b"no picture")
    done = desktop("Main", "http", "--model", "digits", str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.startswith("good.png: 3 (")
    assert done.stderr.startswith(r"bad\u001b]0;x\u0007\u000a.jpg: INVALID_INPUT: ")


@pytest.mark.live
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--model", "nothing", str(SAMPLES)], 1, "MODEL_NOT_FOUND"),
        (["--model", "digits", "--port", "1", str(SAMPLES)], 1, "SERVER_UNREACHABLE"),
        (["--model", "digits"], 2, "usage"),
        (["--model", "digits", "/nowhere"], 2, "usage"),
        (["--model", "digits", "--port", "x", str(SAMPLES)], 2, "--port"),
        (["--model", "digits", "--colour", "x", str(SAMPLES)], 2, "--colour"),
    ],
)
def test_the_desktop_stand_in_fails_without_a_server(
    desktop: Callable[..., Any], arguments: list[str], code: int, said: str
) -> None:
    done = desktop("Main", "http", *arguments)
    assert done.returncode == code and said in done.stderr, done.stderr


@pytest.mark.live
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_benchmark_gives_raw_samples(
    desktop: Callable[..., Any], transport: str
) -> None:
    done = desktop(
        "Bench",
        transport,
        "--model",
        "digits",
        "--shape",
        "588,8,8,1",
        "--warmup",
        "1",
        "--requests",
        "5",
    )
    result = json.loads(done.stdout)
    assert result["bytes_in"] == 150_528
    assert result["bytes_out"] == 588 * 10 * 4
    assert len(result["samples_ns"]) == 5


GUIDE = (ROOT / "docs" / "android.md").read_text(encoding="utf-8")
JAVA_GUIDE = (ROOT / "docs" / "android-java.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```java\n(.*?)^```$", JAVA_GUIDE, re.MULTILINE | re.DOTALL)


CARD = """
import dev.pocketserve.bridge.*;
import java.nio.file.*;

public class Card {
    public static void main(String[] arguments) throws Exception {
        String token = new String(Files.readAllBytes(Paths.get(arguments[0])), "UTF-8").trim();
        byte[] bytes = Files.readAllBytes(Paths.get(arguments[1]));
        EXAMPLE
    }
}
"""


@pytest.mark.live
def test_a_model_cards_example_runs(
    built: Built, live: tuple[Server, dict[str, str]], tmp_path: Path
) -> None:
    """The lines that ``inspect`` prints run inside a method."""
    server, where = live
    example = server.call("GET", "/v2/models/digits").json()["card"]["examples"]["java"]
    ports = f"builder().socketPort({where.get('pocketserve.socket', '1')}).httpPort({server.port})"
    code = CARD.replace("EXAMPLE", example.replace("builder()", ports))
    if not SOCKET:
        code = code.replace("Transport.SOCKET", "Transport.HTTP")
    (tmp_path / "Card.java").write_text(code, encoding="utf-8")
    tools = built.build.tools
    path = f"{built.jars['library']}:{tools.json_jar}:{tmp_path}"
    compiling = [tools.javac, "-cp", path, "-d", tmp_path, tmp_path / "Card.java"]
    subprocess.run([str(word) for word in compiling], check=True, timeout=120)
    running = [
        tools.java,
        "-cp",
        path,
        "Card",
        where["pocketserve.token"],
        MODELS / "digits/samples/7.png",
    ]
    printed = subprocess.run(
        [str(word) for word in running],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert '"label":"7"' in printed.stdout


@pytest.mark.live
def test_the_guides_first_example_runs(
    built: Built, live: tuple[Server, dict[str, str]], tmp_path: Path
) -> None:
    """Its commands run in a folder like a clone."""
    where = live[1]
    code = (
        EXAMPLES[0]
        .replace("8470", where["pocketserve.http"])
        .replace("8471", where.get("pocketserve.socket", "1"))
    )
    if not SOCKET:
        code = code.replace("Transport.SOCKET", "Transport.HTTP")
    (tmp_path / "Example.java").write_text(code, encoding="utf-8")
    for name in ("android_bridge", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    (commands,) = re.findall(
        r"^```sh java\n(.*?)^```$", JAVA_GUIDE, re.MULTILINE | re.DOTALL
    )
    path = [
        str(Path(sys.executable).parent),
        str(Path(built.build.tools.javac).parent),
        os.environ["PATH"],
    ]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(path),
        "POCKETSERVE_TOKEN_FILE": where["pocketserve.token"],
    }
    done = subprocess.run(
        ["bash", "-euc", commands],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()[1:]  # the first one is the build's
    assert (
        lines[0].startswith("7 (") and lines[1].startswith("7 0.") and lines[-1] == "10"
    ), done


def test_the_guides_android_examples_compile(built: Built, tmp_path: Path) -> None:
    """They compile together, as in one app, against Android 6."""
    tools = built.build.tools
    files = []
    for code in EXAMPLES[1:]:
        name = re.search(r"^(?:public |final )*class (\w+)", code, re.MULTILINE)
        assert name is not None
        files.append(tmp_path / f"{name[1]}.java")
        files[-1].write_text(code, encoding="utf-8")
    assert len(files) >= 2
    command = [
        tools.javac,
        "-source",
        "8",
        "-target",
        "8",
        "-Xlint:all,-options",
        "-Werror",
        "-d",
        tmp_path,
    ]
    command += ["-bootclasspath", tools.android_jar, "-cp", built.jars["library"]]
    subprocess.run([*command, *files], check=True, timeout=120)


def test_the_guide_lists_every_code() -> None:
    """The table has each code once, with the library's retry rule."""
    source = "\n".join(
        file.read_text("utf-8") for file in SCRIPT.SOURCES.rglob("*.java")
    )
    codes = set(re.findall(r'public static final String ([A-Z_]+) = "\1";', source))
    rows = re.findall(r"^\| `([A-Z_]+)` \| (yes|no) \|", GUIDE, re.MULTILINE)
    assert codes
    assert {code for code, _ in rows} == codes
    assert len(rows) == len(codes)
    for code, retry in rows:
        made = set(
            re.findall(
                rf"PocketServeException\s*\.(lasting|passing)\(\s*(?:PocketServeException\.)?{code}\b",
                source,
            )
        )
        assert made <= {"passing" if retry == "yes" else "lasting"}, code


def source(name: str) -> str:
    """Return the text of one of the library's files."""
    return (SCRIPT.SOURCES / "dev" / "pocketserve" / "bridge" / name).read_text(
        encoding="utf-8"
    )


def test_the_server_and_the_library_agree() -> None:
    """Both list retryable codes, numbered faults and the version."""
    retryable = re.search(
        r"RETRYABLE = .*?asList\((.*?)\)", source("Answer.java"), re.DOTALL
    )
    assert retryable is not None
    assert set(re.findall(r'"([A-Z_]+)"', retryable[1])) == {
        code.name for code in ErrorCode if code.retryable
    }
    faults = re.findall(
        r"^    ([A-Z_]+)\((\d+)\)", source("wire/ConnectionFault.java"), re.MULTILINE
    )
    assert {name: int(number) for name, number in faults} == {
        fault.name: fault.value for fault in ConnectionFault
    }
    version = re.search(r'VERSION = "(.*?)"', source("PocketServe.java"))
    assert version is not None
    assert version[1] == pocketserve_wire.__version__


def test_the_build_steps_are_commands(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert SCRIPT.main(["jar", "--output", str(tmp_path)]) == 0
    assert (tmp_path / "pocketserve-bridge.jar").exists()
    assert capsys.readouterr().out.startswith("jar: ")


def test_every_public_member_is_documented(built: Built) -> None:
    assert (built.build.docs() / "dev/pocketserve/bridge/PocketServe.html").exists()


def test_sources_follow_the_style_rules(built: Built) -> None:
    built.build.style()


def test_the_style_check_finds_unsupported_syntax(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules keep the library compatible with dx and Android 6."""
    lines = (
        "import java.util.*;",
        "/** X. */",
        "final class X {",
        "    Runnable a = () -> { };",
    )
    (tmp_path / "X.java").write_text(
        "\n".join((*lines, "    Runnable b = this::toString;", "}", ""))
    )
    monkeypatch.setattr(SCRIPT, "SOURCES", tmp_path)
    with pytest.raises(SCRIPT.BuildError, match=r"(?s)AvoidStarImport.*'->'.*'::'"):
        built.build.style()


def test_classes_of_later_androids_are_refused(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler itself refuses classes that Android 6 lacks."""
    (tmp_path / "X.java").write_text(
        "final class X { Object o = java.util.Base64.getEncoder(); }\n"
    )
    monkeypatch.setattr(SCRIPT, "SOURCES", tmp_path)
    with pytest.raises(SCRIPT.BuildError, match="Base64"):
        SCRIPT.Build(built.build.tools, tmp_path / "out").library()


def test_the_same_sources_make_the_same_jar(built: Built, tmp_path: Path) -> None:
    again = SCRIPT.Build(built.build.tools, tmp_path).library()
    assert again.read_bytes() == built.jars["library"].read_bytes()


def test_the_library_needs_only_the_platform() -> None:
    """It imports Android 6's JDK classes, org.json and itself: no android.*, no
    library.
    """
    allowed = ("java.", "javax.crypto.", "org.json.", "dev.pocketserve.bridge.")
    for file in SCRIPT.SOURCES.rglob("*.java"):
        for line in file.read_text("utf-8").splitlines():
            if line.startswith("import "):
                assert (
                    line.removeprefix("import ")
                    .removeprefix("static ")
                    .startswith(allowed)
                ), f"{file.name}: {line}"
