"""Build and check the companion app's APK."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conftest import ROOT

from .conftest import load_script

pytestmark = pytest.mark.java
BRIDGE = ROOT / "android_bridge"
SAMPLE = BRIDGE / "sample"
LANGUAGES = ("de", "el")
PERMISSIONS = {
    "android.permission.INTERNET",
    "android.permission.USE_LOOPBACK_INTERFACE",
    "android.permission.CAMERA",
    "com.termux.permission.RUN_COMMAND",
}


def run(*command: object, code: int | None = 0, **variables: str) -> str:
    """Run a program and return its output."""
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
    )
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    return load_script(BRIDGE / "build_apk.py")


@pytest.fixture(scope="module")
def apk(builder, toolchain, tmp_path_factory) -> Path:
    return builder.build(toolchain, tmp_path_factory.mktemp("apk") / "sample.apk")


@pytest.fixture(scope="module")
def badging(toolchain, apk) -> str:
    return run(toolchain.aapt2, "dump", "badging", apk)


def test_it_is_signed_for_every_android(toolchain, apk) -> None:
    told = run(
        toolchain.apksigner, "verify", "--verbose", "--min-sdk-version", "23", apk
    )
    for scheme in (
        "v1 scheme (JAR signing)",
        "v2 scheme (APK Signature Scheme v2)",
        "v3 scheme (APK Signature Scheme v3)",
    ):
        assert f"Verified using {scheme}: true" in told
    assert not re.search(r"^WARNING", told, re.MULTILINE)


def test_a_public_key_is_visible_in_the_certificate(toolchain, apk) -> None:
    assert "CN=Pocketserve public debug key" in run(
        toolchain.apksigner, "verify", "--print-certs", apk
    )


@pytest.mark.parametrize(
    "name", ["classes.dex", "resources.arsc", "AndroidManifest.xml"]
)
def test_a_changed_bit_is_detected(toolchain, apk, tmp_path, name) -> None:
    with zipfile.ZipFile(apk) as archive:
        entry = archive.getinfo(name)
    content = bytearray(apk.read_bytes())
    content[entry.header_offset + 30 + len(name) + 200] ^= 1
    changed = tmp_path / "changed.apk"
    changed.write_bytes(content)
    run(toolchain.apksigner, "verify", changed, code=1)


def test_two_builds_are_identical(builder, toolchain, apk, tmp_path) -> None:
    again = builder.build(toolchain, tmp_path / "another name.apk")
    assert again.read_bytes() == apk.read_bytes()


def test_another_key_is_accepted(builder, toolchain, apk, tmp_path) -> None:
    store = tmp_path / "own.p12"
    command = [
        toolchain.keytool,
        "-genkeypair",
        "-keystore",
        store,
        "-storetype",
        "PKCS12",
        "-storepass",
        "secret1",
    ]
    command += [
        "-alias",
        "own",
        "-keyalg",
        "RSA",
        "-keysize",
        "2048",
        "-dname",
        "CN=Somebody",
    ]
    run(*command)
    signed = builder.build(
        toolchain, tmp_path / "own.apk", builder.Key(store, "own", "secret1")
    )
    assert "CN=Somebody" in run(toolchain.apksigner, "verify", "--print-certs", signed)
    with pytest.raises(builder.BuildError, match="apksigner"):
        builder.build(
            toolchain, tmp_path / "wrong.apk", builder.Key(store, "own", "wrong")
        )
    assert not (tmp_path / "wrong.apk").exists()


def test_package_and_levels(builder, badging) -> None:
    name, code = builder.version_and_code()
    package = f"package: name='dev.pocketserve.sample' versionCode='{code}' versionName='{name}'"
    assert badging.startswith(package)
    assert "sdkVersion:'23'" in badging
    assert "targetSdkVersion:'36'" in badging
    assert "launchable-activity: name='dev.pocketserve.sample.MainActivity'" in badging
    assert "application-debuggable" not in badging


def test_permissions_are_exactly_these(badging) -> None:
    assert (
        set(re.findall(r"^uses-permission: name='([^']+)'", badging, re.MULTILINE))
        == PERMISSIONS
    )


def test_a_device_without_a_camera_can_install_it(badging) -> None:
    assert "uses-feature-not-required: name='android.hardware.camera'" in badging
    assert "uses-feature: name='android.hardware.camera" not in badging
    assert "uses-implied-feature: name='android.hardware.camera" not in badging


def test_it_has_all_languages_and_icon_sizes(toolchain, badging, apk) -> None:
    locales = re.search(r"^locales: (.*)$", badging, re.MULTILINE)
    assert locales is not None
    assert {"'de'", "'el'"} <= set(locales[1].split())
    offered = tree(toolchain, apk, "res/xml/locales_config.xml")
    assert re.findall(r'name\(0x[0-9a-f]+\)="([a-z]+)"', offered) == [
        "en",
        *sorted(LANGUAGES),
    ]
    with zipfile.ZipFile(apk) as archive:
        icons = [
            name for name in archive.namelist() if name.endswith("ic_launcher.png")
        ]
    assert len(icons) == 5


def strings(folder: str) -> dict[str, ElementTree.Element]:
    tree = ElementTree.parse(SAMPLE / "res" / folder / "strings.xml")
    return {element.attrib["name"]: element for element in tree.getroot()}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_translated_with_the_same_placeholders(language) -> None:
    english = strings("values")
    other = strings(f"values-{language}")
    wanted = {
        name
        for name, element in english.items()
        if element.get("translatable") != "false"
    }
    assert set(other) == wanted
    for name, element in other.items():
        places = r"%\d\$[\d.]*[a-z]"
        assert re.findall(places, element.text or "") == re.findall(
            places, english[name].text or ""
        )
        # Names of commands and files are not translated.
        literal = r"pocketserve (?:pair|serve|token --qr)|[a-z]+-external-apps = true|termux-reload-settings"
        assert re.findall(literal, element.text or "") == re.findall(
            literal, english[name].text or ""
        )


def test_greek_is_written_in_greek_letters() -> None:
    for name, element in strings("values-el").items():
        assert name == "transport_http" or re.search(
            "[α-ωά-ώΑ-ΩΆ-Ώ]", element.text or ""
        ), name


def test_every_text_is_used() -> None:
    sources = [
        file.read_text("utf-8")
        for file in [*SAMPLE.rglob("*.java"), *SAMPLE.rglob("*.xml")]
    ]
    for name in strings("values"):
        assert any(
            f"R.string.{name}" in text or f"@string/{name}" in text for text in sources
        ), name


def tree(toolchain, apk: Path, file: str) -> str:
    return run(
        toolchain.aapt2,
        "dump",
        "xmltree",
        "--file",
        file,
        apk,
    )


def elements(dump: str, name: str) -> list[str]:
    """Return the attributes of each element of a name from aapt2's output.

    Elements inside are excluded.
    """
    parts = re.split(r"^ *E: ", dump, flags=re.MULTILINE)
    return [part for part in parts if part.startswith(f"{name} ")]


def test_the_manifest(toolchain, apk) -> None:
    manifest = tree(toolchain, apk, "AndroidManifest.xml")
    (application,) = elements(manifest, "application")
    for attribute in ("allowBackup", "fullBackupContent"):
        assert re.search(rf"{attribute}\(0x[0-9a-f]+\)=false", application)
    assert "dataExtractionRules" in application
    assert "networkSecurityConfig" in application
    exported = {}
    for kind in ("activity", "receiver", "service", "provider"):
        for part in elements(manifest, kind):
            name = re.search(r'name\(0x[0-9a-f]+\)="([^"]+)"', part)
            state = re.search(r"exported\(0x[0-9a-f]+\)=(\w+)", part)
            assert name is not None
            assert state is not None
            exported[name[1].rpartition(".")[2]] = state[1]
    own = dict.fromkeys(("SettingsActivity", "ScanActivity", "CommandResult"), "false")
    assert exported == {"MainActivity": "true", **own}
    (sharing,) = [
        part
        for part in manifest.split("E: intent-filter")
        if "android.intent.action.SEND" in part
    ]
    assert '="android.intent.category.DEFAULT"' in sharing
    assert '="image/*"' in sharing
    assert sharing.count("E: data") == 1
    queries = manifest[manifest.index("E: queries") : manifest.index("E: application")]
    assert '="com.termux"' in queries


def test_cleartext_is_allowed_to_this_phone_only(toolchain, apk) -> None:
    config = tree(toolchain, apk, "res/xml/network_security_config.xml")
    (base,), (domains,) = (
        elements(config, "base-config"),
        elements(config, "domain-config"),
    )
    assert re.search(r"cleartextTrafficPermitted=(\"false\"|false)", base)
    assert re.search(r"cleartextTrafficPermitted=(\"true\"|true)", domains)
    assert re.findall(r"T: '([^']+)'", config) == ["127.0.0.1"]


def test_the_resource_table_is_stored_and_aligned(toolchain, apk) -> None:
    run(toolchain.zipalign, "-c", "-p", "4", apk)
    with zipfile.ZipFile(apk) as archive:
        entry = archive.getinfo("resources.arsc")
    assert entry.compress_type == zipfile.ZIP_STORED
    name_length, extra_length = struct.unpack_from(
        "<HH", apk.read_bytes(), entry.header_offset + 26
    )
    assert (entry.header_offset + 30 + name_length + extra_length) % 4 == 0


def test_the_library_is_inside(toolchain, apk, tmp_path) -> None:
    with zipfile.ZipFile(apk) as archive:
        archive.extract("classes.dex", tmp_path)
    found = set(
        re.findall(
            r"Class descriptor  : 'L([^;]+);'",
            run(toolchain.dexdump, tmp_path / "classes.dex"),
        )
    )
    library = {
        file.stem
        for file in (BRIDGE / "java/src/dev/pocketserve/bridge").glob("*.java")
    } - {"package-info"}
    assert library
    assert {f"dev/pocketserve/bridge/{name}" for name in library} <= found
    assert {
        "dev/pocketserve/sample/MainActivity",
        "dev/pocketserve/sample/Termux",
    } <= found
    outside = [
        name
        for name in found
        if not name.startswith(("dev/pocketserve/", "com/google/zxing/"))
    ]
    assert outside == []


def test_only_zxings_qr_reader_is_inside(apk) -> None:
    assert apk.stat().st_size < 300_000
    with zipfile.ZipFile(apk) as archive:
        assert b"Apache License" in archive.read("assets/LICENSE")
        assert b"ZXing 3.4.1" in archive.read("assets/zxing.txt")
        dex = archive.read("classes.dex")
    assert b"Lcom/google/zxing/qrcode/QRCodeReader;" in dex
    assert not re.search(
        rb"Lcom/google/zxing/(aztec|oned|pdf417|datamatrix|maxicode)/", dex
    )


def test_sources_follow_the_style_rules(toolchain) -> None:
    command = [
        toolchain.java,
        "-cp",
        toolchain.checkstyle,
        "com.puppycrawl.tools.checkstyle.Main",
    ]
    run(
        *command,
        "-c",
        BRIDGE / "checkstyle-sample.xml",
        SAMPLE / "src",
        SAMPLE / "test",
    )


def test_the_style_check_finds_a_lambda(toolchain, tmp_path) -> None:
    bad = tmp_path / "Bad.java"
    bad.write_text(
        "package bad;\n\nfinal class Bad {\n    Runnable work = () -> { };\n}\n"
    )
    command = [
        toolchain.java,
        "-cp",
        toolchain.checkstyle,
        "com.puppycrawl.tools.checkstyle.Main",
    ]
    assert "IllegalToken" in run(
        *command, "-c", BRIDGE / "checkstyle-sample.xml", bad, code=1
    )


def test_an_error_in_the_sources_is_reported_and_leaves_no_apk(
    builder, toolchain, tmp_path, monkeypatch
) -> None:
    copy = tmp_path / "sample"
    shutil.copytree(SAMPLE, copy)
    (copy / "src/dev/pocketserve/sample/Broken.java").write_text(
        'package dev.pocketserve.sample; class Broken { int x = ""; }'
    )
    monkeypatch.setattr(builder, "SAMPLE", copy)
    with pytest.raises(builder.BuildError, match="javac failed"):
        builder.build(toolchain, tmp_path / "broken.apk")
    assert not (tmp_path / "broken.apk").exists()
    assert not list(tmp_path.glob(".apk-*"))


def test_the_command_builds_an_apk(toolchain, tmp_path) -> None:
    output: Any = tmp_path / "made.apk"
    told = run(sys.executable, BRIDGE / "build_apk.py", "--output", output)
    assert str(output) in told
    assert output.exists()
    run(sys.executable, BRIDGE / "build_apk.py", "--keystore", "x", code=2)
