"""ExecuTorch programs."""

from pocketserve.runtimes.model_format import ModelFormat, Requirement

INSTALL = "pip install 'pocketserve[executorch]'; not available in Termux, convert the model there"

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
