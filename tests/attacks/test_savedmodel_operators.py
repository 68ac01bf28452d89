"""Refuse SavedModels that reach outside themselves, as an attacker would make them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketserve.formats import DamagedFileError
from pocketserve.formats.protobuf import ProtobufReader
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.tensorflow.savedmodel import RUNTIME
from pocketserve.runtimes.tensorflow.savedmodel_check import (
    ALLOWED,
    FROM_FILE,
    OPERATORS,
    RESTORES,
    ForbiddenError,
    check_files,
    check_meta_graphs,
)
from pocketserve.runtimes.tensorflow.savedmodel_graph import read_meta_graphs

pytestmark = pytest.mark.tensorflow

PATH_LIKE = re.compile(
    r"file|path|dir|addr|url|host|token|descriptor|dataset|iterator|prefix|server|command|region"
)
CALLS = {
    "For",
    "MapDefun",
    "PartitionedCall",
    "StatelessCase",
    "StatelessIf",
    "StatelessWhile",
}
CALLS |= {"Case", "If", "StatefulPartitionedCall", "While"}


@pytest.fixture(scope="module")
def tf() -> Any:
    from pocketserve.runtimes.tensorflow.common import import_tensorflow

    return import_tensorflow(1)


@pytest.fixture(scope="module")
def registry(tf: Any) -> dict[str, Any]:
    """Return all operators of the installed TensorFlow."""
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.client import pywrap_tf_session

    ops = op_def_pb2.OpList.FromString(
        pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    )
    return {op.name: op for op in ops.op}


def test_allowed_operators_only_compute(registry: dict[str, Any]) -> None:
    """Check each property that the list promises against TensorFlow's own registry."""
    assert len(registry) > 1_000
    assert registry.keys() >= ALLOWED
    stateful = ALLOWED - OPERATORS["stateless"]
    assert not [name for name in OPERATORS["stateless"] if registry[name].is_stateful]
    # Older operators are marked as stateless.
    handles = {
        "InitializeTable",
        "LookupTable",
        "Anonymous",
        "Hash",
        "Mutable",
    }
    tables = {
        name
        for name in OPERATORS["tables"]
        if any(name.startswith(start) for start in handles)
    }
    assert {name for name in stateful if not registry[name].is_stateful} <= tables
    pathlike = set()
    for name in ALLOWED:
        op = registry[name]
        arguments = {
            argument.name for argument in (*op.input_arg, *op.output_arg, *op.attr)
        }
        if any(PATH_LIKE.search(argument) for argument in arguments):
            pathlike.add(name)
        assert any("func" in attr.type for attr in op.attr) == (name in CALLS), name
    # The first builds a text, the second finds paths through a lattice.
    assert pathlike - {"ShardedFilename", "CTCBeamSearchDecoder"} == set(FROM_FILE)


def test_operators_that_reach_out_are_not_allowed(
    registry: dict[str, Any],
) -> None:
    """Unknown operators are refused anyway; this names today's dangerous ones."""
    kinds = re.compile(
        r"Dataset|Iterator|Reader|Summary\w*Writer|^Write\w*Summary|AggregatorSummary|Summaries|Queue|TPU|^Xla|Rpc|PyFunc|Debug|Dump|Collective|Nccl|^_(?!EagerConst)"
        r"|Save|Restore|Checkpoint|ReadFile|WriteFile|MatchingFiles|Send$|Recv$|Print|Abort|Sleep|Remote|^Batch(Function|$)"
    )
    reaching = {name for name in registry if kinds.search(name)}
    assert len(reaching) > 400
    assert not reaching & ALLOWED
    assert registry.keys() >= RESTORES
    assert not RESTORES & ALLOWED


def test_summaries_are_allowed_but_not_their_writers() -> None:
    """Graphs of old estimators contain summaries, which only build texts of their
    inputs.
    """
    kinds = ("Audio", "Histogram", "Image", "Merge", "Scalar", "Tensor")
    assert {f"{kind}Summary" for kind in kinds} | {
        "AudioSummaryV2",
        "TensorSummaryV2",
    } <= OPERATORS["stateless"]
    assert not {
        name
        for name in ALLOWED
        if "Summary" in name and ("Write" in name or "Stats" in name)
    }


