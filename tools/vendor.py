"""Fetch the web page's libraries from npm, as pinned in ``vendor.json``.

Usage: python tools/vendor.py [--check] [--folder FOLDER]

Each package's archive must have the pinned sha512; the files named are unpacked, and ``SHA256SUMS`` is written beside
them. ``--check`` compares the files that are there with ``SHA256SUMS``, without network. Only bringing needs npm.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "server" / "pocketserve" / "web" / "vendor"
PINNED = Path(__file__).with_suffix(".json")
SUMS = "SHA256SUMS"
NPM_TIMEOUT_S = 120.0


class VendorError(Exception):
    """The libraries differ from the pinned ones; the text has the way out."""


def packages() -> dict[str, Any]:
    """Return the pinned packages by name."""
    pinned: dict[str, Any] = json.loads(PINNED.read_text("utf-8"))
    return pinned


def bring(folder: Path) -> None:
    """Fetch every package; write its files and the checksums.

    Raises:
        VendorError: npm fails, or an archive is not the pinned one.
    """
    for name, package in packages().items():
        with tempfile.TemporaryDirectory() as arriving:
            archive = _fetch(f"{name}@{package['version']}", Path(arriving))
            _verify(archive, package["integrity"])
            _unpack(archive, package["files"], folder / name)
    (folder / SUMS).write_text(_sums(folder), encoding="utf-8")


def check(folder: Path) -> None:
    """Compare the files with the checksums and ``vendor.json``.

    Raises:
        VendorError: a file is missing, changed, or of no package.
    """
    expected = {
        f"{name}/{file}"
        for name, package in packages().items()
        for file in package["files"].values()
    }
    present = {path.relative_to(folder).as_posix() for path in _files(folder)}
    if present != expected:
        raise VendorError(
            f"files differ from {PINNED.name}: {', '.join(sorted(present ^ expected))}; run tools/vendor.py"
        )
    if (folder / SUMS).read_text("utf-8") != _sums(folder):
        raise VendorError(
            f"a file of {folder} was changed: {SUMS} differs; run tools/vendor.py"
        )


def _fetch(package: str, folder: Path) -> Path:
    command = [
        "npm",
        "pack",
        package,
        "--json",
        "--ignore-scripts",
        "--pack-destination",
        str(folder),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=NPM_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise VendorError(
            f"npm cannot fetch {package} ({error}); look at the network and at npm"
        ) from None
    (archive,) = folder.glob("*.tgz")
    return archive


def _verify(archive: Path, integrity: str) -> None:
    digest = (
        "sha512-"
        + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    )
    if digest != integrity:
        raise VendorError(
            f"{archive.name} is not the pinned archive: its integrity is {digest}"
        )


def _unpack(archive: Path, files: dict[str, str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as opened:
        for source, name in files.items():
            member = opened.extractfile(f"package/{source}")
            # A folder or link, which the pinned archive doesn't have here.
            assert member is not None
            (folder / name).write_bytes(member.read())


def _files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name != SUMS
    )


def _sums(folder: Path) -> str:
    """Return the input of ``sha256sum -c``."""
    lines = []
    for path in _files(folder):
        lines.append(
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n"
        )
    return "".join(lines)


def main(arguments: list[str]) -> int:
    """Bring or check the libraries; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="compare what is there, without network"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    try:
        (check if options.check else bring)(options.folder)
    except VendorError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
