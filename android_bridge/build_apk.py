"""Builds the companion app: sources to a signed APK, the same bytes every time.

Usage: python android_bridge/build_apk.py [--output APK] [--keystore FILE --alias NAME]

The library's sources go into the app as they are, and so do the classes of ZXing that read QR codes. Without
``--keystore`` the app is signed with the debug key of this repository, whose password everybody knows: good for trying,
not for giving the app to others. The password of another key store is read from the environment variable
POCKETSERVE_KEYSTORE_PASSWORD.

Needs a JDK 17 or newer and Debian packages, which ``tools/android_toolchain.py`` fetches.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build import ROOT, SOURCES, BuildError, load, load_toolchain, run, version

HERE = Path(__file__).resolve().parent
SAMPLE = HERE / "sample"
OUTPUT = ROOT / "build" / "pocketserve-sample.apk"
PASSWORD_VARIABLE = "POCKETSERVE_KEYSTORE_PASSWORD"
ASSETS = {"LICENSE": ROOT / "LICENSE", "zxing.txt": SAMPLE / "assets" / "zxing.txt"}
"""What ZXing's license asks for, and this project's own."""
MIN_SDK, TARGET_SDK = 23, 36


@dataclass(frozen=True)
class Key:
    """What the APK is signed with."""

    keystore: Path = SAMPLE / "public-debug-key.p12"
    alias: str = "public-debug-key"
    password: str = "android"


def load_zxing() -> Path:
    """Return the jar that reads QR codes, fetched if need be."""
    if "android_toolchain" not in sys.modules:
        load(ROOT / "tools" / "android_toolchain.py")
    jar: Path = load(ROOT / "tools" / "app_libraries.py").zxing()
    return jar


def version_and_code() -> tuple[str, int]:
    """Return the project's version, and the number that Android compares: 10,000 for each major, 100 for each minor."""
    name = version()
    major, minor, patch = map(int, re.findall(r"\d+", name)[:3])
    return name, max(1, 10_000 * major + 100 * minor + patch)