def raw(name: str, **arguments: Any) -> Any:
    """Call an operator by name with its defaults, since some have no Python function."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_library

    function = getattr(tf.raw_ops, name, None)
    if function is None:
        return op_def_library.apply_op(name, **arguments)
    return function(**arguments)


def saved(tf: Any, folder: Path, way: Callable[[Any], Any]) -> Path:
    """Save a model that returns its text and has a side effect."""

    def call(x: Any) -> dict[str, Any]:
        way(x)
        return {"y": tf.identity(x)}

    module = tf.Module()
    module.call = tf.function(
        call, input_signature=[tf.TensorSpec([], tf.string, name="x")], autograph=False
    )
    tf.saved_model.save(module, str(folder), signatures=module.call)
    return folder


def to_records(tf: Any, name: str, target: str) -> Callable[[Any], Any]:
    def way(x: Any) -> Any:
        source = tf.data.Dataset.from_tensors("#!/bin/sh")._variant_tensor
        return raw(name, input_dataset=source, filename=target, compression_type="")

    return way


def ways_out_without_input(tf: Any, target: str) -> dict[str, Callable[[Any], Any]]:
    """Return models whose operator ignores the input."""
    return {
        "RecordInput": lambda x: raw("RecordInput", file_pattern=target),
        "FixedUnigramCandidateSampler": lambda x: raw(
            "FixedUnigramCandidateSampler",
            true_classes=tf.zeros([1, 1], tf.int64),
            num_true=1,
            num_sampled=1,
            unique=True,
            range_max=1,
            vocab_file=target,
        ),
        "EncodeProto": lambda x: raw(
            "EncodeProto",
            sizes=tf.zeros([1, 1], tf.int32),
            values=[tf.zeros([1, 1])],
            field_names=["a"],
            message_type="a",
            descriptor_source=target,
        ),
        "DTensorRestoreV2": lambda x: raw(
            "DTensorRestoreV2",
            prefix=target,
            tensor_names=["a"],
            shape_and_slices=[""],
            input_shapes=[[1]],
            input_layouts=[""],
            dtypes=[tf.float32],
        ),
        "Abort": lambda x: raw("Abort", error_msg="gone"),
        "ImmutableConst": lambda x: raw(
            "ImmutableConst", memory_region_name=target, dtype=tf.float32, shape=[1]
        ),
        "SleepOp": lambda x: raw("SleepOp", sleep_seconds=10_000),
    }


def ways_out_with_input(tf: Any, target: str) -> dict[str, Callable[[Any], Any]]:
    """Return models whose operator takes the input."""
    file = f"file://{target}"
    return {
        "DumpTensor": lambda x: raw(
            "DumpTensor",
            tensor_data=x,
            log_dir_path=target,
            file_name="f",
            enabled=True,
            func_name="",
            node_name="",
        ),
        "CalibrationStatisticsSaver": lambda x: raw(
            "CalibrationStatisticsSaver",
            args=[x],
            ids=[""],
            calibration_methods=[1],
            output_file_path=target,
        ),
        "DecodeProtoV2": lambda x: raw(
            "DecodeProtoV2",
            bytes=x,
            message_type="a",
            field_names=[],
            output_types=[],
            descriptor_source=target,
        ),
        "DebugIdentityV3": lambda x: raw("DebugIdentityV3", input=x, debug_urls=[file]),
        "Copy": lambda x: raw(
            "Copy", input=x, debug_ops_spec=[f"DebugIdentity;{file};0"]
        ),
        "PrintV2": lambda x: raw("PrintV2", input=x, output_stream=file),
        "XlaCustomCallV2": lambda x: raw(
            "XlaCustomCallV2",
            operands=[x],
            call_target_name="system",
            backend_config="",
            has_side_effect=True,
            result_dtypes=[tf.string],
            result_shapes=[[]],
        ),
    }


def ways_out(tf: Any, target: str) -> dict[str, Callable[[Any], Any]]:
    """Return, by operator, models that access ``target``, exit or run a program."""
    ways = ways_out_with_input(tf, target) | ways_out_without_input(tf, target)
    for name in ("DatasetToTFRecord", "ExperimentalDatasetToTFRecord"):
        ways[name] = to_records(tf, name, target)
    return ways


WAYS = tuple(sorted(ways_out(type("", (), {"float32": 1}), "")))


@pytest.mark.parametrize("op", WAYS)
def test_a_model_that_reaches_out_is_refused(tf: Any, tmp_path: Path, op: str) -> None:
    assert op not in ALLOWED
    target = tmp_path / "target"
    folder = saved(tf, tmp_path / "model", ways_out(tf, str(target))[op])
    before = sorted(tmp_path.iterdir())
    for loader in ("v1", "v2"):
        # The operator that makes a data set's records is found before the one that
        # writes them.
        named = rf"({op}|TensorDataset)"
        with pytest.raises(
            ModelLoadError, match=f"the operator {named}, which is not one of those"
        ):
            RUNTIME.open(ModelSource(folder, options={"loader": loader}))
    assert sorted(tmp_path.iterdir()) == before


def test_tensorflow_itself_would_run_these_models(tf: Any, tmp_path: Path) -> None:
    """Otherwise the tests above would prove nothing."""
    target = tmp_path / "target"
    folder = saved(
        tf, tmp_path / "model", to_records(tf, "DatasetToTFRecord", str(target))
    )
    loaded = tf.saved_model.load(str(folder))
    loaded.signatures["serving_default"](x=tf.constant("x"))
    assert b"#!/bin/sh" in target.read_bytes()


# --- Protobufs that a checker and TensorFlow would read differently


@pytest.fixture(scope="module")
def table(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with a variable and a table from an asset; don't change it."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "words.txt").write_text("zero\none\n")
    module = tf.Module()
    index = tf.lookup.TextFileIndex
    words = tf.lookup.TextFileInitializer(
        str(folder / "words.txt"),
        tf.string,
        index.WHOLE_LINE,
        tf.int64,
        index.LINE_NUMBER,
    )
    module.table = tf.lookup.StaticHashTable(words, -1)
    module.scale = tf.Variable(2, dtype=tf.int64)
    spec = tf.TensorSpec([None], tf.string, name="x")
    module.call = tf.function(
        lambda x: {"y": module.table.lookup(x) * module.scale}, input_signature=[spec]
    )
    tf.saved_model.save(module, str(folder / "model"), signatures=module.call)
    return folder / "model"


def edited(table: Path, tmp_path: Path, change: Callable[[Any], bytes | None]) -> Path:
    """Return a copy with a changed graph; bytes are appended to the graph's own
    message.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    folder = Path(shutil.copytree(table, tmp_path / "copy"))
    document = saved_model_pb2.SavedModel.FromString(
        (folder / "saved_model.pb").read_bytes()
    )
    more = change(document.meta_graphs[0])
    content = document.SerializeToString()
    if more:
        graph = (
            saved_model_pb2.SavedModel(meta_graphs=document.meta_graphs)
            .meta_graphs[0]
            .SerializeToString()
            + more
        )
        content = b"\x08\x01\x12" + varint(len(graph)) + graph
    (folder / "saved_model.pb").write_bytes(content)
    return folder


