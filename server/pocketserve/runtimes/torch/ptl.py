"""Opens ``.ptl`` files, PyTorch's mobile form.

PyTorch writes the whole program beside the bytecode of such a file, and that program runs, checked like any other. The
bytecode is not read: the lite interpreter believes it, and believes its caller's types, until the process ends.
"""

from pocketserve.runtimes.torch.torchscript import TorchScriptRuntime


class PtlRuntime(TorchScriptRuntime):
    """Opens mobile files."""

    platform = "pytorch_mobile"
    title = "PyTorch mobile file"


RUNTIME = PtlRuntime()
