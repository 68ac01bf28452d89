"""Measures the .tflite files with tflite_runtime 2.14, the older package that phones and small boards often have.

It needs numpy below 2 and therefore an environment of its own, see README.md. Run from the repository root:
python -m models.recipes.old_runtime
"""

from pathlib import Path

import numpy as np
from tflite_runtime.interpreter import Interpreter

from models.recipes import datasets

MODELS = Path(__file__).resolve().parents[1]


def predict(path: Path, x: np.ndarray) -> np.ndarray:
    interpreter = Interpreter(model_content=path.read_bytes(), num_threads=1)
    interpreter.resize_tensor_input(interpreter.get_input_details()[0]["index"], x.shape, strict=True)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def main() -> None:
    for name in ("digits.tflite", "digits.int8.tflite"):
        _, _, x, y = datasets.digits_split()
        print(f"{name:20} accuracy {(predict(MODELS / 'digits' / name, x).argmax(axis=1) == y).mean():.4f}")
    for name, split in (("diabetes", datasets.diabetes_split), ("petals", datasets.petals_split)):
        _, _, x, y = split()
        error = np.abs(predict(MODELS / name / f"{name}.tflite", x) - y).mean()
        print(f"{name + '.tflite':20} mean absolute error {error:.4f}")


if __name__ == "__main__":
    main()
