"""Make the models in this folder. Run with TensorFlow 2.21: ``python
make_fixtures.py``.

The converter makes the graphs; names, operators and metadata that no converter writes
are then edited with TensorFlow's object form of the FlatBuffer.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

FOLDER = Path(__file__).parent
WEIGHTS = np.array(
    [
        [1.0, -1.0],
        [2.0, 0.5],
        [-0.5, 0.25],
    ],
    np.float32,
)


class Graphs(tf.Module):
    """The functions that become models."""

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def dense(self, x):
        return {"y": tf.matmul(x, tf.constant(WEIGHTS))}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def strings(self, text):
        return {"first": tf.gather(text, [0]), "column": tf.reshape(text, [-1, 1])}

    @tf.function(input_signature=[tf.TensorSpec([], tf.string, name="text")])
    def one_string(self, text):
        twice = tf.fill([2], text)
        return {"one": tf.gather(twice, 0), "twice": twice}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def double(self, x):
        return {"twice": x * 2}

    @tf.function(
        input_signature=[tf.TensorSpec([2], tf.float32, name=name) for name in "ab"]
    )
    def subtract(self, a, b):
        return {"difference": a - b}

    @tf.function(
        input_signature=[
            tf.TensorSpec([4], tf.float32, name="x"),
            tf.TensorSpec([], tf.bool, name="flag"),
        ]
    )
    def many(self, x, flag):
        return {
            "where": tf.where(x > 0.5),
            "total": tf.reduce_sum(x),
            "unset": tf.logical_not(flag),
            "half": tf.cast(x, tf.float16),
            "whole": tf.cast(x, tf.int64),
        }

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.float32, name=name) for name in "ab"]
    )
    def add(self, a, b):
        return {"sum": a + b}

    @tf.function(
        input_signature=[tf.TensorSpec([None, None, None, 1], tf.float32, name="image")]
    )
    def pool(self, image):
        pooled = tf.nn.avg_pool2d(image, 2, 2, "VALID")
        return {"quarters": tf.reshape(pooled, [-1, 4])}

    @tf.function(input_signature=[tf.TensorSpec([2, 2], tf.float32, name="x")])
    def determinant(self, x):
        return {"y": tf.linalg.det(x)}

    @tf.function(input_signature=[tf.TensorSpec([2], tf.float32, name="x")])
    def complex(self, x):
        return {"y": tf.cast(x, tf.complex64)}

    @tf.function(input_signature=[tf.TensorSpec([4], tf.float32, name="x")])
    def where(self, x):
        return {"where": tf.where(x > 0.5)}


GRAPHS = Graphs()


def convert(name: str, **settings: Any) -> bytes:
    """Convert a function into a model with one signature."""
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [getattr(GRAPHS, name).get_concrete_function()], GRAPHS
    )
    for key, value in settings.items():
        holder = converter
        if key.startswith("supported"):
            holder = converter.target_spec
        setattr(holder, key, value)
    return converter.convert()


def two_signatures(folder: Path) -> bytes:
    """Return a model with two graphs."""
    tf.saved_model.save(
        GRAPHS,
        str(folder),
        signatures={"double": GRAPHS.double, "subtract": GRAPHS.subtract},
    )
    return tf.lite.TFLiteConverter.from_saved_model(str(folder)).convert()


def counter(folder: Path) -> bytes:
    """Return a model that adds its inputs to a variable."""
    module = tf.Module()
    module.total = tf.Variable(tf.zeros(2))

    @tf.function(input_signature=[tf.TensorSpec([2], tf.float32, name="x")])
    def count(x):
        module.total.assign_add(x)
        return {"total": tf.identity(module.total)}

    tf.saved_model.save(module, str(folder), signatures=count)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder))
    converter.experimental_enable_resource_variables = True
    return converter.convert()


def int8() -> bytes:
    """Return the dense model with int8 inputs and outputs."""
    samples = np.random.default_rng(7).uniform(-1, 1, (64, 1, 3)).astype(np.float32)
    return convert(
        "dense",
        optimizations=[tf.lite.Optimize.DEFAULT],
        representative_dataset=lambda: ([sample] for sample in samples),
        supported_ops=[tf.lite.OpsSet.TFLITE_BUILTINS_INT8],
        inference_input_type=tf.int8,
        inference_output_type=tf.int8,
    )


def edited(model: bytes, change: Callable[[Any], None]) -> bytes:
    """Return the model after ``change`` edited its object form."""
    tree = schema.ModelT.InitFromPackedBuf(model, 0)
    change(tree)
    builder = flatbuffers.Builder(1024)
    builder.Finish(tree.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def one_name(tree: Any) -> None:
    """Give all inputs and outputs the same name, and remove the signature."""
    graph = tree.subgraphs[0]
    for index in [*graph.inputs, *graph.outputs]:
        graph.tensors[index].name = b"tensor"
    tree.signatureDefs = []


def future_operator(tree: Any) -> None:
    for code in tree.operatorCodes:
        code.version = 99


def default_in_another_graph(tree: Any) -> None:
    """Make the second graph's signature the default one."""
    for signature in tree.signatureDefs:
        if signature.subgraphIndex:
            signature.signatureKey = b"serving_default"


