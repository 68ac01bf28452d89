"""Fetch the companion app's libraries: ZXing for QR codes, and Roboto.

Usage: python tools/app_libraries.py [--folder FOLDER] [--mirror URL] [--debs FOLDER]

Both are Debian packages under the Apache License 2.0. The app contains ZXing's classes
for QR codes. Roboto is Android's font: it is only used to draw pictures of the app's
screens. Packages are pinned by their hashes, so that the same sources build the same
app. A second call does nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from android_toolchain import (
    DEBS_VARIABLE,
    FOLDER_VARIABLE,
    MIRROR_VARIABLE,
    ToolchainError,
    fetched_before,
    folder_for,
    make_once,
    unpack_packages,
)

RELEASE = "bookworm"
PACKAGES = {
    "libzxing-core-java": "458ef294ccbf6d1a123609d2e73787442b8b49e14352ffc0624bdc64ac86db9c",
    "fonts-roboto-unhinted": "f89cf7d8a589489daecf750031ec50456ab3e648d49ff544f0f08753268fbd91",
}
"""SHA-256 of each one. Of version 3.4.1+ds-1 is ZXing, of 20170802-3 Roboto."""

QR_CLASSES = re.compile(
    r"com/google/zxing/(?!MultiFormat)[^/]*\.class"
    r"|com/google/zxing/common/[^/]*\.class"
    r"|com/google/zxing/common/detector/MathUtils\.class"
    r"|com/google/zxing/common/reedsolomon/(?!.*Encoder)[^/]*\.class"
    r"|com/google/zxing/qrcode/(QRCodeReader|decoder/[^/]*|detector/[^/]*)\.class"
)
"""The classes that the QR code reader needs; tests use only these."""


def zxing() -> Path:
    """Return the jar that reads QR codes, fetched if need be.

    Raises:
        ToolchainError: it is not available, or not the expected file.
    """
    return fetch() / "zxing.jar"


def roboto() -> Path:
    """Return the folder of Android's letters, fetched if need be.

    Raises:
        ToolchainError: they are not available, or not the expected file.
    """
    return fetch() / "roboto"


def fetch(
    folder: Path | None = None, mirror: str | None = None, debs: Path | None = None
) -> Path:
    """Fetch missing libraries, and return the folder.

    Args:
        folder: of the files; default ``app-libraries`` in the Android toolchain's folder.
        mirror: a Debian mirror; default POCKETSERVE_DEBIAN_MIRROR, else that of apt.
        debs: a folder of downloaded packages; default POCKETSERVE_ANDROID_DEBS.

    Raises:
        ToolchainError: it is not available, or a package is not the expected one.
    """
    target = folder_for("app-libraries", folder)
    make_once(target, __file__, lambda: _fill(target, mirror, debs or fetched_before()))
    return target


def _fill(folder: Path, mirror: str | None, debs: Path | None) -> None:
    """Put the packages' used files into the folder."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        root = Path(name)
        unpack_packages(
            root, PACKAGES, RELEASE, "ZXing and Roboto (3 MB)", mirror, debs
        )
        keep_classes(root / "usr/share/java/core.jar", folder / "zxing.jar")
        (folder / "roboto").mkdir(exist_ok=True)
        for file in ("Roboto-Regular.ttf", "Roboto-Medium.ttf"):
            os.replace(
                root / "usr/share/fonts/truetype/roboto/unhinted/RobotoTTF" / file,
                folder / "roboto" / file,
            )


def keep_classes(whole: Path, kept: Path) -> None:
    """Write ZXing's jar again with the classes of QR codes only."""
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(kept, "w") as target:
        for name in sorted(filter(QR_CLASSES.fullmatch, source.namelist())):
            target.writestr(zipfile.ZipInfo(name), source.read(name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch everything and print where it is; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Fetch ZXing and Roboto from Debian's packages."
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help=f"where to put it [app-libraries in {FOLDER_VARIABLE}]",
    )
    parser.add_argument(
        "--mirror",
        metavar="URL",
        help=f"a Debian mirror [{MIRROR_VARIABLE}, else apt's own]",
    )
    parser.add_argument(
        "--debs",
        type=Path,
        metavar="FOLDER",
        help=f"packages fetched before [{DEBS_VARIABLE}]",
    )
    options = parser.parse_args(arguments)
    try:
        print(fetch(options.folder, options.mirror, options.debs))
    except ToolchainError as error:
        print(f"app_libraries: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
