"""PyTorch models: TorchScript, mobile and exported programs, unconverted modules."""

from functools import partial

from pocketserve.runtimes.model_format import Code, ModelFormat, Requirement, late

FRAMEWORK = Requirement("torch", "PyTorch models", "torch", "python-torch")
INSTALL = f"pip install 'pocketserve[torch]'; in Termux: pkg install {FRAMEWORK.termux}"

NOT_MODELS = {
    "state_dict": "holds weights without a model, or a pickled module, which is code and is never opened: save the "
    "model with torch.jit.save or as ONNX, or put the weights into a folder with a model.py that builds the model and "
    "a model.toml",
    "aoti": "holds native code compiled by AOTInductor, which is not served: save the exported program itself with "
    "torch.export.save",
}
"""Advice by what a PyTorch file's directory or first bytes tell; nothing in it is unpickled."""

_torch_format = partial(ModelFormat, packages=("torch",), install=INSTALL)

FORMATS = (
    _torch_format(
        "torchscript",
        "pocketserve.runtimes.torch.torchscript",
        suffixes=(".torchscript", ".ts", ".jit", ".pt", ".pth"),
        frameworks=(FRAMEWORK,),
        zipped=True,
        triton="pytorch",
    ),
    _torch_format(
        "ptl", "pocketserve.runtimes.torch.ptl", suffixes=(".ptl",), zipped=True
    ),
    _torch_format(
        "torch",
        "pocketserve.runtimes.torch.eager",
        suffixes=(".py",),
        by_name=True,
        code=Code.MODULES,
        code_options=("function", "arguments", "weights"),
        layers=late(f"{__name__}.layers.open_torch_layers"),
    ),
    _torch_format(
        "pt2",
        "pocketserve.runtimes.torch.pt2",
        suffixes=(".pt2",),
        last_choice=True,
        code=Code.FILE,
        zipped=True,
    ),
)