def build(tools: Any, output: Path = OUTPUT, key: Key | None = None) -> Path:
    """Build the APK.

    Args:
        tools: what ``android_toolchain.paths()`` gives.
        output: where the APK goes; it appears only when everything has succeeded.

    Raises:
        BuildError: a step failed.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".apk-") as name:
        work = Path(name)
        resources, generated = _resources(tools, work)
        zxing = load_zxing()
        dex = _dex(tools, work, _classes(tools, work, generated, zxing), zxing)
        aligned = work / "aligned.apk"
        unsigned = _pack(work, resources, dex)
        # Pages of 4 KiB for libraries (there are none), 4 bytes for all that is stored; never after signing.
        run([tools.zipalign, "-p", "4", unsigned, aligned], "zipalign")
        signed = _sign(tools, work, aligned, key or Key())
        os.replace(signed, output)
    return output


def _resources(tools: Any, work: Path) -> tuple[Path, Path]:
    """The manifest and the resources as an APK without code, and the sources of class R."""
    compiled, linked, generated = (
        work / "resources.zip",
        work / "resources.apk",
        work / "generated",
    )
    run(
        [tools.aapt2, "compile", "--dir", SAMPLE / "res", "-o", compiled],
        "aapt2 compile",
    )
    name, code = version_and_code()
    command = [
        tools.aapt2,
        "link",
        "-o",
        linked,
        "-I",
        tools.framework_res,
        "--java",
        generated,
    ]
    # This aapt2 is older than <queries>, which it keeps all the same; tests read the result back.
    command += ["--warn-manifest-validation"]
    command += [
        "--manifest",
        SAMPLE / "AndroidManifest.xml",
        "--version-name",
        name,
        "--version-code",
        str(code),
    ]
    command += [
        "--min-sdk-version",
        str(MIN_SDK),
        "--target-sdk-version",
        str(TARGET_SDK),
        compiled,
    ]
    run(command, "aapt2 link")
    return linked, generated


def _classes(tools: Any, work: Path, generated: Path, zxing: Path) -> Path:
    classes = work / "classes"
    sources = [
        file
        for folder in (SOURCES, SAMPLE / "src", generated)
        for file in sorted(folder.rglob("*.java"))
    ]
    command = [
        tools.javac,
        "-source",
        "8",
        "-target",
        "8",
        "-Xlint:all,-options,-deprecation",
        "-Werror",
        "-g",
    ]
    # javac sees no class that Android 6 does not have.
    command += [
        "-encoding",
        "UTF-8",
        "-bootclasspath",
        tools.android_jar,
        "-cp",
        zxing,
        "-d",
        classes,
    ]
    run([*command, *sources], "javac")
    return classes


def _dex(tools: Any, work: Path, *classes: Path) -> Path:
    dex = work / "classes.dex"
    command = [
        tools.java,
        "-cp",
        tools.dx_jar,
        "com.android.dx.command.Main",
        "--dex",
        f"--min-sdk-version={MIN_SDK}",
    ]
    run([*command, f"--output={dex}", *classes], "dx")
    return dex


def _pack(work: Path, resources: Path, dex: Path) -> Path:
    """Resources and code in one zip. What aapt2 stored stays stored: Android insists on it for resources.arsc."""
    unsigned = work / "unsigned.apk"
    with zipfile.ZipFile(resources) as source, zipfile.ZipFile(unsigned, "w") as target:
        for entry in sorted(source.infolist(), key=lambda entry: entry.filename):
            _add(target, entry.filename, source.read(entry), entry.compress_type)
        for name, file in ASSETS.items():
            _add(target, f"assets/{name}", file.read_bytes(), zipfile.ZIP_DEFLATED)
        _add(target, "classes.dex", dex.read_bytes(), zipfile.ZIP_DEFLATED)
    return unsigned


def _add(target: zipfile.ZipFile, name: str, content: bytes, compression: int) -> None:
    entry = zipfile.ZipInfo(name)  # without a date: the same sources make the same APK
    entry.compress_type = compression
    entry.external_attr = 0o644 << 16
    target.writestr(entry, content)


def _sign(tools: Any, work: Path, aligned: Path, key: Key) -> Path:
    if not key.keystore.is_file():
        raise BuildError(
            f"the key store {key.keystore} is missing; name one with --keystore"
        )
    signed = work / "signed.apk"
    command = [
        tools.apksigner,
        "sign",
        "--ks",
        key.keystore,
        "--ks-type",
        "PKCS12",
        "--ks-key-alias",
        key.alias,
    ]
    command += [
        "--ks-pass",
        "env:" + PASSWORD_VARIABLE,
        "--min-sdk-version",
        str(MIN_SDK),
    ]
    schemes = [
        f"--v{number}-signing-enabled={'true' if number < 4 else 'false'}"
        for number in (1, 2, 3, 4)
    ]
    # By the environment, because other users can read a process's arguments.
    password = {PASSWORD_VARIABLE: key.password}
    run([*command, *schemes, "--out", signed, aligned], "apksigner", variables=password)
    return signed


def main(arguments: Sequence[str] | None = None) -> int:
    """Build; returns the exit code."""
    parser = argparse.ArgumentParser(description="Build the companion app.")
    parser.add_argument(
        "--output",
        type=Path,
        default=OUTPUT,
        help="the APK [build/pocketserve-sample.apk]",
    )
    parser.add_argument(
        "--keystore",
        type=Path,
        help="a PKCS #12 key store instead of the public debug key",
    )
    parser.add_argument("--alias", help="the key's name in that key store")
    options = parser.parse_args(arguments)
    if (options.keystore is None) != (options.alias is None):
        parser.error("--keystore and --alias go together")
    if options.keystore is not None and PASSWORD_VARIABLE not in os.environ:
        parser.error(
            f"put the key store's password into the environment variable {PASSWORD_VARIABLE}"
        )
    key = (
        Key(options.keystore, options.alias, os.environ[PASSWORD_VARIABLE])
        if options.keystore
        else Key()
    )
    try:
        made = build(load_toolchain(), options.output.absolute(), key)
    except (BuildError, RuntimeError) as error:
        print(f"build_apk: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        # Of a module that is loaded by its path.
        if type(error).__name__ != "ToolchainError":
            raise
        print(f"build_apk: {error}", file=sys.stderr)
        return 1
    print(f"{made} ({made.stat().st_size:,} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
