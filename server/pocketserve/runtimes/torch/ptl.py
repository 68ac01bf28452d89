"""Opens ``.ptl`` files, PyTorch's mobile form.

PyTorch writes the whole program beside the bytecode of such a file, and that program runs, checked like any other. The
bytecode is not read: the lite interpreter believes it, and believes its caller's types, until the process ends.

PyTorch optimises the program in its first two runs, which take 20 to 50 ms longer and some megabytes. Without that, a
chain of elementwise steps takes four times as long ever after.
"""

from pocketserve.runtimes.torch.torchscript import TorchScriptRuntime


class PtlRuntime(TorchScriptRuntime):
    """Opens mobile files."""

    platform = "pytorch_mobile"
    title = "PyTorch mobile file"


RUNTIME = PtlRuntime()
