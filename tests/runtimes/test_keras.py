"""Test the Keras runtime on generated and public models."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import StartServer
from pocketserve.engine.bindings import bind_specs
from pocketserve.inference.inputs import collect
from pocketserve.runtimes.base import ModelLoadError, ModelSource, ResettableSession
from pocketserve.runtimes.tensorflow.common import TensorFlowSession
from pocketserve.runtimes.tensorflow.keras import RUNTIME, _explain
from pocketserve.tensors import TensorSpec, to_tensor
from pocketserve_client import Client
from pocketserve_wire import ApiError

pytestmark = [
    pytest.mark.tensorflow,
    # Keras warns about its older format when a test writes it.
    pytest.mark.filterwarnings(
        "ignore:You are saving your model as an HDF5 file:UserWarning"
    ),
    # Keras's variables trigger a NumPy 2 warning when saved.
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
    ),
    pytest.mark.filterwarnings(
        "ignore:You are saving a model that has not yet been built:UserWarning"
    ),
]


@pytest.fixture(scope="module")
def keras() -> Any:
    """Import Keras as the runtime does."""
    from pocketserve.runtimes.tensorflow.common import import_tensorflow
    from pocketserve.runtimes.tensorflow.keras import _import_keras

    import_tensorflow(1)
    return _import_keras()


def save_two_inputs(keras: Any, folder: Path) -> None:
    """Save a model with two inputs in several forms."""
    layers = keras.layers
    a = layers.Input((4,), name="a")
    b = layers.Input((3,), name="b", dtype="int32")
    dense = layers.Dense(2, name="scores", kernel_initializer="ones")(a)
    embedded = layers.Embedding(5, 2, name="emb", embeddings_initializer="ones")(b)
    two = keras.Model([a, b], [dense, embedded])
    two.save(folder / "two.keras")
    two.save(folder / "two.h5")
    two.save_weights(folder / "two.weights.h5")
    dictionary = keras.Model({"b": b, "a": a}, {"q": embedded, "p": dense})
    dictionary.save(folder / "dictionary.keras")


def save_stateful(keras: Any, folder: Path) -> None:
    """Save a model with state in a layer and in an inner model."""
    layers = keras.layers
    sequence = layers.Input(batch_shape=(1, 3, 2))
    memory = layers.LSTM(4, stateful=True, return_sequences=True)
    inner = keras.Sequential([sequence, memory])
    steps = layers.Input(batch_shape=(1, 3, 2), name="steps")
    both = layers.Bidirectional(layers.GRU(3, stateful=True), name="both")
    keras.Model(steps, both(inner(steps))).save(folder / "stateful.keras")


@pytest.fixture(scope="module")
def models(keras: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of small models."""
    folder = tmp_path_factory.mktemp("keras")
    layers = keras.layers
    save_two_inputs(keras, folder)

    normalization = layers.BatchNormalization(name="norm")
    training = keras.Sequential(
        [
            layers.Input((4,)),
            layers.Dropout(0.9),
            normalization,
        ]
    )
    training.compile("adam", "mse")
    training.save(folder / "training.keras")

    ids = layers.TextVectorization(vocabulary=["yes", "no"], name="ids")
    text = layers.Input((1,), dtype="string", name="words")
    keras.Sequential([text, ids]).save(folder / "words.keras")

    code = keras.Sequential([layers.Input((4,)), layers.Lambda(lambda x: x * 2)])
    code.save(folder / "code.keras")
    code.save(folder / "code.h5")
    keras.Sequential([layers.Dense(2)]).save(folder / "unbuilt.keras")
    save_stateful(keras, folder)
    return folder


def opened(path: Path) -> TensorFlowSession:
    return RUNTIME.open(ModelSource(path))


def refusal(path: Path) -> str:
    """Return the sentence with which a file is refused."""
    with pytest.raises(ModelLoadError) as caught:
        opened(path)
    text = str(caught.value)
    assert "\n" not in text
    assert path.name in text
    assert len(text) < 700
    return text


