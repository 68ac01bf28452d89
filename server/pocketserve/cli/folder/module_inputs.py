"""The undeclared input of a PyTorch module."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.cli.folder.picture_settings import read_photo
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import print_text, printable

if TYPE_CHECKING:
    from pocketserve.repository.scan import ModelEntry
    from pocketserve.service import Service
    from pocketserve.tensors import TensorSpec

MAX_DIMENSIONS = 8
MAX_SIZE = 1 << 20
MAX_PIXELS = 64_000_000
AskLine = Callable[[str], str]


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse sizes such as ``1,3,224,224`` or ``1x3x224x224``; -1 is any.

    Raises:
        argparse.ArgumentTypeError: they are invalid.
    """
    sizes = text.replace("x", ",").split(",")
    try:
        shape = tuple(int(size) for size in sizes)
    except ValueError:
        raise argparse.ArgumentTypeError("must be sizes such as 1,3,224,224") from None
    are_valid = all(size == -1 or 0 < size <= MAX_SIZE for size in shape)
    if len(shape) > MAX_DIMENSIONS or not are_valid:
        raise argparse.ArgumentTypeError(
            f"must be at most {MAX_DIMENSIONS} sizes from 1 to {MAX_SIZE}, or -1 for any"
        )
    return shape


def declare_inputs(
    options: argparse.Namespace, service: Service, entry: ModelEntry, ask: AskLine
) -> tuple[TensorSpec, ...]:
    """Declare an undescribed PyTorch module's input, and return it.

    Raises:
        CommandError: its shape is unknown.
    """
    from pocketserve.tensors import TensorSpec

    version = entry.versions.get(entry.default_version)
    is_module = version is not None and version.format.name == "torch"
    if entry.manifest.inputs or not (is_module or options.sample or options.shape):
        return ()
    shape = options.shape
    datatype = "FP32"
    if options.sample is not None:
        shape, datatype = _sample_shape(options.sample)
    if shape is None:
        shape = _ask_shape(ask)
    if shape is None:
        raise CommandError(
            f"PyTorch modules do not state their inputs; state them for {entry.name}: "
            "--shape 1,3,224,224, or --sample FILE.npy"
        )
    inputs = (TensorSpec("input", datatype, shape),)
    manifest = entry.manifest._replace(inputs=inputs)
    service.repository.models().replace(entry._replace(manifest=manifest))
    return inputs


def _sample_shape(path: Path) -> tuple[tuple[int, ...], str]:
    """Return shape and datatype of a ``.npy`` file or photo."""
    import numpy as np

    from pocketserve.tasks.arrays import is_npy, read_npy
    from pocketserve.tensors import datatype_of
    from pocketserve_wire import ApiError

    content = memoryview(read_photo(path))
    try:
        if is_npy(content):
            array = read_npy(content)
            return array.shape, datatype_of(np.dtype(array.dtype))
        from pocketserve.tasks.vision.pictures import read_whole

        _, (width, height) = read_whole(content, MAX_PIXELS, 1)
    except (ApiError, ValueError) as error:
        raise CommandError(
            f"{path} is neither a .npy file nor a picture: {error}"
        ) from None
    return (1, 3, height, width), "FP32"


def _ask_shape(ask: AskLine) -> tuple[int, ...] | None:
    """Ask for a shape; None if there is no answer."""
    while True:
        answer = ask("Shape of its input, such as 1,3,224,224: ")
        if not answer:
            return None
        try:
            return parse_sizes(answer)
        except argparse.ArgumentTypeError as error:
            print_text(printable(f"{answer!r} {error}"))
