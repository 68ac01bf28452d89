"""Refuse TFLite files that reach outside themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from places import ROOT
from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.tflite.check import check_tflite_graphs
from pocketserve.runtimes.tflite.interpreters import PACKAGES
from pocketserve.runtimes.tflite.session import TfliteRuntime

DATA = ROOT / "tests" / "runtimes" / "data"


@pytest.mark.tensorflow
def test_tensorflow_operators_are_refused_even_by_its_own_interpreter(
    tmp_path: Path,
) -> None:
    """The operator writes a file.

    Its harmless name is ignored, its options count.
    """
    from pocketserve.runtimes.tensorflow.common import import_tensorflow

    tf = import_tensorflow(1)
    target = tmp_path / "target"

    def write(x: Any) -> Any:
        tf.io.write_file(str(target), x)
        return tf.strings.length(x)

    function = tf.function(
        write, input_signature=[tf.TensorSpec([], tf.string, name="x")], autograph=False
    )
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [function.get_concrete_function()]
    )
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    content = converter.convert()
    assert b"FlexWriteFile" in content
    for number, names in enumerate(
        [content, content.replace(b"FlexWriteFile", b"FlexMatrixInv")]
    ):
        path = tmp_path / f"m{number}.tflite"
        path.write_bytes(names)
        for package in PACKAGES:
            with pytest.raises(ModelLoadError, match="uses TensorFlow operators"):
                TfliteRuntime((package,)).open(ModelSource(path))
    assert not target.exists()


def with_field(table: str, number: int, value: int) -> bytes:
    """Return a model with one more field in a table, written by TFLite's schema."""
    schema = pytest.importorskip("tensorflow.lite.python.schema_py_generated")
    import flatbuffers

    model = schema.ModelT.InitFromPackedBuf(
        (DATA / "dynamic_batch.tflite").read_bytes(), 0
    )
    if table == "buffer":
        setattr(model.buffers[1], {1: "offset", 2: "size"}[number], value)
    else:
        operator = model.subgraphs[0].operators[0]
        setattr(
            operator,
            {9: "largeCustomOptionsOffset", 10: "largeCustomOptionsSize"}[number],
            value,
        )
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("table", "number"),
    [
        ("buffer", 1),
        ("buffer", 2),
        ("operator", 9),
        ("operator", 10),
    ],
)
@pytest.mark.parametrize(
    "value",
    [
        10_000_000,
        2**63,
        2**64 - 1,
    ],
)
def test_weights_beyond_the_end_of_the_file_are_refused(
    tmp_path: Path, table: str, number: int, value: int
) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(with_field(table, number, value))
    with pytest.raises(DamagedFileError, match="weights lie beyond its end"):
        check_tflite_graphs(path)
    path.write_bytes(with_field(table, number, 1))
    check_tflite_graphs(path)
