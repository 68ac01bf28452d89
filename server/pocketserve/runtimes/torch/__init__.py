"""PyTorch models: TorchScript, mobile and exported programs, unconverted modules."""

from pocketserve.runtimes.model_format import Code, ModelFormat, Requirement

PACKAGES = ("torch",)
FRAMEWORK = Requirement("torch", "PyTorch models", "torch", "python-torch")
INSTALL = f"pip install 'pocketserve[torch]'; in Termux: pkg install {FRAMEWORK.termux}"

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