def varint(number: int) -> bytes:
    if number > 0x7F:
        return bytes([number & 0x7F | 0x80]) + varint(number >> 7)
    return bytes([number])


def refused(folder: Path, words: str) -> None:
    with pytest.raises(ForbiddenError, match=words):
        check_meta_graphs(read_meta_graphs(folder))


def hidden(graph: Any) -> str:
    """Add a file-writing function that no node calls."""
    function = graph.graph_def.library.function.add()
    function.signature.name = "hidden"
    function.node_def.add(name="write", op="WriteFile")
    return "hidden"


def test_the_unchanged_model_passes(table: Path) -> None:
    check_meta_graphs(read_meta_graphs(table))


@pytest.mark.parametrize(
    "op", ["Skipgram", "BatchFunction", "XlaCallModule", "RemoteCall", "NoSuchOperator"]
)
def test_operators_outside_python_savedmodels_are_refused(
    table: Path, tmp_path: Path, op: str
) -> None:
    """They include some that only old graphs may have."""

    def change(graph: Any) -> None:
        graph.graph_def.node.add(name="out", op=op)
        graph.signature_def["serving_default"].outputs["z"].name = "out:0"

    refused(edited(table, tmp_path, change), f"the operator {op},")


def test_a_function_that_only_an_object_names_is_found(
    table: Path, tmp_path: Path
) -> None:
    """The second loader takes functions by name, and runs ``_initialize`` at once."""

    def change(graph: Any) -> None:
        name = hidden(graph)
        library = graph.graph_def.library.function
        saving = next(
            function
            for function in library
            if any(node.op == "SaveV2" for node in function.node_def)
        )
        saving.node_def.add(name="more", op="PartitionedCall").attr[
            "f"
        ].func.name = name
        next(
            n for n in graph.object_graph_def.nodes if n.HasField("function")
        ).function.concrete_functions.append(name)

    refused(edited(table, tmp_path, change), "WriteFile")


