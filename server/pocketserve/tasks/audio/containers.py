"""Name sound files other than WAV by their first bytes.

They are the formats that phones and browsers record. Sources: ISO/IEC 14496-12 for
``ftyp``, RFC 4867 for AMR, RFC 8794 for EBML, RFC 3533 for Ogg, ISO/IEC 11172-3 for the
frames of MPEG audio.
"""

from __future__ import annotations

from typing import Final

from pocketserve.tasks.audio.claims import after_tags

STARTS: Final = (
    (b"#!AMR", "AMR"),
    (b"\x1a\x45\xdf\xa3", "WebM or Matroska"),
    (b"OggS", "Ogg"),
    (b"fLaC", "FLAC"),
    (b"caff", "CAF"),
    (b".snd", "AU"),
    (b"ADIF", "AAC"),
    (b"MThd", "MIDI"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "WMA"),
    (b"wvpk", "WavPack"),
)
CONTAINERS: Final = {
    "MPEG-4 (m4a, mp4)": "mov",
    "QuickTime": "mov",
    "3GP": "mov",
    "AMR": "amr",
    "WebM or Matroska": "matroska",
    "Ogg": "ogg",
    "Ogg (Opus)": "ogg",
    "MP3": "mp3",
    "MP2": "mp3",
    "AAC": "aac",
    "FLAC": "flac",
    "AIFF": "aiff",
    "CAF": "caf",
}
"""ffmpeg's names of the formats that it may read, by the kind of file."""

MPEG_SYNC: Final = 0xE0  # of the second byte of a frame of MPEG audio
LAYERS: Final = {0: "AAC", 1: "MP3", 2: "MP2"}  # by the layer's bits in it
RESERVED: Final = 3  # bits of a sampling rate that no frame has


def container_of(body: memoryview) -> str:
    """Return the kind of a known sound file other than WAV, else ""."""
    tags = after_tags(body)
    start = bytes(body[tags : tags + 64])
    kind = _kind_of(start)
    has_tags = bytes(body[:3]) == b"ID3"
    if has_tags and kind not in ("FLAC", "AAC"):
        # Padding may follow the tags of an MP3, and they may be cut off.
        return "MP3"
    return kind


def _kind_of(start: bytes) -> str:
    """Return the kind of a container by its first bytes; empty if unknown."""
    form = start[8:12]
    if start[4:8] == b"ftyp":
        return _brand(form)
    if start[:4] == b"FORM" and form in (b"AIFF", b"AIFC"):
        return "AIFF"
    if start[:4] == b"RIFF" and form != b"WAVE":
        if form.isalnum():
            return f"RIFF ({form.decode('latin-1')})"
        return ""
    for magic, name in STARTS:
        if start.startswith(magic):
            if name == "Ogg" and b"OpusHead" in start:
                return "Ogg (Opus)"
            return name
    if len(start) > 2 and start[0] == 0xFF and start[1] & MPEG_SYNC == MPEG_SYNC:
        return _mpeg_layer(start)
    return ""


def _mpeg_layer(start: bytes) -> str:
    layer = start[1] >> 1 & 3
    if layer and start[2] >> 2 & 3 == RESERVED:
        return ""
    return LAYERS.get(layer, "")


def _brand(brand: bytes) -> str:
    """Return the kind of an ISO base media file."""
    if brand[:3] in (b"3gp", b"3g2", b"3gr", b"3gs", b"3ge"):
        return "3GP"
    if brand == b"qt  ":
        return "QuickTime"
    return "MPEG-4 (m4a, mp4)"