def of_type(number: int) -> Callable[[Any], None]:
    """Return an edit that leaves a graph of inputs of this type, without operators."""

    def change(tree: Any) -> None:
        graph = tree.subgraphs[0]
        graph.operators, graph.outputs, tree.signatureDefs = [], graph.inputs, []
        for index in graph.inputs:
            graph.tensors[index].type = number

    return change


def undeclared_rank(tree: Any) -> None:
    for index in tree.subgraphs[0].outputs:
        tree.subgraphs[0].tensors[index].shape = []
        tree.subgraphs[0].tensors[index].shapeSignature = None


class Writer:
    """Writes tables whose fields are (number, kind, value)."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(512)

    def table(self, *fields: tuple[int, str, Any]) -> int:
        """Write a table.

        Kinds: text, texts, table, tables, reals, and integer types by their Builder
        name.
        """
        ready = [
            (number, kind, self.prepared(kind, value)) for number, kind, value in fields
        ]
        self.builder.StartObject(1 + max((number for number, _, _ in ready), default=0))
        for number, kind, value in ready:
            if kind[0].isupper():
                getattr(self.builder, f"Prepend{kind}Slot")(number, value, 0)
            else:
                self.builder.PrependUOffsetTRelativeSlot(number, value, 0)
        return self.builder.EndObject()

    def prepared(self, kind: str, value: Any) -> Any:
        if kind == "text":
            return self.builder.CreateString(value)
        if kind == "texts":
            return self.offsets([self.builder.CreateString(one) for one in value])
        if kind == "tables":
            return self.offsets(value)
        if kind == "reals":
            return self.builder.CreateNumpyVector(np.array(value, np.float32))
        if kind == "integers":
            return self.builder.CreateNumpyVector(np.array(value, np.uint32))
        return value

    def offsets(self, values: Sequence[int]) -> int:
        self.builder.StartVector(4, len(values), 4)
        for value in reversed(values):
            self.builder.PrependUOffsetTRelative(value)
        return self.builder.EndVector()


def described_files(w: Writer) -> dict[str, Any]:
    """Write the associated files by a short name."""
    return {
        "english": w.table(
            (0, "text", "labels_en.txt"), (2, "Int8", 2), (3, "text", "en")
        ),
        "german": w.table(
            (0, "text", "labels_de.txt"), (2, "Int8", 2), (3, "text", "de")
        ),
        "plain": w.table(
            (0, "text", "labels.txt"),
            (1, "text", "the labels"),
            (2, "Int8", 2),
            (4, "text", "v1"),
        ),
        "values": w.table((0, "text", "values.txt"), (2, "Int8", 3)),
        "vocabulary": w.table((0, "text", "vocab.txt"), (2, "Int8", 5)),
        "future": w.table((0, "text", "future.bin"), (2, "Int8", 77)),
    }


def process_units(w: Writer, files: dict[str, Any]) -> list[Any]:
    """Write each kind of process unit, and an unknown one."""
    vocabulary = files["vocabulary"]
    future = files["future"]

    normalization = w.table((0, "reals", [127.5, 127.0]), (1, "reals", [127.5]))
    normalized = w.table((0, "Uint8", 1), (1, "table", normalization))

    calibration = w.table((0, "Int8", 1), (1, "Float32", 0.25))
    calibrated = w.table((0, "Uint8", 2), (1, "table", calibration))

    threshold = w.table((0, "Float32", 0.5))
    above_threshold = w.table((0, "Uint8", 3), (1, "table", threshold))

    bert = w.table((0, "tables", [vocabulary]))
    by_bert = w.table((0, "Uint8", 4), (1, "table", bert))

    sentence_piece = w.table((0, "tables", [future]), (1, "tables", [vocabulary]))
    by_sentence_piece = w.table((0, "Uint8", 5), (1, "table", sentence_piece))

    expression = w.table((0, "text", r"\W+"), (1, "tables", [vocabulary]))
    by_expression = w.table((0, "Uint8", 6), (1, "table", expression))

    unknown = w.table((0, "Uint8", 99), (1, "table", w.table()))
    return [
        normalized,
        calibrated,
        above_threshold,
        by_bert,
        by_sentence_piece,
        by_expression,
        unknown,
    ]


def tensor_contents(w: Writer) -> list[Any]:
    """Write each kind of content, that of an image first, and an unknown one."""
    size = w.table((0, "Uint32", 32), (1, "Uint32", 24))
    picture = w.table((0, "Int8", 1), (1, "table", size))
    image = w.table((0, "Uint8", 2), (1, "table", picture))

    order = w.table((0, "integers", [1, 0, 3, 2]), (1, "Int8", 1), (2, "Int8", 1))
    value_range = w.table((0, "Int32", 2), (1, "Int32", 3))
    boxes = w.table((0, "Uint8", 3), (1, "table", order), (2, "table", value_range))

    rate = w.table((0, "Uint32", 16000), (1, "Uint32", 1))
    audio = w.table((0, "Uint8", 4), (1, "table", rate))

    features = w.table((0, "Uint8", 1), (1, "table", w.table()))
    unknown = w.table((0, "Uint8", 9), (1, "table", w.table()))
    return [image, boxes, audio, features, unknown]


def described_inputs(w: Writer, units: list[Any]) -> list[Any]:
    """Write an input with every field, and one per other kind of content."""
    contents = tensor_contents(w)
    statistics = w.table((0, "reals", [1.0]), (1, "reals", [-1.0]))
    inputs = [
        w.table(
            (0, "text", "image"),
            (1, "text", "a small picture"),
            (2, "texts", ["batch", "pixel"]),
            (3, "table", contents[0]),
            (4, "tables", units),
            (5, "table", statistics),
        )
    ]
    for number, content in enumerate(contents[1:]):
        name = (0, "text", f"other {number}")
        inputs.append(w.table(name, (3, "table", content)))
    return inputs


def description() -> bytes:
    """Return a ModelMetadata with each kind of content and process unit once."""
    w = Writer()
    files = described_files(w)
    units = process_units(w, files)
    inputs = described_inputs(w, units)

    labels = [
        files["german"],
        files["english"],
        files["plain"],
    ]
    others = [files["future"], files["values"]]
    scores = w.table((0, "text", "scores"), (6, "tables", labels))
    classes = w.table((0, "text", "classes"), (6, "tables", others))
    group = w.table((0, "text", "result"), (1, "texts", ["scores", "classes"]))

    graph = w.table(
        (2, "tables", inputs),
        (3, "tables", [scores, classes]),
        (8, "tables", [group]),
    )
    root = w.table(
        (0, "text", "fixture"),
        (1, "text", "Größe × 2"),
        (2, "text", "v3"),
        (3, "tables", [graph]),
        (4, "text", "someone"),
        (5, "text", "Apache-2.0"),
        (6, "tables", [files["vocabulary"]]),
        (7, "text", "1.5.0"),
    )
    w.builder.Finish(root, b"M001")
    return bytes(w.builder.Output())


def described(tree: Any) -> None:
    """Add the description the way buffers and entries of the model are stored."""
    buffer = schema.BufferT()
    entry = schema.MetadataT()
    buffer.data = np.frombuffer(description(), np.uint8)
    entry.name, entry.buffer = b"TFLITE_METADATA", len(tree.buffers)
    tree.buffers.append(buffer)
    tree.metadata = [*(tree.metadata or []), entry]


def with_files(model: bytes, files: dict[str, bytes]) -> bytes:
    """Append an archive to the model."""
    whole = io.BytesIO(model)
    whole.seek(0, io.SEEK_END)
    with zipfile.ZipFile(whole, "a") as archive:
        for name, content in files.items():
            # A fixed date makes the output reproducible.
            archive.writestr(
                zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)),
                content,
                zipfile.ZIP_DEFLATED,
            )
    return whole.getvalue()


LABELS = {
    "labels.txt": b"cat\n\nbird\n",
    "labels_en.txt": b"\xef\xbb\xbfthe cat\r\nthe dog\r\n",
    "labels_de.txt": "Kätzchen\nHündchen".encode(),
    "values.txt": b"zero\none\n",
    "vocab.txt": b"a\nb\n",
    "zeros.bin": bytes(100_000),
}


def main() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        two = two_signatures(Path(folder, "two"))
        counting = counter(Path(folder, "counter"))
    select = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    dense = convert("dense")
    models = {
        "dynamic_batch": dense,
        "int8_io": int8(),
        "strings": convert("strings"),
        "scalar_string": convert("one_string"),
        "two_signatures": two,
        "default_in_another_graph": edited(two, default_in_another_graph),
        "counter": counting,
        "several_outputs": convert("many"),
        "two_inputs": convert("add"),
        "free_image": convert("pool"),
        "select_tf_op": convert("determinant", supported_ops=select),
        "custom_op": convert("determinant", allow_custom_ops=True),
        "complex": convert("complex"),
        "same_names": edited(convert("subtract"), one_name),
        "future_op": edited(dense, future_operator),
        "undeclared_rank": edited(convert("where"), undeclared_rank),
        "bfloat16": edited(dense, of_type(schema.TensorType.BFLOAT16)),
        "resource": edited(convert("subtract"), of_type(schema.TensorType.RESOURCE)),
        "metadata": with_files(edited(dense, described), LABELS),
    }
    for name, model in models.items():
        (FOLDER / f"{name}.tflite").write_bytes(model)
        print(f"{name}.tflite", len(model))


if __name__ == "__main__":
    main()