def test_an_unreferenced_function_is_found(table: Path, tmp_path: Path) -> None:
    refused(edited(table, tmp_path, lambda graph: hidden(graph) and None), "WriteFile")


def test_a_signature_may_not_read_a_constant_that_the_loader_feeds(
    table: Path, tmp_path: Path
) -> None:
    """A request feeds no assets, so that the constant's own text would count."""

    def change(graph: Any) -> None:
        node = graph.graph_def.node.add(name="read", op="InitializeTableFromTextFileV2")
        node.input.extend(["table", graph.asset_file_def[0].tensor_info.name])
        graph.signature_def["serving_default"].outputs["z"].name = "read:0"

    refused(edited(table, tmp_path, change), "not one of its assets")


def test_an_asset_with_an_impossible_file_name_is_missing(
    table: Path, tmp_path: Path
) -> None:
    def change(graph: Any) -> None:
        graph.asset_file_def[0].filename = "n" * 300

    folder = edited(table, tmp_path, change)
    with pytest.raises(DamagedFileError, match=f"assets/{'n' * 80} is missing"):
        check_files(folder, read_meta_graphs(folder))


def test_an_object_that_is_both_asset_and_constant_is_not_an_asset(
    table: Path, tmp_path: Path
) -> None:
    def change(graph: Any) -> None:
        asset = next(
            node for node in graph.object_graph_def.nodes if node.HasField("asset")
        )
        # 9 constant, which replaces the asset.
        asset.MergeFromString(b"\x4a\x03\x0a\x01x")

    def keep_both(graph: Any) -> None:
        """Prepend the asset as bytes, since a parsed protobuf has the last kind only."""
        nodes = graph.object_graph_def.nodes
        number = next(i for i, node in enumerate(nodes) if node.HasField("asset"))
        text = nodes[number].SerializeToString()
        marks.append((text, text + b"\x4a\x03\x0a\x01x"))

    marks: list[tuple[bytes, bytes]] = []
    refused(edited(table, tmp_path, change), "not one of its assets")
    folder = edited(table, tmp_path / "bytes", keep_both)
    whole = (folder / "saved_model.pb").read_bytes()
    (old, new), pad = marks[0], b"\x4a\x03\x0a\x01x"
    assert whole.count(varint(len(old)) + old) >= 1
    assert new.endswith(pad)
    from tensorflow.core.protobuf import saved_object_graph_pb2

    assert (
        saved_object_graph_pb2.SavedObject.FromString(new).WhichOneof("kind")
        == "constant"
    )
    from pocketserve.runtimes.tensorflow import savedmodel_graph as graphs

    objects = b"\x0a" + varint(len(new)) + new
    document = b"\x3a" + varint(len(objects)) + objects
    reader = ProtobufReader(document, 1000)
    kinds, _ = graphs._objects(reader, (0, len(document)))
    assert kinds == [False]


def test_variables_must_come_from_the_models_own_checkpoint(
    table: Path, tmp_path: Path
) -> None:
    """A checkpoint path may name another model's, or one that TensorFlow downloads."""

    def change(graph: Any) -> None:
        for function in graph.graph_def.library.function:
            for node in function.node_def:
                if node.op == "RestoreV2":
                    node.input[0] = "elsewhere:output:0"
                    function.node_def.add(name="elsewhere", op="Const")
                    return
        raise AssertionError("the model restores nothing")

    refused(
        edited(table, tmp_path, change),
        "RestoreV2, which reads a file that is not that of its own variables",
    )


def test_a_variable_path_that_is_also_written_is_refused(
    table: Path, tmp_path: Path
) -> None:
    def change(graph: Any) -> None:
        asset = graph.asset_file_def[0].tensor_info.name
        nodes = graph.graph_def.node
        written = next(
            node
            for node in nodes
            if node.op == "AssignVariableOp"
            and asset in (node.input[1], f"{node.input[1]}:0")
        )
        node = nodes.add(name="alias", op="VarHandleOp")
        node.attr["shared_name"].s = written.input[0].encode()

    refused(edited(table, tmp_path, change), "not one of its assets")


def test_ambiguous_field_numbers_are_refused(table: Path, tmp_path: Path) -> None:

    # 2 + 2 ** 29, a length, nothing.
    folder = edited(table, tmp_path, lambda graph: b"\x92\x80\x80\x80\x10\x00")
    with pytest.raises(DamagedFileError, match="impossible number"):
        read_meta_graphs(folder)
