"""Test the SavedModel runtime and its file check."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import StartServer
from pocketserve.formats import DamagedFileError
from pocketserve.repository.files import files_below, hash_files
from pocketserve.runtimes.base import ModelLoadError, ModelSource, ResettableSession
from pocketserve.runtimes.tensorflow import savedmodel
from pocketserve.runtimes.tensorflow.common import TensorFlowSession
from pocketserve.runtimes.tensorflow.savedmodel import RUNTIME
from pocketserve.runtimes.tensorflow.savedmodel_check import (
    ForbiddenError,
    check_meta_graphs,
)
from pocketserve.runtimes.tensorflow.savedmodel_graph import read_meta_graphs
from pocketserve.tensors import TensorSpec

pytestmark = pytest.mark.tensorflow

Save = Callable[..., Path]


@pytest.fixture(scope="module")
def tf() -> Any:
    """Import TensorFlow as the runtime does."""
    from pocketserve.runtimes.tensorflow.common import import_tensorflow

    return import_tensorflow(1)


@pytest.fixture
def save(tf: Any, tmp_path: Path) -> Save:
    """Return a function that saves functions: ``save(name=(function, *specs))``."""

    def save(default: tuple[Any, ...] | None = None, **others: tuple[Any, ...]) -> Path:
        module = tf.Module()
        functions = (
            others if default is None else {"serving_default": default, **others}
        )
        module.functions = {
            key: tf.function(fn, input_signature=specs)
            for key, (fn, *specs) in functions.items()
        }
        tf.saved_model.save(
            module, str(tmp_path / "model"), signatures=dict(module.functions)
        )
        return tmp_path / "model"

    return save


@pytest.fixture(scope="module")
def counter(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a saved model with variables; don't change it."""
    folder = tmp_path_factory.mktemp("counter") / "scale"
    module = tf.Module()
    module.scale = tf.Variable([2.0, 3.0])
    spec = tf.TensorSpec([None, 2], tf.float32, name="x")
    module.call = tf.function(
        lambda x: {"scaled": x * module.scale}, input_signature=[spec]
    )
    module.negate = tf.function(lambda x: {"negated": -x}, input_signature=[spec])
    tf.saved_model.save(
        module,
        str(folder),
        signatures={"serving_default": module.call, "negate": module.negate},
    )
    return folder


