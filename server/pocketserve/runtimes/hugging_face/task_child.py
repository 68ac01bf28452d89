"""The process of a network of transformers: confines itself, then answers frames.

Started by :mod:`pocketserve.runtimes.hugging_face.task_process`, with its settings as
JSON on the command line. It ends when its standard input does. The first frame that it
sends describes the network; then each request gets one answer, in order::

    {"op": "run", "inputs": [{"name", "dtype", "shape"}]} + payload
                        -> {"outputs": [{"name", "dtype", "shape"}]} + payload
    {"op": "try"}       -> {"finite": whether an example's outputs are numbers}
    any of them         -> {"error", "input": whether the input is at fault}
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pocketserve.child.arrays import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    PackedArrays,
    pack_arrays,
    unpack_arrays,
)
from pocketserve.child.frames import ChildFrame, FramePipe
from pocketserve.quarantine.sandbox import (
    confine_calls,
    confine_files,
    limit_resources,
)
from pocketserve.runtimes.hugging_face.network import Network


def main(arguments: Sequence[str]) -> int:
    """Confine this process and serve the network until the parent ends it."""
    request = json.loads(arguments[0])
    # The library prints to standard output.
    output = os.dup(1)
    os.dup2(2, 1)
    limit_resources(
        {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_DATA: request["data_limit"],
            resource.RLIMIT_FSIZE: 1 << 20,
        }
    )
    os.umask(0o077)
    confine_files(request["rules"])
    pipe = FramePipe(0, output, MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES)
    try:
        network = _load(request["model"], request["threads"])
    except Exception as error:
        pipe.send({"error": _one_line(error)})
        return 1
    pipe.send(_description(network))
    try:
        while True:
            header, packed = _answer(network, pipe.receive())
            pipe.send({**header, "outputs": packed.entries}, packed.payload)
    except BrokenPipeError:
        return 0


def _load(folder: str, threads: int) -> Network:
    # It is for pictures, which the server prepares itself; one that doesn't fit PyTorch
    # would prevent the import of many architectures.
    sys.modules["torchvision"] = None  # type: ignore[assignment]
    import torch
    import transformers

    # Imports start programs to find libraries, so that calls are confined after them.
    confine_calls()
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return Network(folder, torch, transformers)


def _description(network: Network) -> dict[str, Any]:
    return {
        "inputs": [asdict(entry) for entry in network.inputs],
        "outputs": [asdict(entry) for entry in network.outputs],
    }


def _answer(
    network: Network, request: ChildFrame
) -> tuple[Mapping[str, Any], PackedArrays]:
    no_arrays = PackedArrays([], [])
    try:
        if request.header["op"] == "try":
            return {"finite": network.try_out()}, no_arrays
        arrays = unpack_arrays(request.header["inputs"], request.payload)
        return {}, pack_arrays(network.run(arrays))
    except Exception as error:
        # Tokens outside of the vocabulary, and sizes that the network doesn't take.
        is_input = isinstance(error, ValueError | IndexError)
        return {"error": _one_line(error)[:1000], "input": is_input}, no_arrays


def _one_line(error: Exception) -> str:
    """Return an error's text on one line; its class if it has none."""
    return " ".join(str(error).split()) or repr(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
