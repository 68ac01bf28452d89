"""The models to convert, with their versions and data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pocketserve.repository.manifest_edit import edit_manifest

ROOT = Path(__file__).resolve().parents[2]
ASSETS_VARIABLE = "POCKETSERVE_TEST_ASSETS"
MODES = {
    "tflite": ("none", "fp16", "dynamic", "int8", "int16x8"),
    "onnx": ("none", "fp16", "dynamic", "int8"),
}
MODES |= {"executorch": ("none", "int8"), "tfjs": ("none", "fp16", "dynamic")}
CALIBRATION_SAMPLES = 200

PYTORCH_KINDS = ("torchscript", "ptl", "pt2", "executorch")
"""Only PyTorch's own tools make these."""


class Route(NamedTuple):
    """One conversion: a version from another one."""

    source: str
    kind: str
    quantize: str

    @property
    def version(self) -> str:
        """The new version's name."""
        if self.quantize == "none":
            return self.kind
        return f"{self.kind}-{self.quantize}"


class Subject(NamedTuple):
    """A model.

    Attributes:
        name: of the model, and of its folder.
        title: for people.
        bases: its versions that nobody converts here, the reference first; with the kinds that are made of each.
        lay_out: writes the model with its bases alone, the data to ask and the samples for calibration into folders.
        regression: one of those by which the seeds compared their paths.
        public: it comes from the folder of public models.
    """

    name: str
    title: str
    bases: dict[str, Sequence[str]]
    lay_out: Callable[[Path, Path, Path], None]
    regression: bool = False
    public: bool = False

    def routes(self) -> Iterator[Route]:
        """Yield all conversions, each kind's unquantised one first."""
        for base, kinds in self.bases.items():
            for kind in kinds:
                yield from (
                    Route(base, kind, mode)
                    for mode in MODES.get(kind, ("none",))
                    if (kind, mode) != (base, "none")
                )

    def data(self, folder: Path) -> Path:
        """Return the test data's folder."""
        return next(
            path
            for path in (folder / f"{self.name}.csv", folder / self.name)
            if path.exists()
        )


def available(names: Sequence[str]) -> list[Subject]:
    """Return the named subjects, or all; public ones if present.

    Raises:
        ValueError: there is no such subject.
    """
    known = {subject.name: subject for subject in SUBJECTS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"there is no model {', '.join(unknown)}; there are {', '.join(known)}"
        )
    chosen = [known[name] for name in names] or list(SUBJECTS)
    return [
        subject for subject in chosen if not subject.public or find_assets() is not None
    ]


def find_assets() -> Path | None:
    """Return the folder of public models."""
    named = os.environ.get(ASSETS_VARIABLE)
    candidates = [Path(named)] if named else sorted(ROOT.parent.glob("*/assets"))
    return next(
        (path for path in candidates if (path / "MANIFEST.json").is_file()), None
    )


# The embedded models: both unconverted versions, and the test part of their data


def _embedded(name: str) -> Callable[[Path, Path, Path], None]:
    def lay_out(folder: Path, data: Path, samples: Path) -> None:
        source = ROOT / "models" / name
        folder.mkdir(parents=True)
        files = (
            "model.toml",
            "model.py",
            "weights.safetensors",
            f"{name}.keras",
            "labels.txt",
        )
        for file in files:
            if (source / file).exists():
                shutil.copy(source / file, folder / file)
        edit_manifest(folder, _keep_bases)
        (_write_digits if name == "digits" else _write_rows)(name, data, samples)

    return lay_out


def _keep_bases(document: Any) -> None:
    for version in [
        version for version in document["versions"] if version not in ("torch", "keras")
    ]:
        del document["versions"][version]
    document["default_version"] = "torch"


def _recipe(name: str) -> Any:
    """Return a data split of an embedded model's recipe."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "datasets", ROOT / "models" / "recipes" / "datasets.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, f"{name}_split")()


def _write_rows(name: str, data: Path, samples: Path) -> None:
    """Write labelled test rows as CSV, training rows as array."""
    import tomllib

    manifest = tomllib.loads((ROOT / "models" / name / "model.toml").read_text("utf-8"))
    x_train, _, x_test, y_test = _recipe(name)
    lines = [[*manifest["features"]["names"], manifest["target"]["name"]]]
    lines += [
        [*map(repr, map(float, row)), repr(float(truth[0]))]
        for row, truth in zip(x_test, y_test, strict=True)
    ]
    data.mkdir(parents=True, exist_ok=True)
    (data / f"{name}.csv").write_text(
        "".join(",".join(line) + "\n" for line in lines), "utf-8"
    )
    samples.mkdir(parents=True)
    np.savez(samples / "training.npz", features=x_train[:CALIBRATION_SAMPLES])


def _write_digits(name: str, data: Path, samples: Path, size: int = 8) -> None:
    """Write test pictures by digit, and training pictures."""
    x_train, y_train, x_test, y_test = _recipe("digits")
    _write_pictures(data / name, x_test, y_test, size)
    _write_pictures(
        samples, x_train[:CALIBRATION_SAMPLES], y_train[:CALIBRATION_SAMPLES], size
    )


def _write_pictures(folder: Path, images: Any, digits: Any, size: int) -> None:
    from PIL import Image

    for number, (image, digit) in enumerate(zip(images, digits, strict=True)):
        target = folder / str(digit)
        target.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(np.round(image[..., 0] * 255).astype(np.uint8))
        if size != picture.width:  # like MNIST's digits: the middle 20 of 28 pixels
            frame = Image.new("L", (size, size))
            inner = size * 20 // 28
            frame.paste(
                picture.resize((inner, inner), Image.Resampling.BICUBIC),
                ((size - inner) // 2,) * 2,
            )
            picture = frame
        picture.save(target / f"{number:04}.png")


# Public models


FER = """task = "image-classification"
labels = "labels.txt"
[image]
color = "grayscale"
mean = 127.5
std = 127.5
[versions.keras]
file = "fer.keras"
"""
FER_LABELS = "angry\ndisgust\nfear\nhappy\nsad\nsurprise\nneutral\n"
MNIST = """task = "image-classification"
labels = "labels.txt"
[image]
mean = 0
std = 1
[classification]
activation = "softmax"
[versions.onnx]
file = "mnist.onnx"
"""
MOBILENET = """task = "image-classification"
[image]
mean = 127.5
std = 127.5
[versions.tflite]
file = "mobilenet.tflite"
"""
"""The file's own metadata say the same, but stay behind when it becomes ONNX."""

