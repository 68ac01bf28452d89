"""Recordings in the formats of phones and browsers, made by the tests' ffmpeg."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

AAC: Final = ("-c:a", "aac")
AMR: Final = ("-c:a", "libopencore_amrnb", "-ar", "8000", "-ac", "1")
OPUS: Final = ("-c:a", "libopus")
VORBIS: Final = ("-c:a", "libvorbis")
PAIRS: Final[Mapping[str, tuple[str, ...]]] = {
    "aac.m4a": AAC,
    "aac.3gp": AAC,
    "amr.3gp": AMR,
    "voice.amr": AMR,
    "stream.aac": AAC,
    "opus.webm": OPUS,
    "opus.ogg": OPUS,
    "vorbis.ogg": VORBIS,
    "layer3.mp3": ("-c:a", "libmp3lame"),
    "layer2.mp2": ("-c:a", "mp2"),
    "lossless.flac": ("-c:a", "flac"),
    "lossless.m4a": ("-c:a", "alac"),
    "lossless.aiff": (),
    "lossless.caf": (),
}
"""ffmpeg's options by the file that they write."""


def program_folder(parent: Path) -> Path:
    """Return a new folder with nothing but ffmpeg, for ``PATH``."""
    import imageio_ffmpeg

    folder = parent / "programs"
    folder.mkdir()
    (folder / "ffmpeg").symlink_to(imageio_ffmpeg.get_ffmpeg_exe())
    return folder


def encode(programs: Path, source: Path, target: Path, *options: str) -> bytes:
    """Write a recording; return its bytes."""
    command = [programs / "ffmpeg", "-v", "error", "-y", "-i", source, *options, target]
    subprocess.run(command, check=True, env={**os.environ}, timeout=300)
    return target.read_bytes()
