"""Import a TFLite package and open interpreters."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from pocketserve.repository.files import stamp
from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError
from pocketserve.runtimes.framework_import import (
    first_line,
    import_framework,
    is_not_installed,
)
from pocketserve.runtimes.tflite import INSTALL
from pocketserve.tensors import zeros

from .delegates import DelegatedPart, DelegateRequest
from .errors import is_hopeless
from .tensors import ModelTensor, model_tensors

_log = logging.getLogger(__name__)


class TflitePackage(NamedTuple):
    """A Python package with a TFLite interpreter."""

    title: str  # the name for pip
    module: str  # has ``Interpreter`` and ``OpResolverType``


PACKAGES = (
    TflitePackage("ai-edge-litert", "ai_edge_litert.interpreter"),
    TflitePackage("tflite-runtime", "tflite_runtime.interpreter"),
    TflitePackage("tensorflow", "tensorflow.lite.python.interpreter"),
)
"""In order of preference: the current one, the one in Termux, the large one."""


def import_first(packages: Sequence[TflitePackage]) -> tuple[str, Any]:
    """Import the first working package; return its name and version, and the module."""
    faults = [f"no TFLite runtime is installed; run: {INSTALL}"]
    for package in packages:
        try:
            module = import_framework(package.module)
        # Incompatible native libraries raise OSError and others.
        except Exception as error:
            if not is_not_installed(package.module, error):
                faults.append(
                    f"{package.title} is installed but does not load ({first_line(error)})"
                )
        else:
            return _with_version(package), module
    raise RuntimeMissingError("; ".join(faults))


def _with_version(package: TflitePackage) -> str:
    top_level = package.module.partition(".")[0]
    version = getattr(sys.modules[top_level], "__version__", None)
    if not isinstance(version, str):
        # late: it imports the email package, a tenth of a cold start
        from importlib import metadata

        try:
            version = metadata.version(package.title)
        except metadata.PackageNotFoundError:
            return package.title
    return f"{package.title} {version}"


def _set_zeros(interpreter: Any, inputs: Sequence[ModelTensor]) -> None:
    for tensor in inputs:
        value = tensor.prepare(zeros(tensor.spec))
        interpreter.set_tensor(tensor.number, value)


class InterpreterOpener:
    """Opens interpreters of one file, one at a time, each with its own delegate.

    Attributes:
        device: the device of the last interpreter, as far as known.
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
        self._without_xnnpack = False  # whether the delegate excludes XNNPACK
        self._part: DelegatedPart | None = None
        # The interpreter also refers to its delegate, but frees it too early (see
        # :mod:`.session`).
        self._loaded: Any = None
        self._warned = False
        self.delegate = delegate
        self.device = "cpu"

    def open(self, *, use_delegate: bool = True) -> Any:
        """Return a new interpreter without allocating it.

        The previous one must no longer be in use.
        """
        source = self._source
        delegate = None
        if use_delegate:
            delegate = self.delegate
        if stamp([source.path]) != self._stamp:
            raise ModelLoadError(
                f"{source.path.name} changed while it was loaded; load the model again"
            )
        # Free the last delegate first: an accelerator may allow only one at a time.
        self._loaded = None
        self._part = None
        if not use_delegate:
            self._without_xnnpack = False  # XNNPACK was not the cause of the loss
        delegates = None
        if delegate is not None:
            self._loaded = delegate.load(self._module)
            delegates = [self._loaded]
        # Given a path, the interpreter maps the weights instead of copying them.
        interpreter = self._module.Interpreter(
            model_path=str(source.path),
            num_threads=source.threads,
            experimental_op_resolver_type=self._resolver_type(),
            experimental_delegates=delegates,
        )
        if delegate is not None:
            self._part = DelegatedPart.of(delegate.name, interpreter)
        return interpreter

    def _resolver_type(self) -> Any:
        types = self._module.OpResolverType
        if self._xnnpack and not self._without_xnnpack:
            return types.AUTO
        return types.BUILTIN_WITHOUT_DEFAULT_DELEGATES

    def confirm_device(self, interpreter: Any) -> bool:
        """Determine an allocated interpreter's device; False if it must be reopened.

        TFLite may have removed the delegate because of XNNPACK. The user asked for the
        delegate, so the interpreter is reopened without XNNPACK. If the delegate itself
        is at fault, the next allocation raises an error.
        """
        self.device = "cpu" if self._part is None else self._part.device(interpreter)
        if not self._xnnpack or self._without_xnnpack or self._part is None:
            return True
        self._without_xnnpack = self._part.is_lost(interpreter)
        return not self._without_xnnpack

    def open_allocated(self) -> Any:
        """Return an interpreter that was allocated and accepted zeros.

        Missing operators and types raise an error here.
        """
        interpreter: Any = self.open()
        inputs = model_tensors(interpreter.get_input_details(), "input")
        try:
            interpreter.allocate_tensors()
            if not self.confirm_device(interpreter):
                interpreter = None
                interpreter = self.open()
                interpreter.allocate_tensors()
                self.confirm_device(interpreter)
            _set_zeros(interpreter, inputs)
        except Exception as error:
            free = any(-1 in spec.shape for spec, _ in inputs)
            if not free or self.delegate is not None or is_hopeless(str(error)):
                raise
            # Size 1 doesn't fit its free dimensions; requests will have other sizes.
            return self.open()
        if any(spec.datatype == "BYTES" for spec, _ in inputs):
            # A written string tensor loses its free dimensions.
            interpreter = None
            return self.open()
        return interpreter

    def without_delegate(self) -> InterpreterOpener:
        """Return an opener that uses no delegate."""
        return InterpreterOpener(self._module, self._source, self._xnnpack, None)

    def warn(self, fault: str) -> None:
        """Log once that the delegate is not used."""
        if self.delegate is not None and not self._warned:
            self._warned = True
            _log.warning(
                "%s runs without the delegate %s, which %s",
                self._source.path.name,
                self.delegate.name,
                fault,
            )
