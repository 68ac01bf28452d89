"""Opens interpreters of ``.tflite`` files: finds the package, looks at the file, and gives fresh interpreters of it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError
from pocketserve.runtimes.privacy import import_framework
from pocketserve.runtimes.tflite import INSTALL

from .check import TensorFlowOperatorError, check_model
from .delegates import DelegateRequest, Share
from .errors import is_hopeless
from .ports import ports_of, zeros_for

_log = logging.getLogger(__name__)


class Package(NamedTuple):
    """A Python package with a TFLite interpreter.

    Attributes:
        title: how it is called in texts.
        module: where ``Interpreter`` and ``OpResolverType`` are.
        distributions: names under which it may be installed, for its version.
    """

    title: str
    module: str
    distributions: tuple[str, ...]


PACKAGES = (
    Package("ai-edge-litert", "ai_edge_litert.interpreter", ("ai-edge-litert", "ai-edge-litert-nightly")),
    Package("tflite-runtime", "tflite_runtime.interpreter", ("tflite-runtime", "tflite-runtime-nightly")),
    Package("tensorflow", "tensorflow.lite.python.interpreter", ("tensorflow", "tensorflow-cpu")),
)
"""In order of preference: the current package, the one that Termux has, the one that is large."""

_HOW_TO_INSTALL = f"no TFLite runtime is installed; run: {INSTALL}"

_IDENTIFIER = b"TFL3"


class Framework(NamedTuple):
    """An imported package."""

    title: str
    module: Any

    def open(self, path: Path, threads: int, xnnpack: bool, delegate: Any = None) -> Any:
        """A fresh interpreter, not yet allocated. Given a path, it maps the weights and copies nothing."""
        resolvers = self.module.OpResolverType
        resolver = resolvers.AUTO if xnnpack else resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        return self.module.Interpreter(
            model_path=str(path),
            num_threads=threads,
            experimental_op_resolver_type=resolver,
            experimental_delegates=None if delegate is None else [delegate],
        )


class Opener:
    """Opens interpreters of one file, one at a time, each with a delegate of its own if there is to be one.

    Args:
        xnnpack: whether TFLite may use it.
        wanted: the delegate; None for the CPU alone.

    Attributes:
        device: what runs the last interpreter, as far as it is known.
    """

    def __init__(self, framework: Framework, source: ModelSource, xnnpack: bool, wanted: DelegateRequest | None):
        self._framework = framework
        self._source = source
        self._identity = _identity(source.path)
        self._xnnpack = xnnpack
        self._alone = False  # whether the delegate goes without XNNPACK
        self._share: Share | None = None
        # An interpreter holds its delegate too, but lets go of it before its own end (see :mod:`.tflite`).
        self._delegate: Any = None
        self.wanted = wanted
        self.device = "cpu"

    def open(self, plain: bool = False) -> Any:
        """A fresh interpreter, not yet allocated; the one before is no longer in use.

        Args:
            plain: leave the delegate out.

        Raises:
            ModelLoadError: the file is another one by now.
            Exception: whatever the package or the delegate raises.
        """
        source, wanted = self._source, None if plain else self.wanted
        if _identity(source.path) != self._identity:
            raise ModelLoadError(f"{source.path.name} changed while it was loaded; load the model again")
        # The last delegate goes before the next comes: an accelerator may serve one at a time.
        self._delegate, self._share = None, None
        if plain:
            self._alone = False  # what was lost was not lost to XNNPACK
        self._delegate = None if wanted is None else wanted.load(self._framework.module)
        xnnpack = self._xnnpack and not self._alone
        interpreter = self._framework.open(source.path, source.threads, xnnpack, self._delegate)
        if wanted is not None:
            self._share = Share.of(wanted.name, interpreter)
        return interpreter

    def looked_at(self, interpreter: Any) -> bool:
        """Learn what runs an interpreter that was just allocated.

        Returns:
            False if the delegate was driven out, perhaps by XNNPACK. The delegate was asked for by name, so XNNPACK
            gives way: the interpreter is to be opened again, and says by an error if the delegate itself is at fault.
        """
        self.device = "cpu" if self._share is None else self._share.device(interpreter)
        if not self._xnnpack or self._alone or self._share is None:
            return True
        self._alone = self._share.is_lost(interpreter)
        return not self._alone

    def without_delegate(self) -> Opener:
        """One for the CPU alone."""
        return Opener(self._framework, self._source, self._xnnpack, None)

    def warn(self, fault: str) -> None:
        """Say that the delegate is not used."""
        if self.wanted is not None:
            _log.warning("%s runs without the delegate %s, which %s", self._source.path.name, self.wanted.name, fault)


def checked(path: Path) -> tuple[int, bool]:
    """Bytes of a file that is a whole TFLite model, and whether it keeps state from run to run.

    Raises:
        ModelLoadError: it is not, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            head, size = file.read(8), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ModelLoadError(f"{path.name} cannot be read: {error.strerror or error}") from error
    if size < 8 or head[4:8] != _IDENTIFIER:
        raise ModelLoadError(
            f"{path.name} is no TFLite model (bytes 4 to 7 are not TFL3); copy or convert the file again"
        )
    try:
        return size, check_model(path)
    except DamagedFileError as error:
        raise ModelLoadError(f"{path.name} is damaged or cut short ({error}); copy the file again") from error
    except TensorFlowOperatorError as error:
        raise ModelLoadError(
            f"{path.name} uses TensorFlow operators ({error!s:.80}), which may do more than compute and are not run; "
            "convert the model with TFLite's built-in operators only"
        ) from error


