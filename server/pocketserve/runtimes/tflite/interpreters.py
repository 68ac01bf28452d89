"""Finds the package with a TFLite interpreter, and opens interpreters of a file."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from pocketserve.repository.files import stamp
from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError
from pocketserve.runtimes.framework_import import first_line, import_framework
from pocketserve.runtimes.tflite import INSTALL
from pocketserve.tensors import zeros

from .delegates import DelegatedPart, DelegateRequest
from .errors import is_hopeless
from .tensors import model_tensors

_log = logging.getLogger(__name__)


class TflitePackage(NamedTuple):
    """A Python package with a TFLite interpreter."""

    title: str  # as it is installed
    module: str  # where ``Interpreter`` and ``OpResolverType`` are


PACKAGES = (
    TflitePackage("ai-edge-litert", "ai_edge_litert.interpreter"),
    TflitePackage("tflite-runtime", "tflite_runtime.interpreter"),
    TflitePackage("tensorflow", "tensorflow.lite.python.interpreter"),
)
"""In order of preference: the current package, the one that Termux has, the one that is large."""


def import_first(packages: Sequence[TflitePackage]) -> tuple[str, Any]:
    """Import the first package that imports; return its name with its version, and its module."""
    faults = [f"no TFLite runtime is installed; run: {INSTALL}"]
    for package in packages:
        try:
            module = import_framework(package.module)
        except (
            Exception
        ) as error:  # a native library that does not fit raises OSError, among others
            # A missing module deeper down means: installed, but not complete.
            absent = isinstance(
                error, ModuleNotFoundError
            ) and f"{package.module}.".startswith(f"{error.name}.")
            if not absent:
                faults.append(
                    f"{package.title} is installed but does not load ({first_line(error)})"
                )
        else:
            return _with_version(package), module
    raise RuntimeMissingError("; ".join(faults))


def _with_version(package: TflitePackage) -> str:
    version = getattr(
        sys.modules[package.module.partition(".")[0]], "__version__", None
    )
    if not isinstance(version, str):
        from importlib import (
            metadata,
        )  # late: it needs the email package, a tenth of a cold start

        try:
            version = metadata.version(package.title)
        except metadata.PackageNotFoundError:
            return package.title
    return f"{package.title} {version}"


class InterpreterOpener:
    """Opens interpreters of one file, one at a time, each with a delegate of its own if there is to be one.

    Attributes:
        device: what runs the last interpreter, as far as it is known.
    """

    def __init__(
        self,
        module: Any,
        source: ModelSource,
        xnnpack: bool,
        delegate: DelegateRequest | None,
    ):
        self._module = module
        self._source = source
        self._stamp = stamp([source.path])
        self._xnnpack = xnnpack
        self._without_xnnpack = False  # beside the delegate
        self._part: DelegatedPart | None = None
        # An interpreter holds its delegate too, but frees it before its own end (see :mod:`.session`).
        self._loaded: Any = None
        self._warned = False
        self.delegate = delegate
        self.device = "cpu"

    def open(self, *, use_delegate: bool = True) -> Any:
        """Return a fresh interpreter, not yet allocated; the one before is no longer in use."""
        source, delegate = self._source, self.delegate if use_delegate else None
        if stamp([source.path]) != self._stamp:
            raise ModelLoadError(
                f"{source.path.name} changed while it was loaded; load the model again"
            )
        # The last delegate goes before the next comes: an accelerator may serve one at a time.
        self._loaded, self._part = None, None
        if not use_delegate:
            self._without_xnnpack = False  # what was lost was not lost to XNNPACK
        self._loaded = None if delegate is None else delegate.load(self._module)
        resolvers = self._module.OpResolverType
        xnnpack = self._xnnpack and not self._without_xnnpack
        # Given a path, an interpreter maps the weights and copies nothing.
        interpreter = self._module.Interpreter(
            model_path=str(source.path),
            num_threads=source.threads,
            experimental_op_resolver_type=resolvers.AUTO
            if xnnpack
            else resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            experimental_delegates=None if delegate is None else [self._loaded],
        )
        if delegate is not None:
            self._part = DelegatedPart.of(delegate.name, interpreter)
        return interpreter

    def confirm_device(self, interpreter: Any) -> bool:
        """Learn what runs an interpreter that was just allocated; return False if it has to be opened again.

        The delegate was driven out then, perhaps by XNNPACK, which gives way: the delegate was asked for by name. The
        next allocation says by an error if the delegate itself is at fault.
        """
        self.device = "cpu" if self._part is None else self._part.device(interpreter)
        if not self._xnnpack or self._without_xnnpack or self._part is None:
            return True
        self._without_xnnpack = self._part.is_lost(interpreter)
        return not self._without_xnnpack

    def open_allocated(self) -> Any:
        """Return an interpreter that has allocated and taken zeros: there all that it lacks shows."""
        interpreter: Any = self.open()
        inputs = model_tensors(interpreter.get_input_details(), "input")
        try:
            interpreter.allocate_tensors()
            if not self.confirm_device(interpreter):
                interpreter = None
                interpreter = self.open()
                interpreter.allocate_tensors()
                self.confirm_device(interpreter)
            for tensor in inputs:
                interpreter.set_tensor(
                    tensor.number, tensor.prepare(zeros(tensor.spec))
                )
        except Exception as error:
            free = any(-1 in spec.shape for spec, _ in inputs)
            if not free or self.delegate is not None or is_hopeless(str(error)):
                raise
            # It only dislikes size 1 for its free dimensions; a request will bring better ones.
            return self.open()
        if any(spec.datatype == "BYTES" for spec, _ in inputs):
            # A written string tensor no longer tells its free dimensions.
            interpreter = None
            return self.open()
        return interpreter

    def without_delegate(self) -> InterpreterOpener:
        """Return an opener for the CPU alone."""
        return InterpreterOpener(self._module, self._source, self._xnnpack, None)

    def warn(self, fault: str) -> None:
        """Log that the delegate is not used: once, since it may happen with every other request."""
        if self.delegate is not None and not self._warned:
            self._warned = True
            _log.warning(
                "%s runs without the delegate %s, which %s",
                self._source.path.name,
                self.delegate.name,
                fault,
            )
