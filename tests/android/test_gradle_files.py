"""Compare the sample's Gradle files with the released app's build.

There is no Android Gradle plugin here to run them.
"""

from __future__ import annotations

import re
import tomllib
import xml.etree.ElementTree as ElementTree

from conftest import ROOT

from .conftest import load_script

SAMPLE = ROOT / "android_bridge" / "sample"
BUILD = (SAMPLE / "build.gradle.kts").read_text("utf-8")
CATALOG = tomllib.loads((SAMPLE / "gradle/libs.versions.toml").read_text("utf-8"))
SETTINGS = (SAMPLE / "settings.gradle.kts").read_text("utf-8")


def value(name: str) -> str:
    """Return the only value assigned to a property."""
    [found] = re.findall(rf'^ +{name} = "?([^"\n]+)"?$', BUILD, re.MULTILINE)
    return str(found)


def test_gradle_and_the_apk_have_the_same_values() -> None:
    builder = load_script(ROOT / "android_bridge" / "build_apk.py")
    package = ElementTree.parse(SAMPLE / "AndroidManifest.xml").getroot().get("package")
    assert value("namespace") == value("applicationId") == package
    assert int(value("minSdk")) == builder.MIN_SDK
    assert int(value("compileSdk")) == int(value("targetSdk")) == builder.TARGET_SDK
    assert (
        value("versionName"),
        int(value("versionCode")),
    ) == builder.version_and_code()


def test_the_library_is_the_published_one() -> None:
    maven, build = (
        load_script(ROOT / "android_bridge" / name) for name in ("maven.py", "build.py")
    )
    libraries = CATALOG["libraries"]
    versions = CATALOG["versions"]
    bridge = f"{maven.GROUP}:{maven.BRIDGE}"
    assert libraries["pocketserve-bridge"]["module"] == bridge
    assert versions["pocketserve"] == build.version()
    text = (ROOT / "tools" / "app_libraries.py").read_text("utf-8")
    assert versions["zxing"] in text
    [repository] = re.findall(r'maven \{ url = uri\("([^"]+)"\) \}', SETTINGS)
    recipe = re.findall(
        r"^aar: ; .* aar --output (\S+)$",
        (ROOT / "Makefile").read_text("utf-8"),
        re.MULTILINE,
    )
    assert (SAMPLE / repository).resolve() == ROOT / recipe[0] / "maven"


def test_the_build_uses_the_whole_catalog() -> None:
    """An alias has points for dashes, and each of them names a version that is listed."""
    aliases = {f"libs.{name.replace('-', '.')}" for name in CATALOG["libraries"]}
    plugins = {f"libs.plugins.{name.replace('-', '.')}" for name in CATALOG["plugins"]}
    used = re.findall(r"\b(libs\.[\w.]+)", BUILD)
    assert set(used) == aliases | plugins
    entries = [*CATALOG["libraries"].values(), *CATALOG["plugins"].values()]
    assert {entry["version"]["ref"] for entry in entries} == set(CATALOG["versions"])


def test_the_folders_exist() -> None:
    folders = re.findall(r'setSrcDirs\(listOf\("(\w+)"\)\)', BUILD)
    assert {"src", "res"} <= set(folders)
    assert all((SAMPLE / name).is_dir() for name in folders)
    assert {
        entry.name
        for entry in SAMPLE.iterdir()
        if entry.name in ("src", "res", "assets")
    } == set(folders)


def test_brackets_are_balanced() -> None:
    for text in (BUILD, SETTINGS):
        assert all(
            text.count(left) == text.count(right) for left, right in ("{}", "()")
        )