def _identity(path: Path) -> tuple[int, ...]:
    """Changes when the file is written or replaced."""
    stat = path.stat()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def import_first(packages: Sequence[Package]) -> Framework:
    """The first package that imports.

    Raises:
        RuntimeMissingError: none does.
    """
    broken = []
    for package in packages:
        try:
            module = import_framework(package.module)
        except ModuleNotFoundError as error:
            # A missing module deeper down means: installed, but not complete.
            if not _is_absent(package, error):
                broken.append(f"{package.title} is installed but does not load ({_first_line(error)})")
        except Exception as error:  # a native library that does not fit raises OSError, among others
            broken.append(f"{package.title} is installed but does not load ({_first_line(error)})")
        else:
            return Framework(_titled(package), module)
    raise RuntimeMissingError("; ".join([_HOW_TO_INSTALL, *broken]))


def _is_absent(package: Package, error: ModuleNotFoundError) -> bool:
    return error.name is not None and f"{package.module}.".startswith(f"{error.name}.")


def _titled(package: Package) -> str:
    """The package's name with its version, where the package or its installation tells it."""
    told = getattr(sys.modules[package.module.partition(".")[0]], "__version__", None)
    if isinstance(told, str):
        return f"{package.title} {told}"
    from importlib import metadata  # late: it needs the email package, a tenth of a cold start

    for distribution in package.distributions:
        try:
            return f"{package.title} {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            continue
    return package.title


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def allocated(opener: Opener) -> Any:
    """An interpreter that was seen to allocate and to take zeros.

    That is where missing operators show, inputs of types that pass for strings but are none, and what a delegate takes.

    Raises:
        ModelLoadError: a tensor has a type that the protocol cannot carry, or the file changed meanwhile.
        Exception: whatever the package or the delegate raises.
    """
    interpreter: Any = opener.open()
    inputs = ports_of(interpreter.get_input_details(), "input")
    try:
        interpreter.allocate_tensors()
        if not opener.looked_at(interpreter):
            interpreter = None
            interpreter = opener.open()
            interpreter.allocate_tensors()
            opener.looked_at(interpreter)
        for port in inputs:
            interpreter.set_tensor(port.number, zeros_for(port.spec))
    except Exception as error:
        free = any(-1 in port.spec.shape for port in inputs)
        if not free or opener.wanted is not None or is_hopeless(str(error)):
            raise
        # It only dislikes size 1 for its free dimensions; a request will bring better ones.
        return opener.open()
    if any(port.spec.datatype == "BYTES" for port in inputs):
        # A written string tensor no longer tells its free dimensions.
        interpreter = None
        return opener.open()
    return interpreter