YAMNET = """[versions.tflite]
file = "yamnet.tflite"
"""


def _public(
    path: str, manifest: str, write: Callable[[str, Path, Path], None], labels: str = ""
) -> Any:
    def lay_out(folder: Path, data: Path, samples: Path) -> None:
        assets = find_assets()
        assert assets is not None
        source = assets / "models" / path
        folder.mkdir(parents=True)
        shutil.copyfile(
            source, folder / manifest.rpartition('file = "')[2].partition('"')[0]
        )
        (folder / "model.toml").write_text(manifest, "utf-8")
        if labels:
            (folder / "labels.txt").write_text(labels, "utf-8")
        write(folder.name, data, samples)

    return lay_out


def _write_mnist(name: str, data: Path, samples: Path) -> None:
    _write_digits(name, data, samples, size=28)


def _write_photos(name: str, data: Path, samples: Path) -> None:
    """Write half the photos for tests, half for calibration."""
    from PIL import Image

    assets = find_assets()
    assert assets is not None
    photos = []
    for p in sorted((assets / "inputs/images").iterdir()):
        if not p.stem.startswith("segmentation_golden"):
            photos.append(p)
    for number, path in enumerate(photos):
        folder = (data / name, samples)[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
        width, height = picture.size
        parts = [
            (x, y, x + width // 2, y + height // 2)
            for x in (0, width // 2)
            for y in (0, height // 2)
        ]
        for part, box in enumerate([(0, 0, width, height), *parts]):
            picture.crop(box).resize((256, 256), Image.Resampling.BILINEAR).save(
                folder / f"{path.stem}-{part}.png"
            )


def _write_sounds(name: str, data: Path, samples: Path) -> None:
    """Write seconds of recordings for tests and calibration."""
    import wave

    assets = find_assets()
    assert assets is not None
    for folder in (data / name, samples):
        folder.mkdir(parents=True, exist_ok=True)
    for path in sorted((assets / "inputs/audio").glob("*.wav")):
        with wave.open(str(path)) as recording:
            settings = recording.getparams()
            rate = recording.getframerate()
            seconds = [
                recording.readframes(rate)
                for _ in range(recording.getnframes() // rate)
            ]
        for number, frames in enumerate(seconds):
            with wave.open(
                str(
                    (data / name, samples)[number % 2] / f"{path.stem}-{number:02}.wav"
                ),
                "wb",
            ) as part:
                part.setparams(settings)
                part.writeframes(frames)


_BOTH = {"torch": ("tflite", "onnx", *PYTORCH_KINDS), "keras": ("tfjs",)}

SUBJECTS = (
    Subject(
        "petals",
        "linear regression with 3 features, born in Keras",
        {"keras": ("tflite", "onnx", "tfjs"), "torch": PYTORCH_KINDS},
        _embedded("petals"),
        regression=True,
    ),
    Subject(
        "diabetes",
        "linear regression with 10 features, born in PyTorch",
        _BOTH,
        _embedded("diabetes"),
        regression=True,
    ),
    Subject(
        "digits",
        "small CNN, 26 thousand weights, born in PyTorch",
        _BOTH,
        _embedded("digits"),
    ),
    Subject(
        "mobilenet",
        "MobileNet v1 0.25, 224 x 224, public, born in TensorFlow, had as TFLite",
        {"tflite": ("tflite", "onnx")},
        _public(
            "tflite/mobilenet_v1_0.25_224_float_metadata.tflite",
            MOBILENET,
            _write_photos,
        ),
        public=True,
    ),
    Subject(
        "fer",
        "CNN that reads faces (fer), 64 x 64, public, Keras",
        {"keras": ("tflite", "onnx", "tfjs")},
        _public("keras/fer_emotion.derived.keras", FER, _write_photos, FER_LABELS),
        public=True,
    ),
    Subject(
        "mnist",
        "CNN that reads digits (MNIST), 28 x 28, public, had as ONNX",
        {"onnx": ("onnx", "tflite")},
        _public(
            "onnx/mnist.onnx",
            MNIST,
            _write_mnist,
            "".join(f"{digit}\n" for digit in range(10)),
        ),
        public=True,
    ),
    Subject(
        "yamnet",
        "YAMNet, sounds, public, had as TFLite",
        {"tflite": ("tflite", "onnx")},
        _public(
            "tflite/yamnet_audio_classifier_with_metadata.tflite", YAMNET, _write_sounds
        ),
        public=True,
    ),
)
