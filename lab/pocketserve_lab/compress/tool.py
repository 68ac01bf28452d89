"""Run a recipe as a converter's tool.

The result is TorchScript, which every later conversion reads.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pocketserve_lab.compress.recipe import load_data
from pocketserve_lab.compress.registry import recipe_named
from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
)
from pocketserve_lab.convert.tools.pytorch import write_torchscript
from pocketserve_lab.convert.tools.sources.pytorch_source import (
    PytorchModel,
    load_pytorch,
)


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Compress the model of a request and write the result.

    ``options`` has ``recipe``, ``train``, and the recipe's own options.

    Raises:
        ConversionError: the recipe does not support the model.
    """
    import torch

    torch.manual_seed(0)
    # So that sums do not depend on the number of cores.
    torch.set_num_threads(1)
    recipe = recipe_named(request.options["recipe"])
    model = load_pytorch(torch, request)
    names = tuple(example.name for example in model.examples)
    data = load_data(Path(request.options["train"]), names)
    options = {name: request.options[name] for name in recipe.defaults}
    arguments: dict[str, Any] = dict(options)
    if recipe.takes_student:
        path = Path(request.options["student"])
        arguments["student"] = _student(torch, path, request)
    result = recipe.compress(model.module, data, **arguments)
    compressed = PytorchModel(result.module, model.examples)
    is_program = isinstance(result.module, torch.jit.ScriptModule)
    format = "torchscript" if is_program else "torch"
    with torch.inference_mode():
        written = dataclasses.replace(request, format=format)
        write_torchscript(torch, compressed, written, request.output)
    return ConversionOutcome(
        "torch",
        torch.__version__,
        {"recipe": recipe.name, **options},
        notes=result.notes,
    )


def _student(torch: Any, path: Path, request: ConversionRequest) -> Any:
    """Build the user's module.

    The option of the command consents to running its code.
    """
    from pocketserve.runtimes.base import ModelLoadError, ModelSource
    from pocketserve.runtimes.torch.eager import build_module

    source = ModelSource(
        path,
        options={},
        trusted=frozenset(request.options["student_trusted"]),
        origin=path,
    )
    try:
        return build_module(torch, source)
    except ModelLoadError as error:
        raise ConversionError(f"the student cannot be built: {error}") from error
