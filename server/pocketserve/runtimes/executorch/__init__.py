"""ExecuTorch programs."""

from pocketserve.runtimes.model_format import ModelFormat, Requirement

INSTALL = "pip install 'pocketserve[executorch]'; Termux does not have it: convert the model on a desktop"

FRAMEWORK = Requirement("executorch.runtime", ".pte models", "executorch")

FORMATS = (
    ModelFormat(
        "executorch",
        "pocketserve.runtimes.executorch.session",
        suffixes=(".pte",),
        magic=((4, b"ET"),),
        packages=("executorch",),
        install=INSTALL,
        frameworks=(FRAMEWORK,),
    ),
)