def with_config(source: Path, target: Path, change: Any, **metadata: str) -> Path:
    """Return a copy of an archive with another configuration."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "config.json":
                content = change(content.decode()).encode()
            if name == "metadata.json":
                content = json.dumps(json.loads(content) | metadata).encode()
            new.writestr(name, content)
    return target


# --- Sessions and results


def test_all_inputs_share_one_batch_size(models: Path, keras: Any) -> None:
    """Keras demands equal batch sizes, though its graph would broadcast a single row."""
    layers = keras.layers
    a = layers.Input((4,), name="a")
    b = layers.Input((4,), name="b")
    keras.Model([a, b], layers.Add()([a, b])).save(models / "sum.keras")
    session = opened(models / "sum.keras")
    bound = bind_specs(list(session.inputs), [], "input")
    one, two = (
        to_tensor(name, np.ones((rows, 4), np.float32))
        for name, rows in (("a", 1), ("b", 2))
    )
    with pytest.raises(
        ApiError,
        match="input 'b' has 2 rows, input 'a' has 1; the model has one size for both",
    ):
        collect([one, two], bound, row_by_row=False, first_state={})
    both = collect(
        [to_tensor("a", np.ones((2, 4), np.float32)), two],
        bound,
        row_by_row=False,
        first_state={},
    )
    assert both.rows == 2
    # Its batch is not free.
    assert {spec.batch for spec in opened(models / "stateful.keras").inputs} == {""}


def test_the_session_names_its_format_and_package(models: Path) -> None:
    session = opened(models / "two.keras")
    assert RUNTIME.platform == "keras"
    assert RUNTIME.option_keys == frozenset()
    assert session.runtime.startswith("keras 3.")
    assert "tensorflow 2." in session.runtime
    assert session.device == "cpu"
    assert session.signatures == {}
    assert session.memory_bytes == (4 * 2 + 2 + 5 * 2) * 4


@pytest.mark.parametrize("name", ["two.keras", "two.h5"])
def test_names_datatypes_and_free_dimensions(models: Path, name: str) -> None:
    session = opened(models / name)
    assert list(session.inputs) == [
        TensorSpec("a", "FP32", (-1, 4), batch="batch"),
        TensorSpec("b", "INT32", (-1, 3), batch="batch"),
    ]
    assert list(session.outputs) == [
        TensorSpec("scores", "FP32", (-1, 2)),
        TensorSpec("emb", "FP32", (-1, 3, 2)),
    ]
    results = session.run(
        {"a": np.ones((5, 4), np.float32), "b": np.zeros((5, 3), np.int32)}
    )
    np.testing.assert_allclose(results["scores"], np.full((5, 2), 4))
    np.testing.assert_allclose(results["emb"], np.ones((5, 3, 2)))


def test_recurrent_layers_keep_their_state_until_reset(models: Path) -> None:
    session = opened(models / "stateful.keras")
    assert isinstance(session, ResettableSession)
    steps = {"steps": np.ones((1, 3, 2), np.float32)}
    first, second = (session.run(steps)["both"] for _ in range(2))
    assert not np.allclose(first, second)
    session.reset()
    assert np.array_equal(session.run(steps)["both"], first)
    assert np.array_equal(session.run(steps)["both"], second)
    session.reset()
    assert np.array_equal(session.run(steps)["both"], first)
    session.close()
    session.reset()


@pytest.mark.live
def test_requests_do_not_share_recurrent_state(
    new_server: StartServer, models: Path, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    shutil.copy(models / "stateful.keras", tmp_path / "models")
    server = new_server(tmp_path / "models")
    with Client(server.url, server.token, timeout=300) as client:

        def step(**parameters: object) -> list[float]:
            steps = {"steps": np.ones((1, 3, 2), np.float32)}
            return client.infer("stateful", steps, parameters=parameters)[
                "both"
            ].tolist()

        first = step()
        assert step() == first
        assert step(sequence_id="a", sequence_start=True) == first
        assert step() == first
        assert step(sequence_id="a", sequence_end=True) != first


@pytest.mark.parametrize("name", ["two.keras", "training.keras", "words.keras"])
def test_models_without_state_are_not_reset(models: Path, name: str) -> None:
    assert not isinstance(opened(models / name), ResettableSession)


def test_dictionaries_of_inputs_and_outputs(models: Path) -> None:
    session = opened(models / "dictionary.keras")
    assert {spec.name: spec.shape for spec in session.inputs} == {
        "a": (-1, 4),
        "b": (-1, 3),
    }
    assert {spec.name: spec.shape for spec in session.outputs} == {
        "p": (-1, 2),
        "q": (-1, 3, 2),
    }
    results = session.run(
        {"a": np.ones((1, 4), np.float32), "b": np.zeros((1, 3), np.int32)}
    )
    np.testing.assert_allclose(results["p"], [[4, 4]])


def test_models_run_in_inference_mode(models: Path) -> None:
    session = opened(models / "training.keras")
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (result,) = session.run({session.inputs[0].name: x}).values()
    np.testing.assert_allclose(result, x / np.sqrt(1.001), rtol=1e-5)


def test_text(models: Path) -> None:
    session = opened(models / "words.keras")
    assert [spec.datatype for spec in (*session.inputs, *session.outputs)] == [
        "BYTES",
        "INT64",
    ]
    words = np.array([[b"no yes"], [b"\xff"]], dtype=object)
    assert session.run({"words": words})["ids"].tolist() == [[3, 2], [1, 0]]


def test_results_own_their_memory(models: Path) -> None:
    session = opened(models / "training.keras")
    name = session.inputs[0].name
    x = np.ones((1, 4), np.float32)
    x.flags.writeable = False
    first = next(iter(session.run({name: x}).values()))
    kept = first.copy()
    session.run({name: x * 7})
    np.testing.assert_array_equal(first, kept)


def test_a_mismatched_input_is_a_client_error(models: Path) -> None:
    session = opened(models / "two.keras")
    with pytest.raises(ValueError, match=r"[Ii]ncompatible|shape"):
        session.run({"a": np.ones((1, 9), np.float32), "b": np.zeros((1, 3), np.int32)})
    with pytest.raises(ValueError, match="not in"):  # an index beyond the embedding
        session.run(
            {"a": np.ones((1, 4), np.float32), "b": np.full((1, 3), 99, np.int32)}
        )


def test_a_closed_session_refuses_runs(models: Path) -> None:
    session = opened(models / "two.keras")
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.run({})


# --- Files that are refused


@pytest.mark.parametrize("name", ["code.keras", "code.h5"])
def test_lambda_layers_are_refused(models: Path, name: str) -> None:
    assert (
        "has a Lambda layer, which is Python code inside the file and is not run"
        in refusal(models / name)
    )


def test_code_in_the_configuration_is_not_run(models: Path, tmp_path: Path) -> None:
    """CVE-2025-1550 named any function of any module as a layer."""
    call = {
        "module": "os",
        "class_name": "function",
        "config": "mkdir",
        "registered_name": "mkdir",
    }
    layer = {
        "module": "keras.layers",
        "class_name": "Activation",
        "config": {"name": "x", "activation": call},
    }

    def change(text: str) -> str:
        document = json.loads(text)
        document["config"]["layers"].append(
            layer
            | {
                "registered_name": None,
                "inbound_nodes": [],
                "name": "x",
            }
        )
        return json.dumps(document)

    assert refusal(with_config(models / "two.keras", tmp_path / "m.keras", change))


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    path.write_bytes(pickle.dumps({"a": 1}))
    assert "is not an HDF5 file" in refusal(path)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
def test_truncated_files_are_refused(
    models: Path, tmp_path: Path, suffix: str, part: float
) -> None:
    whole = (models / f"two{suffix}").read_bytes()
    path = tmp_path / f"part{suffix}"
    path.write_bytes(whole[: int(len(whole) * part)])
    assert any(
        words in refusal(path)
        for words in (
            "not a complete Keras archive",
            "damaged or truncated",
            "is not an HDF5 file",
        )
    )


def test_garbage_and_missing_files_are_refused(tmp_path: Path) -> None:
    for name in ("m.keras", "m.h5", "m.hdf5"):
        (tmp_path / name).write_bytes(b"garbage" * 100)
        assert "again" in refusal(tmp_path / name)
    assert "cannot be read: No such file" in refusal(tmp_path / "gone.keras")


def test_a_zip_archive_without_a_model_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        archive.writestr("other.txt", "")
    assert "without config.json" in refusal(tmp_path / "m.keras")


def test_an_archive_that_inflates_too_much_is_refused(
    models: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.keras"
    path.write_bytes((models / "two.keras").read_bytes())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(50_000_000))
    assert "would inflate to" in refusal(path)


def test_a_file_of_weights_only_is_explained(models: Path) -> None:
    assert "holds weights only" in refusal(models / "two.weights.h5")


def test_a_model_without_inputs_is_explained(models: Path) -> None:
    assert "does not state its inputs" in refusal(models / "unbuilt.keras")


@pytest.mark.parametrize("name", ["two.keras", "two.h5"])
def test_an_uppercase_extension_is_explained(
    models: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name.upper()
    path.write_bytes((models / name).read_bytes())
    assert "wants the ending in small letters, ." in refusal(path)


@pytest.mark.parametrize("name", ["mine>MyDense", "MyDense", "my-team>layers>MyDense"])
@pytest.mark.parametrize(
    "text",
    [
        "Could not locate class '{}'. Make sure",
        "Unknown layer: {}. Please",
        "Unknown object: '{}'",
    ],
)
def test_custom_classes_are_named_with_their_package(text: str, name: str) -> None:
    assert f"m.keras needs {name}, which is custom code or" in _explain(
        "m.keras", "Keras", "", text.format(name)
    )
    same = _explain("m.keras", "Keras 3.15.1", "3.15.1", text.format(name))
    assert f"m.keras needs {name}, which is custom code; export" in same


def test_custom_layers_are_named(models: Path, tmp_path: Path) -> None:
    path = with_config(
        models / "two.keras",
        tmp_path / "m.keras",
        lambda text: text.replace('"Dense"', '"MyDense"').replace(
            '"keras.layers"', '"mine"'
        ),
        keras_version="99.0",
    )
    text = refusal(path)
    assert (
        "custom code or belongs to another version of Keras (it was saved by Keras 99.0"
        in text
    )


def test_options_of_another_keras_are_named(models: Path, tmp_path: Path) -> None:
    path = with_config(
        models / "two.keras",
        tmp_path / "m.keras",
        lambda text: text.replace('"units": 2', '"units": 2, "groups": 1'),
    )
    assert "options that this Keras does not know (Dense: {'groups': 1})" in refusal(
        path
    )


@pytest.mark.parametrize(("old", "new", "words"), [
    ('"name": "scores"', '"name": "scores", "groups": 1', "does not know (Dense: {'groups': 1})"),
    ('"class_name": "Dense"', '"class_name": "TFOpLambda"', "operators outside of layers (TFOpLambda)"),
    ('"batch_shape": [null, ', '"batch_shape": [null, -', "Keras cannot load m.h5"),  # "negative ... not allowed"
])  # fmt: skip
def test_load_problems_of_old_files_are_explained(
    keras: Any, models: Path, tmp_path: Path, old: str, new: str, words: str
) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "m.h5"
    path.write_bytes((models / "two.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        config = json.dumps(json.loads(file.attrs["model_config"]))
        assert old in config
        file.attrs["model_config"] = config.replace(old, new)
    assert words in refusal(path)


# Keras also misses a part of the file that never had weights.
@pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning")
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("way", ["external", "link", "soft link", "virtual"])
def test_weights_in_another_file_are_refused(
    models: Path, tmp_path: Path, suffix: str, way: str
) -> None:
    """CVE-2026-1669: HDF5 can read a dataset's bytes from any file of the system."""
    source = models / f"two{suffix}"
    path = tmp_path / f"m{suffix}"
    if suffix == ".h5":
        path.write_bytes(_pointing_elsewhere(source.read_bytes(), tmp_path, way))
    else:
        with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
            for name in old.namelist():
                content = old.read(name)
                elsewhere = name == "model.weights.h5"
                new.writestr(
                    name,
                    _pointing_elsewhere(content, tmp_path, way)
                    if elsewhere
                    else content,
                )
    assert "it is unsafe: Not allowed: H5 file with" in refusal(path)


