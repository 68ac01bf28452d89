"""Opens ``.ptl`` files, PyTorch's mobile form.

PyTorch writes the whole program beside the bytecode of such a file, and that program runs, checked like any other. The
bytecode is not read: the lite interpreter believes it, and believes its caller's types, until the process ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from pocketserve.runtimes.torch.torchscript import TorchScriptRuntime


class PtlRuntime(TorchScriptRuntime):
    """Opens mobile files."""

    platform = "pytorch_mobile"
    contents = ("ptl",)
    advice: Mapping[str | None, str] = {
        "torchscript": "is a TorchScript file without mobile bytecode; give it the ending .ts",
        None: "is no PyTorch mobile file, or is damaged; copy it again",
    }


RUNTIME = PtlRuntime()
"""The runtime of the format ``ptl``."""
