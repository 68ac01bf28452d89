"""Create spectrogram vectors with other libraries.

Run in an environment with the library: python tests/tasks/spectrogram_vectors.py
librosa|tensorflow
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data"
RATE = 16_000
SAMPLES = 3200


def signal() -> Any:
    """Return 0.2 s of float32: a rising chirp, a steady tone, a click, and final
    silence.
    """
    t = np.arange(SAMPLES) / RATE
    sound = 0.6 * t / t[-1] * np.sin(
        2 * np.pi * (200 * t + 15_000 * t**2)
    ) + 0.1 * np.cos(2 * np.pi * 3333.3 * t)
    sound[1000] += 0.7
    sound[-600:] = 0.0
    return sound.astype(np.float32)


WHISPER = {
    "n_fft": 400,
    "hop_length": 160,
    "pad_mode": "reflect",
    "n_mels": 80,
    "log": "log10",
    "top_db": 80,
}
LIBROSA: dict[str, dict[str, Any]] = {
    "mel": {"n_fft": 512, "hop_length": 160, "n_mels": 40, "log": "none"},
    "htk, magnitudes, short window": {
        "n_fft": 512, "win_length": 400, "hop_length": 200, "window": "hamming", "pad_mode": "reflect", "power": 1,
        "n_mels": 26, "f_min": 20, "f_max": 7600, "mel_scale": "htk", "norm": "none", "log": "none",
    },
    "decibels below the loudest": {
        "n_fft": 512, "hop_length": 256, "n_mels": 32, "log": "db", "ref": "max", "top_db": 80,
    },
    "mfcc": {"kind": "mfcc", "n_fft": 400, "hop_length": 160, "n_mels": 40, "n_mfcc": 13, "top_db": 80},
    "linear, not centered": {
        "kind": "linear", "n_fft": 128, "hop_length": 64, "center": False, "power": 1, "log": "none",
    },
    "preemphasis": {"n_fft": 256, "hop_length": 256, "n_mels": 20, "preemphasis": 0.97, "log": "none"},
    "whisper": {**WHISPER, "mean": -4, "std": 4},
}  # fmt: skip
TENSORFLOW: dict[str, dict[str, Any]] = {
    "yamnet": {
        "win_length": 400, "n_fft": 512, "hop_length": 160, "frame_length": "win_length", "center": False, "power": 1,
        "n_mels": 64, "f_min": 125, "f_max": 7500, "mel_scale": "htk", "norm": "none", "triangles": "mel",
        "log": "natural", "log_offset": 0.001,
    },
    "keywords": {
        "win_length": 480, "hop_length": 160, "frame_length": "win_length", "center": False, "power": 1,
        "kind": "linear", "log": "none",
    },
}  # fmt: skip
CASES = {"librosa": LIBROSA, "tensorflow": TENSORFLOW}


def by_librosa(name: str, table: dict[str, Any]) -> Any:
    """Return [frames, bins] computed by librosa."""
    import librosa

    sound = signal()
    if "preemphasis" in table:
        sound = librosa.effects.preemphasis(sound, coef=table["preemphasis"], zi=[0.0])
    stft = {}
    for key in ("n_fft", "hop_length", "win_length", "window", "center", "pad_mode"):
        if key in table:
            stft[key] = table[key]
    power = table.get("power", 2)
    if table.get("kind") == "linear":
        return (np.abs(librosa.stft(sound, **stft)) ** power).T
    mel = librosa.feature.melspectrogram(
        y=sound,
        sr=RATE,
        power=power,
        n_mels=table["n_mels"],
        fmin=table.get("f_min", 0.0),
        fmax=table.get("f_max"),
        htk=table.get("mel_scale") == "htk",
        norm=None if table.get("norm") == "none" else "slaney",
        **stft,
    )
    if table.get("kind") == "mfcc":
        return librosa.feature.mfcc(
            S=librosa.power_to_db(mel), n_mfcc=table["n_mfcc"]
        ).T
    if table.get("log") == "db":
        return librosa.power_to_db(mel, ref=np.max).T
    if name == "whisper":  # as its authors write it, with librosa's spectrogram
        log = np.log10(np.maximum(mel, 1e-10))
        return ((np.maximum(log, log.max() - 8.0) + 4.0) / 4.0).T
    return mel.T


def by_tensorflow(name: str, table: dict[str, Any]) -> Any:
    """Return [frames, bins] computed by ``tf.signal``."""
    import tensorflow as tf

    stft = tf.signal.stft(
        signal(), table["win_length"], table["hop_length"], table.get("n_fft")
    )
    magnitude = tf.abs(stft)
    if name == "keywords":
        return magnitude.numpy()
    weights = tf.signal.linear_to_mel_weight_matrix(
        64, table["n_fft"] // 2 + 1, RATE, 125.0, 7500.0
    )
    return tf.math.log(tf.matmul(magnitude, weights) + 0.001).numpy()


if __name__ == "__main__":
    library = sys.argv[1]
    made = {"librosa": by_librosa, "tensorflow": by_tensorflow}[library]
    version = __import__(library).__version__
    found = {
        name: np.asarray(made(name, table), np.float32)
        for name, table in CASES[library].items()
    }
    np.savez_compressed(
        DATA / f"spectrogram_{library}.npz", version=np.array(version), **found
    )
    print(library, version, {name: array.shape for name, array in found.items()})
