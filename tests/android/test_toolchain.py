"""Fetch the Android toolchain once, or explain a failure in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "android_toolchain.py"


def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *arguments],
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )


@pytest.mark.java
def test_every_tool_is_there_and_runs(toolchain) -> None:
    for command in (
        [toolchain.aapt2, "version"],
        [toolchain.apksigner, "version"],
        [toolchain.enjarify, "--help"],
    ):
        subprocess.run(command, capture_output=True, check=True, timeout=60)
    style = [
        toolchain.java,
        "-cp",
        toolchain.checkstyle,
        "com.puppycrawl.tools.checkstyle.Main",
        "--version",
    ]
    assert (
        "Checkstyle"
        in subprocess.run(
            style, capture_output=True, text=True, check=True, timeout=60
        ).stdout
    )


@pytest.mark.java
def test_a_second_call_needs_no_network(toolchain) -> None:
    done = call(
        "--json",
        "--folder",
        str(toolchain.folder),
        POCKETSERVE_DEBIAN_MIRROR="http://127.0.0.1:9/debian",
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["android_jar"] == str(toolchain.android_jar)


@pytest.mark.java
def test_packages_that_were_fetched_before_are_enough(
    toolchain, tmp_path: Path
) -> None:
    done = call(
        "--folder",
        str(tmp_path / "second place"),
        "--debs",
        str(toolchain.folder / "debs"),
        POCKETSERVE_DEBIAN_MIRROR="http://127.0.0.1:9/debian",
    )
    assert done.returncode == 0, done.stderr
    subprocess.run(
        [tmp_path / "second place/bin/aapt2", "version"], check=True, timeout=60
    )


@pytest.mark.java
def test_an_unexpected_file_is_deleted(toolchain, tmp_path: Path) -> None:
    store = tmp_path / "debs"
    store.mkdir()
    for file in (toolchain.folder / "debs").glob("*.deb"):
        (store / file.name).hardlink_to(file)
    damaged = next(store.glob("dalvik-exchange_*.deb"))
    damaged.unlink()
    damaged.write_bytes(b"not a package")
    done = call("--folder", str(tmp_path / "new"), "--debs", str(store))
    assert done.returncode == 1
    assert "dalvik-exchange" in done.stderr
    assert "SHA-256" in done.stderr
    assert not list((tmp_path / "new/debs").glob("dalvik-exchange_*"))


@pytest.mark.java
def test_an_unreachable_mirror_is_one_sentence(tmp_path: Path) -> None:
    done = call(
        "--folder", str(tmp_path / "new"), "--mirror", "http://127.0.0.1:9/debian"
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "POCKETSERVE_ANDROID_DEBS" in done.stderr


def test_a_missing_jdk_is_one_sentence(tmp_path: Path) -> None:
    done = call("--folder", str(tmp_path / "new"), JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "install a JDK 17" in done.stderr
    assert "Traceback" not in done.stderr
