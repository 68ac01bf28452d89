"""The library's half of pairing: compiled against Android's classes, run on this JVM with the shared vectors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.java
PACKAGE = "dev/pocketserve/bridge"


def test_java_computes_what_python_computes(toolchain, tmp_path: Path) -> None:
    classes = tmp_path / "classes"
    java8 = ["-source", "8", "-target", "8", "-Xlint:-options", "-nowarn", "-d", str(classes)]
    library = ROOT / "android_bridge/java/src" / PACKAGE / "PairingExchange.java"
    on_android = [toolchain.javac, *java8, "-bootclasspath", toolchain.android_jar, library]
    subprocess.run(on_android, check=True, timeout=120)
    path = os.pathsep.join([str(classes), toolchain.junit4, str(toolchain.json_jar)])
    test = ROOT / "android_bridge/java/test" / PACKAGE / "PairingExchangeTest.java"
    subprocess.run([toolchain.javac, "--release", "8", "-Xlint:-options", "-cp", path, "-d", classes, test], check=True)
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
