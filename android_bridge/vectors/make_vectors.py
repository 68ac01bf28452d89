"""Writes the golden vectors of the socket protocol; with ``--check``, compares them with the files instead.

Deterministic, and independent of the codec that the vectors test: run it from anywhere with Python alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from generator import bad_frames, good_frames, handshakes, inference, refused_requests
from generator.wire import Vector

HERE = Path(__file__).resolve().parent
SOURCES = (good_frames, inference, handshakes, bad_frames, refused_requests)


def wanted() -> dict[Path, bytes]:
    """Every file and its content."""
    files: dict[Path, bytes] = {}
    for vector in (vector for source in SOURCES for vector in source.vectors()):
        for suffix, content in ((".bin", vector.data), (".json", _text(vector))):
            path = HERE / vector.folder / f"{vector.name}{suffix}"
            if path in files:
                raise SystemExit(f"{path.name} is made twice")
            files[path] = content
    return files


def _text(vector: Vector) -> bytes:
    return (json.dumps(vector.document, indent=1) + "\n").encode("ascii")


def present() -> dict[Path, bytes]:
    """Return the existing files."""
    return {
        path: path.read_bytes()
        for folder in ("valid", "invalid")
        for path in (HERE / folder).glob("*.*")
    }


def check() -> int:
    """Name every file that differs; 1 when there is one."""
    new, old = wanted(), present()
    for path in sorted(new.keys() | old.keys()):
        if new.get(path) != old.get(path):
            print(
                f"{path.relative_to(HERE)} is not what make_vectors.py makes",
                file=sys.stderr,
            )
    return int(new != old)


def write() -> int:
    """Write all files and remove those that no source makes any more."""
    files = wanted()
    for path in present().keys() - files.keys():
        path.unlink()
    for path, content in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    print(f"{len(files) // 2} vectors")
    return 0


if __name__ == "__main__":
    sys.exit(check() if sys.argv[1:] == ["--check"] else write())
