"""What the recipes share: reproducible frameworks, conversion to TFLite, measuring, filling in the templates.

Import this module before torch or TensorFlow: it sets environment variables that they read once, at import.
"""

import hashlib
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # the order of floating-point sums must not depend on the machine's cores
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
import torch
from pocketserve.engine.bindings import bind_specs
from pocketserve.runtimes.base import ModelSource
from pocketserve.runtimes.registry import format_at, runtime_for
from pocketserve.tensors import TensorSpec as Tensor
from safetensors.torch import load_file, save

MODELS = Path(__file__).resolve().parents[1]
TEMPLATES = Path(__file__).resolve().parent / "templates"
SEED = 0

Predict = Callable[[np.ndarray], np.ndarray]


def make_reproducible() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tf.keras.config.disable_interactive_logging()  # it would print every export's signature
    tf.keras.utils.set_random_seed(SEED)
    tf.config.experimental.enable_op_determinism()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def training_asked() -> bool:
    """With `--train` a recipe only trains; without it, it makes everything else from the weights that are there.

    Not both in one process: names that frameworks number on would depend on what was built before.
    """
    return "--train" in sys.argv[1:]


def start(train: Callable[[], None], convert: Callable[[], None]) -> None:
    """Run a recipe as the command line asks, with the same bytes each time."""
    make_reproducible()
    (train if training_asked() else convert)()


# --- Conversion and saving -------------------------------------------------------------------------------------


def to_tflite(model: tf.keras.Model, result: str, calibration: np.ndarray | None = None) -> bytes:
    """Converts a Keras model; the signature `serving_default` takes the name of its input and gives `result`.

    The batch stays free. With calibration examples all arithmetic becomes 8-bit integer; what goes in and comes
    out remains float.
    """
    # A dictionary of outputs is what names them. Not tf.saved_model.save with a signature of our own: with the
    # variables below a Keras model the converter leaves them out, and LiteRT computes with uninitialised memory.
    named = tf.keras.Model(model.inputs, {result: model.outputs[0]})
    converter = tf.lite.TFLiteConverter.from_keras_model(named)
    if calibration is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.representative_dataset = lambda: ([row[np.newaxis]] for row in calibration)
    return converter.convert()


def save_torch(module: torch.nn.Module, path: Path) -> None:
    """Not with safetensors' save_file: it gives the file mode 0600, which would travel into the wheel."""
    path.write_bytes(save(module.state_dict()))


def save_keras(model: tf.keras.Model, path: Path) -> None:
    """Saves a .keras file without the time of day and memory addresses in it, so that two runs give the same bytes."""
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in sorted(archive.namelist())}
    metadata = json.loads(members["metadata.json"])
    metadata["date_saved"] = "1980-01-01@00:00:00"
    members["metadata.json"] = json.dumps(metadata).encode()
    # What several layers share is marked with its address; any other number will do.
    marks: dict[bytes, bytes] = {}
    members["config.json"] = re.sub(
        rb'(?<="shared_object_id": )\d+',
        lambda found: marks.setdefault(found[0], str(len(marks) + 1).encode()),
        members["config.json"],
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)


# --- Every version, measured from its file with its own runtime -------------------------------------------------


@dataclass(frozen=True)
class Version:
    """One version of a model.

    Attributes:
        file: of the model's folder, as the manifest names it.
        tolerance: how far an answer may be from that of `tflite`; None for `tflite` itself.
        options: the manifest's other keys.
        weights: the file whose size the card tells, where it is another one.
    """

    name: str
    file: str
    tolerance: float | None
    options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None


def versions(model: str, tolerance: float) -> list[Version]:
    """The versions that every model has."""
    weights = "weights.safetensors"
    return [
        Version("tflite", f"{model}.tflite", None),
        Version("torch", "model.py", tolerance, {"weights": weights, "function": "build"}, weights),
        Version("torchscript", f"{model}.ts", tolerance),
        Version("ptl", f"{model}.ptl", tolerance),
        Version("pt2", f"{model}.pt2", tolerance),
        Version("executorch", f"{model}.pte", tolerance),
        Version("onnx", f"{model}.onnx", tolerance),
        Version("keras", f"{model}.keras", tolerance),
        Version("savedmodel", "savedmodel", tolerance),
        Version("tfjs", "tfjs", tolerance),
    ]


def opened(folder: Path, version: Version, takes: Tensor, gives: Tensor) -> Predict:
    """Opens a version as the server does, and binds its tensors to the manifest's."""
    path = (folder / version.file).resolve()
    kind = format_at(path)
    assert kind is not None
    trusted = frozenset({hashlib.sha256(path.read_bytes()).hexdigest()}) if path.is_file() else frozenset[str]()
    source = ModelSource(
        path, threads=1, options=version.options, inputs=(takes,), outputs=(gives,), trusted=trusted
    )
    session = runtime_for(kind).open(source)
    for actual, declared in ((session.inputs, takes), (session.outputs, gives)):
        (bound,) = bind_specs(actual, (declared,), "tensor").specs
        assert bound.shape == declared.shape, f"{version.name} has {bound}"
    return lambda x: session.run({session.inputs[0].name: x})[session.outputs[0].name].copy()


