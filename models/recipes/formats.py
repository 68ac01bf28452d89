"""From a trained PyTorch module and its Keras twin to the other formats.

No file that is written here holds a date, a random number or the path of a source file: the exporters of PyTorch
note for every operator where on the disk it was called.
"""

import io
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from models.recipes import common  # first: it prepares the frameworks

import onnx
import tensorflow as tf
import torch

from models.recipes.tfjs_writer import write_layers_model

MOST_ROWS = 512
"""What an ExecuTorch program takes at once: its memory is planned when it is made, so there has to be a bound."""

EXAMPLE_ROWS = 32
"""How many rows an exporter sees. With one row torch.export fixes the batch to one; with fewer than 16 PyTorch's choice
of a convolution adds the condition `batch < 16`, which ExecuTorch then makes the bound."""


def write_torch_formats(module: torch.nn.Module, folder: Path, takes: common.Tensor, gives: common.Tensor) -> None:
    """Writes NAME.ts, .ptl, .pt2, .pte and .onnx into the folder called NAME."""
    base = folder / folder.name
    example = (torch.zeros(EXAMPLE_ROWS, *takes.shape[1:]),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # every one of these exporters announces its successor
        write_script(module, base.with_suffix(".ts"), base.with_suffix(".ptl"), example)
        write_exported(module, base.with_suffix(".pt2"), example)
        write_executorch(module, base.with_suffix(".pte"), example)
        write_onnx(module, base.with_suffix(".onnx"), example, takes.name, gives.name)


def write_keras_formats(model: tf.keras.Model, folder: Path, takes: common.Tensor, gives: common.Tensor) -> None:
    """Writes the folders savedmodel and tfjs."""
    write_savedmodel(model, folder / "savedmodel", takes.name, gives.name)
    write_layers_model(model, folder / "tfjs")


# --- PyTorch


def write_script(module: torch.nn.Module, path: Path, mobile_path: Path, example: tuple[torch.Tensor, ...]) -> None:
    """TorchScript and its mobile form, from one frozen program.

    Traced, because a scripted one lists its constants in another order in every run. Not through optimize_for_mobile:
    the operators that it puts in are missing from most builds of PyTorch.
    """
    program = torch.jit.freeze(torch.jit.trace(module, example))
    write_without_sources(path, lambda raw: torch.jit.save(program, raw))
    write_without_sources(mobile_path, lambda raw: program._save_for_lite_interpreter(raw))


def write_without_sources(path: Path, save: Callable[[str], None]) -> None:
    """Lets PyTorch save an archive, then copies it without the records of where each line came from."""
    with tempfile.TemporaryDirectory() as scratch:
        raw = f"{scratch}/{path.name}"
        save(raw)
        reader = torch._C.PyTorchFileReader(raw)
        writer = torch._C.PyTorchFileWriter(str(path))
        for name in reader.get_all_records():
            # The writer adds these two by itself.
            if not name.endswith(".debug_pkl") and name not in ("version", ".data/serialization_id"):
                record = reader.get_record(name)
                writer.write_record(name, record, len(record))
        writer.set_min_version(int(reader.get_record("version")))
        writer.write_end_of_file()


def exported(
    module: torch.nn.Module, example: tuple[torch.Tensor, ...], most: int | None
) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("batch", min=1, max=most)
    program = torch.export.export(module, example, dynamic_shapes=({0: rows},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def write_exported(module: torch.nn.Module, path: Path, example: tuple[torch.Tensor, ...]) -> None:
    content = io.BytesIO()
    torch.export.save(exported(module, example, None), content)
    path.write_bytes(content.getvalue())


def write_executorch(module: torch.nn.Module, path: Path, example: tuple[torch.Tensor, ...]) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program = exported(module, example, MOST_ROWS)
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    path.write_bytes(lowered.to_executorch().buffer)


def write_onnx(module: torch.nn.Module, path: Path, example: tuple[torch.Tensor, ...], takes: str, gives: str) -> None:
    """One file: by itself the exporter would write the weights into a second one. The batch of one row stays one."""
    program = torch.onnx.export(
        module,
        example,
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},) if len(example[0]) > 1 else None,
        input_names=[takes],
        output_names=[gives],
        external_data=False,
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


# --- Keras


class Served(tf.Module):
    """A Keras model behind one named function.

    Keras' own `model.export` writes every weight twice, and in an order that changes from run to run.
    """

    def __init__(self, model: tf.keras.Model, takes: str, gives: str) -> None:
        super().__init__()
        self.kept = [variable.value for variable in model.weights]
        self.serve = tf.function(
            lambda x: {gives: model(x, training=False)},
            input_signature=[tf.TensorSpec(model.inputs[0].shape, tf.float32, name=takes)],
            autograph=False,
        )


def write_savedmodel(model: tf.keras.Model, folder: Path, takes: str, gives: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    served = Served(model, takes, gives)
    options = tf.saved_model.SaveOptions(save_debug_info=False)
    tf.saved_model.save(served, str(folder), signatures={"serving_default": served.serve}, options=options)
    (folder / "fingerprint.pb").unlink()  # a random number is in it, and nothing needs it
    (folder / "assets").rmdir()
