"""Refuse Keras files whose configuration reaches outside the model."""

from __future__ import annotations

import inspect
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.tensorflow.keras import RUNTIME
from pocketserve.runtimes.tensorflow.keras_config import LAYERS, OTHERS

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings(
        "ignore:You are saving your model as an HDF5 file:UserWarning"
    ),
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
    ),
]

CODE = {"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"}


@pytest.fixture(scope="module")
def keras() -> Any:
    from pocketserve.runtimes.tensorflow.common import import_tensorflow
    from pocketserve.runtimes.tensorflow.keras import _import_keras

    import_tensorflow(1)
    return _import_keras()


@pytest.fixture(scope="module")
def plain(keras: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with a layer ``target``; don't change it.

    Tests replace the layer's activation in a copy.
    """
    path = tmp_path_factory.mktemp("plain") / "plain.keras"
    x = keras.layers.Input((4,), name="x")
    keras.Model(x, keras.layers.Dense(2, activation="relu", name="target")(x)).save(
        path
    )
    return path


def public(module: Any) -> Iterator[str]:
    return (
        name
        for name in vars(module)
        if inspect.isclass(getattr(module, name)) and not name.startswith("_")
    )


def test_each_public_layer_is_listed(keras: Any) -> None:
    """A layer of a new Keras version is refused until somebody has reviewed it."""
    assert set(public(keras.layers)) - CODE == LAYERS


def test_other_allowed_names_are_in_the_listed_modules(keras: Any) -> None:
    names = {"Functional", "Model", "Sequential", "InputSpec"}
    for module in (
        "initializers",
        "regularizers",
        "constraints",
        "losses",
        "metrics",
        "optimizers",
        "quantizers",
    ):
        names |= set(public(getattr(keras, module)))
    names |= {
        *public(keras.optimizers.schedules),
        *public(keras.dtype_policies),
        *public(keras.random),
    }
    assert names == OTHERS


def with_layer(plain: Path, target: Path, **changes: Any) -> Path:
    """Return the model with ``config`` merged into its layer ``target``."""

    def change(text: str) -> str:
        document = json.loads(text)
        layer = next(
            item for item in document["config"]["layers"] if item["name"] == "target"
        )
        layer["config"] |= changes.pop("config", {})
        layer |= changes
        return json.dumps(document)

    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(
                name, change(content.decode()) if name == "config.json" else content
            )
    return target


def refusal(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        RUNTIME.open(ModelSource(path))
    return str(caught.value)


def function(module: str, name: str) -> dict[str, Any]:
    return {
        "class_name": "function",
        "module": module,
        "config": name,
        "registered_name": name,
    }


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("keras.utils", "get_file"),
        ("keras.utils", "plot_model"),
        ("keras.applications", "MobileNet"),
        ("keras.saving", "load_model"),
        ("keras.src.saving.saving_lib", "load_model"),
        ("keras.config", "enable_unsafe_deserialization"),
        ("keras.activations.evil", "relu"),
        ("keras.ops.evil", "relu"),
    ],
)
def test_functions_of_other_modules_are_refused(
    plain: Path, tmp_path: Path, module: str, name: str
) -> None:
    path = with_layer(
        plain, tmp_path / "m.keras", config={"activation": function(module, name)}
    )
    assert f"Not allowed: the function {name!r} of {module!r}" in refusal(path)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("keras.layers", "TFSMLayer"),
        ("keras.src.export.tfsm_layer", "TFSMLayer"),
        ("keras.layers", "TorchModuleWrapper"),
        ("keras.src.models.functional_test", "Dense"),
        ("keras.src.callbacks.csv_logger", "CSVLogger"),
        ("keras.utils", "FeatureSpace"),
        ("keras_hub.models", "Dense"),
        ("antigravity", "Dense"),
        (None, "JaxLayer"),
        ({"a": 1}, "Dense"),
        ("keras.layers", ["Dense"]),
        ("keras.layers", "__typespec__"),
        ("keras.layers", "TypeSpec"),
    ],
)
def test_other_classes_are_refused_before_keras_looks_them_up(
    plain: Path, tmp_path: Path, module: Any, name: Any
) -> None:
    changes = {
        "module": module,
        "class_name": name,
        "config": {"filepath": str(tmp_path)},
        "registered_name": None,
    }
    text = refusal(with_layer(plain, tmp_path / "m.keras", **changes))
    assert (
        "which is custom code; export the model" in text
        or "Not allowed: a class of" in text
    )


def test_an_external_savedmodel_is_not_loaded(
    keras: Any, plain: Path, tmp_path: Path
) -> None:
    """``TFSMLayer`` would load and run an unchecked SavedModel."""
    import tensorflow as tf

    module = tf.Module()
    module.call = tf.function(
        lambda x: x, input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")]
    )
    tf.saved_model.save(
        module, str(tmp_path / "model"), signatures={"serve": module.call}
    )
    config = {
        "name": "target",
        "filepath": str(tmp_path / "model"),
        "call_endpoint": "serve",
    }
    path = with_layer(
        plain, tmp_path / "m.keras", class_name="TFSMLayer", config=config
    )
    assert "needs TFSMLayer" in refusal(path)


@pytest.mark.parametrize(
    "layer", ["TextVectorization", "StringLookup", "IntegerLookup"]
)
def test_a_vocabulary_in_another_file_is_refused(
    plain: Path, tmp_path: Path, layer: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a\nb\n")
    path = with_layer(
        plain,
        tmp_path / "m.keras",
        class_name=layer,
        config={"vocabulary": str(secret)},
    )
    assert "unsafe: Not allowed: a vocabulary that lies in another file" in refusal(
        path
    )


def test_an_archive_that_starts_like_hdf5_is_checked_as_an_archive(
    plain: Path, tmp_path: Path
) -> None:
    """Keras decides by the file's extension."""
    path = with_layer(
        plain,
        tmp_path / "m.keras",
        config={"activation": function("keras.utils", "get_file")},
    )
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + path.read_bytes())
    assert "get_file" in refusal(path)


def test_configurations_of_older_files_are_checked(
    keras: Any, plain: Path, tmp_path: Path
) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "m.h5"
    keras.models.load_model(plain).save(path)
    with h5py.File(path, "r+") as file:
        document = json.loads(file.attrs["model_config"])
        document["config"]["layers"][1]["config"]["activation"] = function(
            "keras.utils", "get_file"
        )
        file.attrs["model_config"] = json.dumps(document)
    assert "Not allowed: the function 'get_file' of 'keras.utils'" in refusal(path)


def test_operators_outside_layers_are_served(keras: Any, tmp_path: Path) -> None:
    """Nested layers, policies, initializers and Keras functions are served, too."""
    layers = keras.layers
    x = layers.Input((4, 3), name="x")
    y = keras.ops.abs(x)[:, 0] + keras.ops.mean(x, axis=1) * 2
    inner = keras.Sequential(
        [
            layers.Input((3,)),
            layers.Dense(2, "gelu", kernel_regularizer="l2", dtype="mixed_float16"),
        ]
    )
    z = layers.Bidirectional(
        layers.GRU(2, kernel_constraint=keras.constraints.MaxNorm(2))
    )(x)
    z = layers.Activation(keras.activations.softmax)(layers.Dropout(0.5)(z))
    model = keras.Model(x, [inner(y), z])
    model.save(tmp_path / "m.keras")
    assert len(RUNTIME.open(ModelSource(tmp_path / "m.keras")).outputs) == 2