def predictor(folder: Path, version: Version, takes: Tensor, gives: Tensor) -> Predict:
    """Opens a version; the predictor checks that single rows and a batch of five give the same answer."""
    run = opened(folder, version, takes, gives)

    def predict(x: np.ndarray) -> np.ndarray:
        answer = run(x)
        np.testing.assert_allclose(run(x[:5]), answer[:5], rtol=1e-4, atol=1e-4)
        singly = np.concatenate([run(x[i : i + 1]) for i in range(5)])
        np.testing.assert_allclose(singly, answer[:5], rtol=1e-4, atol=1e-4)
        return answer

    return predict


def load_torch(module: torch.nn.Module, folder: Path) -> torch.nn.Module:
    """Fills a module with the weights in the folder."""
    module.load_state_dict(load_file(folder / "weights.safetensors"), strict=True)
    return module.eval()


def differences(answers: dict[str, np.ndarray], model_versions: list[Version]) -> dict[str, float]:
    """The largest difference of each version to `tflite`.

    A converted model that strays from the others is a failed conversion, whatever its accuracy.
    """
    found = {}
    for version in model_versions:
        found[version.name] = float(np.abs(answers[version.name] - answers["tflite"]).max())
        assert found[version.name] <= (version.tolerance or 0), f"{version.name} is off by {found[version.name]}"
    return found


def accuracy(scores: np.ndarray, truth: np.ndarray) -> float:
    return float((scores.argmax(axis=1) == truth).mean())


def mean_absolute_error(answer: np.ndarray, truth: np.ndarray) -> float:
    return float(np.abs(answer.astype(np.float64) - truth).mean())


def r_squared(answer: np.ndarray, truth: np.ndarray) -> float:
    """The share of the target's variance that the answers explain; guessing the mean scores 0."""
    return float(1 - np.square(answer - truth).sum() / np.square(truth - truth.mean()).sum())


# --- Manifest and card -----------------------------------------------------------------------------------------


def version_tables(model_versions: list[Version], dataset: str, metric: str, values: dict[str, str]) -> str:
    """The manifest's [versions]; `values` are the measured figures by version."""
    return "\n\n".join(_version_table(version, dataset, metric, values[version.name]) for version in model_versions)


def _version_table(version: Version, dataset: str, metric: str, value: str) -> str:
    keys = {"file": version.file, **version.options}
    lines = [f"[versions.{version.name}]", *(f"{key} = {json.dumps(item)}" for key, item in keys.items())]
    lines += [f"[versions.{version.name}.evaluation]", f'dataset = "{dataset}"', f'metric = "{metric}"']
    lines += [f"value = {value}"]
    if version.tolerance is not None:
        lines.append(f"tolerance = {version.tolerance:g}")
    return "\n".join(lines)


def card_rows(folder: Path, model_versions: list[Version], figures: dict[str, list[str]]) -> str:
    """A row per version: its name, file and bytes, then the figures."""
    lines = []
    for version in model_versions:
        shown = version.weights or version.file
        cells = [f"`{version.name}`", f"`{shown}`", size(folder / shown), *figures[version.name]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def regression_texts(
    folder: Path, model_versions: list[Version], dataset: str, answers: dict[str, np.ndarray], truth: np.ndarray
) -> dict[str, str]:
    """The parts of manifest and card that list the versions of a regression."""
    found = differences(answers, model_versions)
    errors = {name: f"{mean_absolute_error(answer, truth):.4f}" for name, answer in answers.items()}
    figures = {
        version.name: [
            f"**{errors[version.name]}**",
            f"{found[version.name]:.1e}" if version.tolerance else "",
            show_tolerance(version),
        ]
        for version in model_versions
    }
    return {
        "versions": version_tables(model_versions, dataset, "mean_absolute_error", errors),
        "rows": card_rows(folder, model_versions, figures),
    }


def write_texts(folder: Path, values: dict[str, Any]) -> None:
    """Fills in the model's two templates; a figure that a template lacks or misspells is an error."""
    for target in ("model.toml", "README.md"):
        write_text(folder, target, values)


def write_text(folder: Path, target: str, values: dict[str, Any]) -> None:
    template = (TEMPLATES / folder.name).with_suffix(Path(target).suffix).read_text(encoding="utf-8")
    (folder / target).write_text(Template(template).substitute(values), encoding="utf-8")


def size(path: Path) -> str:
    """Bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return f"{sum(file.stat().st_size for file in files):,}"


def show_tolerance(version: Version) -> str:
    return "" if version.tolerance is None else f"{version.tolerance:g}"
