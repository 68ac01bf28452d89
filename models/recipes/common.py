"""What the recipes share: reproducible frameworks, conversion to TFLite, measuring, filling in the templates.

Import this module before torch or TensorFlow: it sets environment variables that they read once, at import.
"""

import importlib.util
import json
import os
import zipfile
from collections.abc import Callable
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
from ai_edge_litert.interpreter import Interpreter
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
    """Saves a .keras file without the time of day in it, so that two runs give the same bytes."""
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in sorted(archive.namelist())}
    metadata = json.loads(members["metadata.json"])
    metadata["date_saved"] = "1980-01-01@00:00:00"
    members["metadata.json"] = json.dumps(metadata).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)


# --- Every version measured from its file, with its own runtime ------------------------------------------------


def torch_predictor(folder: Path) -> Predict:
    """Loads `model.py` and `weights.safetensors` the way the server does."""
    spec = importlib.util.spec_from_file_location(f"{folder.name}_model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    module = source.build()
    module.load_state_dict(load_file(folder / "weights.safetensors"), strict=True)
    module.eval()

    def predict(x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(x)).numpy()

    return predict


def tflite_predictor(path: Path) -> Predict:
    """Runs the signature in LiteRT, and checks that single rows and a batch of five give the same answer."""
    interpreter = Interpreter(model_content=path.read_bytes(), num_threads=1)
    runner = interpreter.get_signature_runner("serving_default")
    (source,) = runner.get_input_details()
    (result,) = runner.get_output_details()

    def run(x: np.ndarray) -> np.ndarray:
        return runner(**{source: x})[result].copy()  # the runner reuses its memory: a kept view blocks the next run

    def predict(x: np.ndarray) -> np.ndarray:
        answer = run(x)
        np.testing.assert_allclose(run(x[:5]), answer[:5], rtol=1e-4, atol=1e-4)
        singly = np.concatenate([run(x[i : i + 1]) for i in range(5)])
        np.testing.assert_allclose(singly, answer[:5], rtol=1e-4, atol=1e-4)
        return answer

    return predict


def keras_predictor(path: Path) -> Predict:
    model = tf.keras.models.load_model(path)
    return lambda x: model(x).numpy()


def largest_difference(answer: np.ndarray, reference: np.ndarray, limit: float) -> str:
    """A converted model that strays from the original is a failed conversion, whatever its accuracy."""
    difference = float(np.abs(answer - reference).max())
    assert difference <= limit, f"the converted model is off by {difference}"
    return f"{difference:.1e}"


def accuracy(scores: np.ndarray, truth: np.ndarray) -> float:
    return float((scores.argmax(axis=1) == truth).mean())


def mean_absolute_error(answer: np.ndarray, truth: np.ndarray) -> float:
    return float(np.abs(answer.astype(np.float64) - truth).mean())


def r_squared(answer: np.ndarray, truth: np.ndarray) -> float:
    """The share of the target's variance that the answers explain; guessing the mean scores 0."""
    return float(1 - np.square(answer - truth).sum() / np.square(truth - truth.mean()).sum())


# --- Manifest and card -----------------------------------------------------------------------------------------


def write_texts(folder: Path, values: dict[str, Any]) -> None:
    """Fills in the model's two templates; a figure that a template lacks or misspells is an error."""
    for template, target in ((f"{folder.name}.toml", "model.toml"), (f"{folder.name}.md", "README.md")):
        text = Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(values)
        (folder / target).write_text(text, encoding="utf-8")


def size(path: Path) -> str:
    return f"{path.stat().st_size:,}"
