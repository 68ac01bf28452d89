"""Remove stack traces, source lines and local paths from files of PyTorch.

Its exporters write them for debugging, with the folders of the machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

DEBUG_SUFFIX = ".debug_pkl"
"""Records of TorchScript with a source line for each operator."""

VERSIONS = ("version", ".data/version")
"""Records with the version of the operators, of which a file has one."""

WRITTEN_AT_THE_END = (*VERSIONS, ".data/serialization_id", "byteorder")
"""Records that PyTorch's writer adds itself."""


def clean_script(torch: Any, path: Path) -> None:
    """Remove the source lines from a TorchScript or PyTorch Mobile file."""
    cleaned = path.with_name(f"{path.name}.cleaned")
    reader = torch._C.PyTorchFileReader(str(path))
    # PyTorch aligns tensors in the archive, which zip libraries do not.
    writer = torch._C.PyTorchFileWriter(str(cleaned))
    for name in reader.get_all_records():
        if name in VERSIONS:
            # An operator of an older version may mean something else.
            writer.set_min_version(int(reader.get_record(name)))
        if name in WRITTEN_AT_THE_END or name.endswith(DEBUG_SUFFIX):
            continue
        content = reader.get_record(name)
        writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    del reader
    cleaned.replace(path)


def clean_program(torch: Any, program: Any) -> None:
    """Remove the stack traces and the samples from an exported program."""
    # Its example inputs are a sample of the user's, and needed by no reader.
    program._example_inputs = None
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            node.meta.pop("stack_trace", None)


def clean_onnx(path: Path) -> None:
    """Remove the metadata and descriptions from an ONNX file's nodes."""
    import onnx

    model = onnx.load(str(path))
    clean_graph(model.graph)
    for function in model.functions:
        function.ClearField("metadata_props")
        function.ClearField("doc_string")
        _clean_nodes(function.node)
    onnx.save(model, str(path))


def clean_graph(graph: Any) -> None:
    """Remove metadata from a graph, and the graphs in its nodes."""
    graph.ClearField("metadata_props")
    graph.ClearField("doc_string")
    _clean_nodes(graph.node)
    for values in (graph.input, graph.output, graph.value_info, graph.initializer):
        for value in values:
            value.ClearField("metadata_props")
            value.ClearField("doc_string")


def _clean_nodes(nodes: Iterable[Any]) -> None:
    for node in nodes:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
            if attribute.HasField("g"):
                clean_graph(attribute.g)
            for graph in attribute.graphs:
                clean_graph(graph)
