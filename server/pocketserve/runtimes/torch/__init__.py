"""PyTorch models: TorchScript, mobile and exported programs, unconverted modules."""

from pocketserve.runtimes.model_format import Code, ModelFormat, Requirement

PACKAGES = ("torch",)
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

FORMATS = (
    ModelFormat(
        "torchscript",
        "pocketserve.runtimes.torch.torchscript",
        suffixes=(".torchscript", ".ts", ".jit", ".pt", ".pth"),
        packages=PACKAGES,
        install=INSTALL,
        frameworks=(FRAMEWORK,),
        zipped=True,
        torch_archive=True,
        triton="pytorch",
    ),
    ModelFormat(
        "ptl",
        "pocketserve.runtimes.torch.ptl",
        suffixes=(".ptl",),
        packages=PACKAGES,
        install=INSTALL,
        zipped=True,
        torch_archive=True,
    ),
    ModelFormat(
        "torch",
        "pocketserve.runtimes.torch.eager",
        suffixes=(".py",),
        by_name=True,
        packages=PACKAGES,
        install=INSTALL,
        code=Code.MODULES,
        code_options=("function", "arguments", "weights"),
    ),
    ModelFormat(
        "pt2",
        "pocketserve.runtimes.torch.pt2",
        suffixes=(".pt2",),
        packages=PACKAGES,
        install=INSTALL,
        last_choice=True,
        code=Code.FILE,
        zipped=True,
        torch_archive=True,
    ),
)