def _pointing_elsewhere(content: bytes, folder: Path, way: str) -> bytes:
    """Write an HDF5 file whose (4, 2) dataset is in another file."""
    h5py = pytest.importorskip("h5py")
    (folder / "secret").write_bytes(bytes(32))
    with h5py.File(folder / "other.h5", "w") as other:
        other["x"] = np.ones((4, 2), np.float32)
    buffer = io.BytesIO(content)
    with h5py.File(buffer, "r+") as file:
        name = next(name for name in _datasets(file) if file[name].shape == (4, 2))
        del file[name]
        if way == "external":
            file.create_dataset(
                name, (4, 2), "f4", external=[(str(folder / "secret"), 0, 32)]
            )
        elif way == "virtual":
            layout = h5py.VirtualLayout((4, 2), "f4")
            layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "x", (4, 2))
            file.create_virtual_dataset(name, layout)
        elif way == "link":
            file[name] = h5py.ExternalLink(str(folder / "other.h5"), "x")
        else:
            file["elsewhere"] = h5py.ExternalLink(str(folder / "other.h5"), "/")
            file[name] = h5py.SoftLink("/elsewhere/x")
    return buffer.getvalue()


def _datasets(file: Any) -> list[str]:
    names: list[str] = []
    file.visititems(
        lambda name, item: names.append(name) if hasattr(item, "shape") else None
    )
    return names


# --- Public models


@pytest.mark.assets
@pytest.mark.parametrize(
    "name",
    ["fer_keras__astronaut", "fer_keras__grace_hopper", "fer_keras_v3__astronaut"],
)
def test_public_models(assets: Path, name: str) -> None:
    case = json.loads((assets / "expected" / f"{name}.json").read_text())
    session = opened(assets / case["model"])
    assert list(session.inputs) == [
        TensorSpec("input_1", "FP32", (-1, 64, 64, 1), batch="batch")
    ]
    assert list(session.outputs) == [TensorSpec("predictions", "FP32", (-1, 7))]
    results = session.run({"input_1": np.load(assets / case["inputs"][0]["npy"])})
    np.testing.assert_allclose(
        results["predictions"], np.load(assets / case["outputs"][0]["npy"]), atol=1e-4
    )