@pytest.fixture
def copy(counter: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may damage."""
    return Path(shutil.copytree(counter, tmp_path / "scale"))


def opened(folder: Path, **options: Any) -> TensorFlowSession:
    return RUNTIME.open(ModelSource(folder, options=options))


def refusal(folder: Path, **options: Any) -> str:
    """Return the sentence with which a folder is refused."""
    with pytest.raises(ModelLoadError) as caught:
        opened(folder, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 900
    return text


def texts(*values: bytes) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


# --- Sessions and results


def test_the_session_names_its_format_and_package(counter: Path) -> None:
    session = opened(counter)
    assert RUNTIME.platform == "tensorflow_savedmodel"
    assert RUNTIME.option_keys == {"loader", "signature", "trust"}
    assert session.runtime.startswith("tensorflow 2.")
    assert session.device == "cpu"
    assert session.memory_bytes == sum(
        path.stat().st_size for path in counter.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("loader", ["v2", "v1"])
def test_signatures(counter: Path, loader: str) -> None:
    session = opened(counter, loader=loader)
    assert ("(v1 loader)" in session.runtime) == (loader == "v1")
    assert list(session.inputs) == [TensorSpec("x", "FP32", (-1, 2))]
    assert list(session.outputs) == [TensorSpec("scaled", "FP32", (-1, 2))]
    assert sorted(session.signatures) == ["negate", "serving_default"]
    assert list(session.signatures["negate"].outputs) == [
        TensorSpec("negated", "FP32", (-1, 2))
    ]
    x = np.array([[1, 1], [2, 2]], np.float32)
    x.flags.writeable = False
    assert session.run({"x": x})["scaled"].tolist() == [[2, 3], [4, 6]]
    assert session.run({"x": x}, "negate")["negated"].tolist() == [[-1, -1], [-2, -2]]
    with pytest.raises(ValueError, match=r"."):
        session.run({"x": np.ones((1, 3), np.float32)})
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.run({"x": x})


def test_the_path_of_the_file_is_accepted(counter: Path) -> None:
    assert opened(counter / "saved_model.pb").run({"x": np.ones((1, 2), np.float32)})[
        "scaled"
    ].tolist() == [[2, 3]]


def test_closing_does_not_collect_garbage(counter: Path) -> None:
    """With TensorFlow imported that takes half a second of CPU; the engine does it once
    for all sessions.
    """
    sessions = [opened(counter) for _ in range(3)]
    collections: list[str] = []
    gc.disable()
    gc.callbacks.append(lambda phase, details: collections.append(phase))
    try:
        for session in sessions:
            session.close()
    finally:
        gc.callbacks.pop()
        gc.enable()
    assert collections == []


def test_results_own_their_memory(counter: Path) -> None:
    for loader in ("v1", "v2"):
        session = opened(counter, loader=loader)
        first = session.run({"x": np.ones((1, 2), np.float32)})["scaled"]
        session.run({"x": np.full((1, 2), 9, np.float32)})
        assert first.tolist() == [[2, 3]]


def test_the_manifest_may_choose_another_signature(counter: Path) -> None:
    session = opened(counter, signature="negate")
    assert [spec.name for spec in session.outputs] == ["negated"]
    assert "has no signature 'other'; it has: " in refusal(counter, signature="other")


def test_the_only_signature_is_the_default(tf: Any, save: Save) -> None:
    session = opened(
        save(only=(lambda x: {"y": x + 1}, tf.TensorSpec([], tf.int64, name="x")))
    )
    assert list(session.inputs) == [TensorSpec("x", "INT64", ())]
    result = session.run({"x": np.array(4)})["y"]
    assert result.shape == ()
    assert result.dtype == np.int64
    assert result == 5


def test_several_signatures_without_a_default_need_a_choice(
    tf: Any, save: Save
) -> None:
    spec = tf.TensorSpec([1], tf.float32, name="x")
    folder = save(one=(lambda x: {"y": x}, spec), two=(lambda x: {"y": -x}, spec))
    session = opened(folder)
    with pytest.raises(
        ValueError,
        match=r"signature_name in the request or signature in model\.toml: one, two",
    ):
        session.run({"x": np.ones(1, np.float32)})
    assert session.run({"x": np.ones(1, np.float32)}, "two")["y"].tolist() == [-1]
    assert opened(folder, signature="two").run({"x": np.ones(1, np.float32)})[
        "y"
    ].tolist() == [-1]


@pytest.mark.live
def test_a_request_may_name_a_signature_without_a_default(
    tf: Any, save: Save, new_server: StartServer
) -> None:
    spec = tf.TensorSpec([None, 1], tf.float32, name="x")
    folder = save(
        half=(lambda x: {"y": x / 2}, spec), twice=(lambda x: {"y": x * 2}, spec)
    )
    (folder.parent / "models").mkdir()
    server = new_server(
        Path(shutil.move(folder, folder.parent / "models" / "m")).parent
    )

    def predict(**more: Any) -> tuple[int, Any]:
        answer = server.call(
            "POST", "/v1/models/m:predict", json={"instances": [[3.0]], **more}
        )
        return answer.status_code, answer.json()

    assert predict(signature_name="half") == (200, {"predictions": [[1.5]]})
    assert predict(signature_name="twice") == (200, {"predictions": [[6.0]]})
    status, answer = predict()
    assert status == 400
    assert "choose one with signature_name in the request" in answer["error"]


def test_no_signature_at_all(tf: Any, tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path / "m"))
    assert "has no signature that can be served" in refusal(tmp_path / "m")


@pytest.mark.parametrize("loader", ["v2", "v1"])
def test_text(tf: Any, save: Save, loader: str) -> None:
    spec = tf.TensorSpec([None], tf.string, name="words")
    folder = save(
        (
            lambda words: {
                "joined": tf.strings.reduce_join(words),
                "each": words + b"!",
            },
            spec,
        )
    )
    session = opened(folder, loader=loader)
    assert [spec.datatype for spec in (*session.inputs, *session.outputs)] == [
        "BYTES"
    ] * 3
    results = session.run({"words": texts(b"a\0", b"\xff\0")})
    assert results["joined"].shape == ()
    assert results["joined"].item() == b"a\0\xff\0"
    assert results["each"].tolist() == [b"a\0!", b"\xff\0!"]
    assert session.run({"words": texts()})["each"].shape == (0,)


def test_long_numbers_in_names_are_ordered() -> None:
    digits = "9" * 5000  # more digits than Python converts
    names = [f"a{digits}", "a02", "a10", "a2", "²", "a", "٣"]
    order, reverse = (
        list(savedmodel._sorted(dict.fromkeys(some))) for some in (names, names[::-1])
    )
    assert order == reverse
    assert order[:5] == ["a", "a02", "a2", "a10", f"a{digits}"]


def test_variables_are_reset_for_each_request(tf: Any, tmp_path: Path) -> None:
    module = tf.Module()
    module.total = tf.Variable([1.0, 2.0])
    module.table = tf.Variable(tf.zeros((3, 2)))

    @tf.function(input_signature=[tf.TensorSpec([2], tf.float32, name="x")])
    def count(x: Any) -> Any:
        for _ in tf.range(2):  # a loop's graph is a separate one
            module.total.assign_add(x)
        module.table.scatter_nd_add([[1]], [x])
        return {"sum": module.total + tf.reduce_sum(module.table, 0)}

    tf.saved_model.save(module, str(tmp_path / "count"), signatures=count)
    session = opened(tmp_path / "count")
    assert isinstance(session, ResettableSession)
    for rounds in (2, 3, 1):
        session.reset()
        for _ in range(rounds):
            result = session.run({"x": np.array([1, 10], np.float32)})["sum"]
        assert result.tolist() == [1 + 3 * rounds, 2 + 30 * rounds]
    session.close()
    session.reset()


def test_models_without_writes_or_with_several_signatures_are_not_reset(
    tf: Any, counter: Path, tmp_path: Path
) -> None:
    assert not isinstance(opened(counter), ResettableSession)
    module = tf.Module()
    spec = tf.TensorSpec([], tf.float32, name="x")
    module.total = tf.Variable(0.0)
    module.get = tf.function(lambda x: {"y": x + module.total}, input_signature=[spec])
    module.add = tf.function(
        lambda x: {"y": module.total.assign_add(x)}, input_signature=[spec]
    )
    tf.saved_model.save(
        module,
        str(tmp_path / "two"),
        signatures={"serving_default": module.get, "add": module.add},
    )
    assert not isinstance(opened(tmp_path / "two"), ResettableSession)


@pytest.mark.parametrize("loader", ["v2", "v1"])
def test_names_have_a_stable_order(tf: Any, save: Save, loader: str) -> None:
    """The file has no order, and TensorFlow's differs between processes."""
    names = ["a", "x", "y_2", "y_10"]
    specs = []
    for name in reversed(names):
        specs.append(tf.TensorSpec([2], tf.float32, name=name))

    def call(*tensors: Any) -> dict[str, Any]:
        return {
            f"out_{number}": tensor
            for number, tensor in enumerate((*tensors, *tensors, *tensors))
        }

    session = opened(save((call, *specs)), loader=loader)
    assert [spec.name for spec in session.inputs] == names
    assert [spec.name for spec in session.outputs] == [
        f"out_{number}" for number in range(12)
    ]


@pytest.mark.parametrize("loader", ["v2", "v1"])
def test_bfloat16_is_passed_as_bits(tf: Any, save: Save, loader: str) -> None:
    folder = save((lambda x: {"y": x + x}, tf.TensorSpec([2], tf.bfloat16, name="x")))
    session = opened(folder, loader=loader)
    assert [spec.datatype for spec in (*session.inputs, *session.outputs)] == [
        "BF16",
        "BF16",
    ]
    one = 0x3F80
    two = 0x4000
    result = session.run({"x": np.array([one, 0], np.uint16)})["y"]
    assert result.dtype == np.uint16
    assert result.tolist() == [two, 0]


def test_unknown_rank_takes_any_shape(tf: Any, save: Save) -> None:
    session = opened(
        save((lambda x: {"y": x * 2}, tf.TensorSpec(None, tf.float32, name="x")))
    )
    assert session.inputs[0].open
    assert session.outputs[0].open
    assert session.run({"x": np.ones((1, 2, 1), np.float32)})["y"].tolist() == [
        [[2], [2]]
    ]
    with pytest.raises(ValueError, match=r"."):
        session.run({"x": texts(b"a")})


def test_complex_numbers_are_refused_with_an_explanation(tf: Any, save: Save) -> None:
    folder = save((lambda x: {"y": x}, tf.TensorSpec([1], tf.complex64, name="x")))
    assert (
        "serving_default of the SavedModel model cannot be served: tensor 'x' has type complex64"
        in refusal(folder)
    )


def test_options_are_checked(counter: Path) -> None:
    assert "'v2' or 'v1', not 'v3'" in refusal(counter, loader="v3")
    assert "true or false, not 1" in refusal(counter, trust=1)


# --- Files and code


def _vocabulary(tf: Any, tmp_path: Path) -> Path:
    """Save a model whose table is filled from an asset."""
    words = tmp_path / "words.txt"
    words.write_text("zero\none\ntwo\n")
    module = tf.Module()
    index = tf.lookup.TextFileIndex
    module.table = tf.lookup.StaticVocabularyTable(
        tf.lookup.TextFileInitializer(
            str(words), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
        ),
        1,
    )
    spec = tf.TensorSpec([None], tf.string, name="words")
    module.call = tf.function(
        lambda words: {"ids": module.table.lookup(words)}, input_signature=[spec]
    )
    tf.saved_model.save(module, str(tmp_path / "vocabulary"), signatures=module.call)
    words.unlink()
    return tmp_path / "vocabulary"


@pytest.mark.parametrize("loader", ["v2", "v1"])
def test_tables_may_be_filled_from_the_models_own_assets(
    tf: Any, tmp_path: Path, loader: str
) -> None:
    session = opened(_vocabulary(tf, tmp_path), loader=loader)
    assert session.run({"words": texts(b"two", b"zero", b"other")})["ids"].tolist() == [
        2,
        0,
        3,
    ]


def test_a_missing_asset_is_named(tf: Any, tmp_path: Path) -> None:
    folder = _vocabulary(tf, tmp_path)
    (folder / "assets" / "words.txt").unlink()
    assert "assets/words.txt is missing" in refusal(folder)


@pytest.mark.parametrize("name", ["../words.txt", "/etc/passwd", "a/../../words.txt"])
def test_assets_outside_the_folder_are_refused(
    tf: Any, tmp_path: Path, name: str
) -> None:
    folder = _vocabulary(tf, tmp_path)
    _edit(folder, lambda graph: setattr(graph.asset_file_def[0], "filename", name))
    assert "lies outside the model's folder" in refusal(folder)


def test_a_table_filled_from_another_file_is_refused(tf: Any, tmp_path: Path) -> None:
    """The initialiser captures the path as a constant in place of the asset."""
    folder = _vocabulary(tf, tmp_path)

    def capture_a_constant(graph: Any) -> None:
        objects = graph.object_graph_def
        number = next(
            index for index, node in enumerate(objects.nodes) if node.HasField("asset")
        )
        objects.nodes[number].Clear()
        objects.nodes[number].constant.operation = "Const"

    _edit(folder, capture_a_constant)
    assert (
        "InitializeTableFromTextFileV2, which reads a file that is not one of its assets"
        in refusal(folder)
    )


def test_an_initialiser_that_is_also_called_with_a_path_is_refused(
    tf: Any, tmp_path: Path
) -> None:
    folder = _vocabulary(tf, tmp_path)

    def call_it(graph: Any) -> None:
        functions = {
            function.signature.name: function
            for function in graph.graph_def.library.function
        }
        target = next(name for name in functions if "initializer" in name)
        caller = next(
            function
            for name, function in functions.items()
            if "signature_wrapper" in name
        )
        node = caller.node_def.add(
            name="hidden", op="StatefulPartitionedCall", input=["words", "words"]
        )
        node.attr["f"].func.name = target

    _edit(folder, call_it)
    assert "reads a file that is not one of its assets" in refusal(folder)


def test_long_or_branching_paths_are_refused_in_time(tf: Any, tmp_path: Path) -> None:
    """Examples are ten thousand steps, and functions that branch into 2 ** 60 paths."""
    folder = _vocabulary(tf, tmp_path)
    whole = (folder / "saved_model.pb").read_bytes()

    def initialiser(graph: Any) -> Any:
        library = graph.graph_def.library.function
        return next(
            f
            for f in library
            if any("InitializeTable" in node.op for node in f.node_def)
        )

    def lengthen(graph: Any) -> None:
        function = initialiser(graph)
        table = next(node for node in function.node_def if "InitializeTable" in node.op)
        for number in range(10_000):
            function.node_def.add(
                name=f"n{number}", op="Identity", input=[f"n{number + 1}:output:0"]
            )
        table.input[1] = "n0:output:0"

    def widen(graph: Any) -> None:
        called = initialiser(graph).signature.name
        for number in range(60):
            caller = graph.graph_def.library.function.add()
            caller.signature.name = f"f{number}"
            caller.signature.input_arg.add(name="path")
            for side in ("left", "right"):
                node = caller.node_def.add(
                    name=side, op="PartitionedCall", input=["path", "path"]
                )
                node.attr["f"].func.name = called
            called = caller.signature.name

    for change in (lengthen, widen):
        (folder / "saved_model.pb").write_bytes(whole)
        _edit(folder, change)
        assert "not loaded" in refusal(folder)


def test_a_link_out_of_the_folder_is_refused(tf: Any, tmp_path: Path) -> None:
    folder = _vocabulary(tf, tmp_path)
    (folder / "assets" / "words.txt").unlink()
    (tmp_path / "secret").write_text("a\nb\nc\n")
    (folder / "assets" / "words.txt").symlink_to(tmp_path / "secret")
    assert "assets/words.txt is a link that leaves the model's folder" in refusal(
        folder
    )


def _edit(folder: Path, change: Callable[[Any], None]) -> None:
    from tensorflow.core.protobuf import saved_model_pb2

    path = folder / "saved_model.pb"
    document = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    change(document.meta_graphs[0])
    path.write_bytes(document.SerializeToString())


@pytest.mark.parametrize("loader", ["v2", "v1"])
def test_reading_files_is_refused_unless_trusted(
    tf: Any, save: Save, tmp_path: Path, loader: str
) -> None:
    folder = save(
        (
            lambda path: {"content": tf.io.read_file(path)},
            tf.TensorSpec([], tf.string, name="path"),
        )
    )
    text = refusal(folder, loader=loader)
    assert (
        "the operator ReadFile, which is not one of those that are known to compute only"
        in text
    )
    assert "`pocketserve trust /" in text
    (tmp_path / "note").write_bytes(b"hello")
    path = np.array(bytes(tmp_path / "note"), dtype=object)
    assert "pocketserve trust" in refusal(folder, loader=loader, trust=True), (
        "a manifest is no consent"
    )
    allowed = frozenset({hash_files(files_below(folder), folder)})
    session = RUNTIME.open(
        ModelSource(folder, options={"loader": loader}, trusted=allowed)
    )
    assert session.run({"path": path})["content"].item() == b"hello"
    (folder / "more").write_bytes(b"changed since")
    with pytest.raises(ModelLoadError, match="pocketserve trust"):
        RUNTIME.open(ModelSource(folder, options={"loader": loader}, trusted=allowed))


def test_other_operators_that_reach_out_are_refused(
    tf: Any, save: Save, tmp_path: Path
) -> None:
    raw = tf.raw_ops
    text = tf.TensorSpec([], tf.string, name="x")
    ways = {
        "WriteFile": lambda x: raw.WriteFile(filename=x, contents=x),
        "MatchingFiles": lambda x: raw.MatchingFiles(pattern=x),
        "SaveV2": lambda x: raw.SaveV2(
            prefix=x, tensor_names=["x"], shape_and_slices=[""], tensors=[x]
        ),
        "RestoreV2": lambda x: raw.RestoreV2(
            prefix=x, tensor_names=["x"], shape_and_slices=[""], dtypes=[tf.string]
        ),
        "PrintV2": lambda x: raw.PrintV2(
            input=x, output_stream=f"file://{tmp_path}/printed"
        ),
        "EagerPyFunc": lambda x: raw.EagerPyFunc(
            input=[x], token="t", Tout=[tf.string]
        ),
        "PyFunc": lambda x: raw.PyFunc(input=[x], token="t", Tout=[tf.string]),
        "TextLineDataset": lambda x: raw.TextLineDataset(
            filenames=[x], compression_type="", buffer_size=0
        ),
    }

    def taking(way: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
        def call(x: Any) -> dict[str, Any]:
            way(x)
            return {"y": x}

        return call

    for op, way in ways.items():
        folder = save((taking(way), text))
        assert f"the operator {op}," in refusal(folder), op
        shutil.rmtree(folder)


def test_code_that_only_an_inner_function_reaches_is_found(tf: Any, save: Save) -> None:
    inner = tf.function(lambda x: tf.io.read_file(x))

    def call(x: Any) -> dict[str, Any]:
        return {"y": tf.cond(tf.strings.length(x) > 3, lambda: inner(x), lambda: x)}

    assert "ReadFile" in refusal(save((call, tf.TensorSpec([], tf.string, name="x"))))


def test_a_function_in_an_attribute_of_an_attribute_is_found(
    counter: Path, copy: Path
) -> None:
    def hide(graph: Any) -> None:
        library = graph.graph_def.library
        added = library.function.add()
        added.signature.name = "hidden"
        added.node_def.add(name="read", op="ReadFile")
        node = next(
            f for f in library.function if "signature_wrapper" in f.signature.name
        ).node_def.add(name="n")
        node.op = "PartitionedCall"
        node.attr["f"].func.attr["inner"].list.func.add(name="hidden")

    _edit(copy, hide)
    with pytest.raises(ForbiddenError, match="ReadFile"):
        check_meta_graphs(read_meta_graphs(copy))
    check_meta_graphs(read_meta_graphs(counter))


def test_unreachable_operators_are_ignored(copy: Path) -> None:
    """Every file contains functions that save it again."""

    def add(graph: Any) -> None:
        graph.graph_def.node.add(name="unused", op="ReadFile")

    _edit(copy, add)
    assert opened(copy).run({"x": np.ones((1, 2), np.float32)})


# --- Damaged folders


def test_damaged_graphs_are_refused(copy: Path) -> None:
    path = copy / "saved_model.pb"
    whole = path.read_bytes()
    for content in (
        b"",
        b"garbage" * 50,
        whole[: len(whole) // 2],
        whole[:-1],
    ):
        path.write_bytes(content)
        assert "damaged or not whole" in refusal(copy)
    path.unlink()
    assert "saved_model.pb cannot be read: No such file" in refusal(copy)


def test_truncation_anywhere_is_no_crash(copy: Path) -> None:
    path = copy / "saved_model.pb"
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises((DamagedFileError, ForbiddenError)):
            check_meta_graphs(read_meta_graphs(copy))


def test_flipped_bytes_are_no_crash(copy: Path) -> None:
    path = copy / "saved_model.pb"
    whole = path.read_bytes()
    for at in range(0, len(whole), 53):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            check_meta_graphs(read_meta_graphs(copy))
        except (DamagedFileError, ForbiddenError):
            continue


@pytest.mark.parametrize("name", ["variables.data-00000-of-00001", "variables.index"])
def test_missing_variables_are_named(copy: Path, name: str) -> None:
    (copy / "variables" / name).unlink()
    assert f"variables/{name} is missing" in refusal(copy)


def test_truncated_variables_are_explained(copy: Path) -> None:
    shard = copy / "variables" / "variables.data-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:4])
    assert (
        "TensorFlow cannot load the SavedModel scale: Read less bytes than requested"
        in refusal(copy)
    )


# --- Public models


@pytest.mark.assets
@pytest.mark.parametrize(
    ("name", "tolerance", "tensors"),
    [
        ("fer_savedmodel__astronaut", 1e-4, "fer_savedmodel__astronaut.input_1"),
        (
            "basic_pitch_savedmodel",
            1e-3,
            "basic_pitch_tflite.serving_default_input_2_0",
        ),
    ],
)
def test_public_models(assets: Path, name: str, tolerance: float, tensors: str) -> None:
    case = json.loads((assets / "expected" / f"{name}.json").read_text())
    session = opened(assets / case["model"])
    assert ("(v1 loader)" in session.runtime) == (name == "basic_pitch_savedmodel")
    results = session.run(
        {
            case["inputs"][0]["name"]: np.load(
                assets / "inputs" / "tensors" / f"{tensors}.npy"
            )
        }
    )
    assert set(results) == {expected["name"] for expected in case["outputs"]}
    for expected in case["outputs"]:
        np.testing.assert_allclose(
            results[expected["name"]], np.load(assets / expected["npy"]), atol=tolerance
        )


@pytest.mark.assets
def test_a_single_loader_explains_its_failure(assets: Path) -> None:
    assert "add_slot" in refusal(
        assets / "models" / "savedmodel" / "basic_pitch_nmp", loader="v2"
    )
