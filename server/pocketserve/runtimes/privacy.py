"""Keeps frameworks from phoning home, from writing into the user's home, and from printing what models say."""

from __future__ import annotations

import os
from typing import Final

PRIVATE: Final = {
    # Read at the import of ONNX Runtime, which else makes a lasting id of the device and looks up names in the network;
    # its disable_telemetry_events() comes too late.
    "ORT_DISABLE_TELEMETRY": "1",
    # Keras and TensorFlow write ~/.keras/keras.json. Nothing can be written below this, nor read.
    "KERAS_HOME": os.devnull,
    # C++ writes errors and warnings to descriptor 2 itself, past our escaping, with names and texts of the model in
    # them; each of them is an exception, too. What ends the process is still written.
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TORCH_CPP_LOG_LEVEL": "FATAL",
}
"""Environment variables of every process that imports a framework; who sets one to something else wants that."""


def keep_private() -> None:
    """Set the variables where they are not set; called before each import of a framework that reads them."""
    for name, value in PRIVATE.items():
        os.environ.setdefault(name, value)
