"""Trains a tiny model that hears what kind of sound it is, on made-up sounds, and writes its folder.

- ``tones``: silence, a tone, a rising or a falling one, or noise, from a log-mel spectrogram of one second. Spotters of
  keywords on phones are made like this: the model takes features, not samples.

The features for training are TensorFlow's own (``tf.signal``); the manifest says the same in its ``[spectrogram]``.
It is made for the tests (``tests/models``), not for the wheel. The card states a score on held-out sounds.

Run from the repository root: python -m models.recipes.sounds
"""

import numpy as np
import tensorflow as tf

from models.recipes.words import SEED, card, write

RATE, FRAMES, BINS = 16_000, 49, 40
LABELS = ["silence", "tone", "rising", "falling", "noise"]
LOUDEST_FAINT = 3e-4
"""Noise of this deviation is behind every sound, and is all of silence."""

MANIFEST = """description = "Tells silence, a tone, a rising tone, a falling tone and noise apart."
license = "Apache-2.0"
task = "audio-classification"
labels = "labels.txt"

[translations]
de = "labels.de.txt"

[audio]
sample_rate = 16000

[spectrogram]
win_length = 640
n_fft = 1024
hop_length = 320
frame_length = "win_length"
center = false
power = 1
n_mels = 40
f_min = 60
f_max = 7600
mel_scale = "htk"
norm = "none"
triangles = "mel"
log = "natural"
log_offset = 0.001
"""


def sound(rng: np.random.Generator, kind: int) -> np.ndarray:
    """One second with a sound of at least 0.4 seconds in it, float32."""
    samples = rng.normal(0, rng.uniform(0, LOUDEST_FAINT), RATE)
    if kind:
        length = int(rng.uniform(0.4, 1.0) * RATE)
        start = int(rng.integers(0, RATE - length + 1))
        t = np.arange(length) / RATE
        low = rng.uniform(150, 1500)
        high = low * rng.uniform(1.7, 2.5) if kind in (2, 3) else low
        first, last = (high, low) if kind == 3 else (low, high)
        phase = 2 * np.pi * (first * t + (last - first) * t**2 / (2 * t[-1]))
        wave = rng.uniform(-1, 1, length) if kind == 4 else np.sin(phase)
        ramp = np.clip(np.minimum(t, t[::-1]) / 0.02, 0, 1)  # no click at either end
        samples[start : start + length] += wave * ramp * 10 ** rng.uniform(-1.5, -0.05)
    return np.clip(samples, -1, 1).astype(np.float32)


def features(samples: np.ndarray) -> tf.Tensor:
    """Log-mel spectrograms of shape [sounds, FRAMES, BINS]."""
    magnitude = tf.abs(tf.signal.stft(samples, 640, 320, 1024))
    weights = tf.signal.linear_to_mel_weight_matrix(BINS, 513, RATE, 60.0, 7600.0)
    return tf.math.log(magnitude @ weights + 0.001)


def batch(rng: np.random.Generator, size: int) -> tuple[tf.Tensor, np.ndarray]:
    kinds = rng.integers(0, len(LABELS), size)
    return features(np.stack([sound(rng, kind) for kind in kinds])), kinds


def network() -> tf.keras.Model:
    layers = tf.keras.layers
    x = inputs = layers.Input((FRAMES, BINS))
    x = layers.Reshape((FRAMES, BINS, 1))(0.25 * x)
    for width in (8, 16, 24):
        x = layers.Conv2D(width, 3, strides=2, padding="same", activation="relu")(x)
    return tf.keras.Model(inputs, layers.Dense(len(LABELS), activation="softmax")(layers.Flatten()(x)))


def make_tones(epochs: int = 12) -> None:
    model = network()
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(*batch(np.random.default_rng(SEED), 3000), batch_size=32, epochs=epochs, verbose=0)
    x_test, y_test = batch(np.random.default_rng(SEED + 1), 1000)
    right = np.mean(model(x_test).numpy().argmax(1) == y_test)
    print(f"tones: held-out {right:.3f}", flush=True)
    spec = tf.TensorSpec((1, FRAMES, BINS), tf.float32, name="log_mel")
    folder = write("tones", lambda x: {"scores": model(x)}, [spec])
    (folder / "labels.txt").write_text("\n".join(LABELS) + "\n", encoding="utf-8")
    (folder / "labels.de.txt").write_text("Stille\nTon\nsteigend\nfallend\nRauschen\n", encoding="utf-8")
    (folder / "model.toml").write_text(MANIFEST, encoding="utf-8")
    card(
        folder,
        "Kinds of sounds",
        f"{right:.3f} of 1000 held-out sounds are told right (five classes; chance: {1 / len(LABELS):.2f}).",
        "Sounds are synthetic, one at a time and nearly without background.",
        recipe="sounds",
    )


if __name__ == "__main__":
    tf.keras.utils.set_random_seed(SEED)
    make_tones()
