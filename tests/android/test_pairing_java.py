"""Run the library's half of pairing with the shared vectors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from conftest import MODELS, ROOT
from pocketserve_client import Client

pytestmark = pytest.mark.java
PACKAGE = "dev/pocketserve/bridge"
PROGRAM = """
import dev.pocketserve.bridge.Pairing;
import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PocketServeException;

public class Pair {
    public static void main(String[] given) {
        try {
            int port = Integer.parseInt(given[0]);
            System.out.println(Pairing.pair(PocketServe.builder().httpPort(port), given[1]));
        } catch (PocketServeException error) {
            System.out.println(error.getCode());
        }
    }
}
"""


def test_java_and_python_compute_the_same(toolchain, tmp_path: Path) -> None:
    classes = tmp_path / "classes"
    java8 = [
        "-source",
        "8",
        "-target",
        "8",
        "-Xlint:-options",
        "-nowarn",
        "-d",
        str(classes),
    ]
    library = ROOT / "android_bridge/java/src" / PACKAGE / "PairingExchange.java"
    on_android = [
        toolchain.javac,
        *java8,
        "-bootclasspath",
        toolchain.android_jar,
        library,
    ]
    subprocess.run(on_android, check=True, timeout=120)
    path = os.pathsep.join(
        [
            str(classes),
            toolchain.junit4,
            str(toolchain.json_jar),
        ]
    )
    test = ROOT / "android_bridge/java/test" / PACKAGE / "PairingExchangeTest.java"
    subprocess.run(
        [
            toolchain.javac,
            "--release",
            "8",
            "-Xlint:-options",
            "-cp",
            path,
            "-d",
            classes,
            test,
        ],
        check=True,
    )
    vectors = f"-Dpocketserve.vectors={ROOT / 'android_bridge/vectors'}"
    done = subprocess.run(
        [
            toolchain.java,
            "-cp",
            path,
            vectors,
            "org.junit.runner.JUnitCore",
            "dev.pocketserve.bridge.PairingExchangeTest",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "OK (6 tests)" in done.stdout, done.stdout


def test_the_library_pairs_with_a_real_server(
    toolchain, tmp_path: Path, new_server
) -> None:
    path = f"{tmp_path}{os.pathsep}{toolchain.json_jar}"
    program = tmp_path / "Pair.java"
    program.write_text(PROGRAM)
    library = sorted((ROOT / "android_bridge/java/src").rglob("*.java"))
    command = [
        toolchain.javac,
        "-nowarn",
        "--release",
        "8",
        "-Xlint:-options",
        "-cp",
        path,
        "-d",
        tmp_path,
    ]
    subprocess.run([*command, program, *library], check=True, timeout=120)
    server = new_server(MODELS)

    def pair(code: str) -> str:
        told = [toolchain.java, "-cp", path, "Pair", str(server.port), code]
        return subprocess.run(
            told, capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()

    with Client(server.url, server.token) as client:
        assert pair("123456") == "PAIRING_CLOSED"
        code = client.open_pairing()["code"]
        assert pair(f"{(int(code) + 1) % 10**6:06d}") == "PAIRING_REFUSED"
        assert pair(f"{code[:3]} {code[3:]}") == server.token
        assert client.pairing_state() == "paired"
