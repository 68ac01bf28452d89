"""External delegates of TFLite: native libraries that run parts of a model on an accelerator.

The options of a version are ``delegate`` (a library), ``delegate_options`` (texts for it) and ``required``: refuse to
load rather than run on the CPU.

Found by running them, and what shapes the code below:

* The packages' ``Delegate`` object is left half made when its library does not load or lacks a function, and complains
  on standard error when it is collected. The library is therefore checked first.
* What a delegate took shows as nodes called DELEGATE behind the model's own ones, and XNNPACK's nodes have the same
  name. But the delegate's are there as soon as the interpreter is, while XNNPACK comes with the first allocation.
* Where a delegate fails in an allocation, TFLite may take back *all* of them without an error: ai-edge-litert 2.3 where
  XNNPACK fails on what another one left, both packages where a delegate refuses new sizes and XNNPACK is on. The nodes
  are gone after the allocation then.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.messages import excerpt
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.devices import Options, current_first
from pocketserve.runtimes.engines import engine_advice
from pocketserve.trust.verified_files import not_trusted, private_copy

OPTION_KEYS = frozenset({"delegate", "delegate_options", "required"})

_FUNCTIONS = ("tflite_plugin_create_delegate", "tflite_plugin_destroy_delegate")


class DelegateError(Exception):
    """A delegate that cannot be used here; the text goes on from its name: ``did not start (no such device)``."""


class DelegateRequest(NamedTuple):
    """The delegate that a manifest asks for."""

    name: str  # the library's name without its folder, which stands for the delegate in texts and as a device
    library: str  # what the dynamic loader gets: a name, or an absolute path; empty where there is no such file
    options: Mapping[str, str]
    required: bool  # whether the model is refused where the delegate does not run

    def load(self, module: Any) -> Any:
        """Return a new delegate object of the package, or raise ``DelegateError``."""
        if not self.library:
            raise DelegateError("cannot be loaded (there is no such file)")
        try:
            library = ctypes.PyDLL(self.library)
        except OSError as error:
            raise DelegateError(f"cannot be loaded ({short_reason(error)})") from None
        for function in _FUNCTIONS:
            if not hasattr(library, function):
                raise DelegateError(f"is no TFLite delegate (it has no {function})")
        try:
            return module.load_delegate(self.library, dict(self.options))
        except Exception as error:
            # The package's own text has a line before what the delegate reported.
            reason = str(error).split("\n", 1)[-1]
            raise DelegateError(f"did not start ({short_reason(reason)})") from None

    def refusal(self, fault: str) -> ModelLoadError:
        """Return the error for a delegate that is required."""
        return ModelLoadError(
            f"the delegate {self.name} {fault}; change delegate in model.toml, or leave required out to run on the CPU"
        )


def delegate_request(source: ModelSource) -> DelegateRequest | None:
    """Return the delegate that a version's options ask for, if it is trusted."""
    delegate, texts = (
        source.options.get("delegate"),
        source.options.get("delegate_options", {}),
    )
    required = source.flag("required")
    if not isinstance(texts, Mapping) or not all(
        _is_c_text(item) for pair in texts.items() for item in pair
    ):
        raise ModelLoadError(
            f'the option delegate_options is a table of texts such as {{ backend_type = "htp" }}, not {texts!r:.100}'
        )
    if delegate is None:
        useless = sorted(OPTION_KEYS & source.options.keys())
        if useless:
            raise ModelLoadError(
                f"the option {useless[0]} does nothing without delegate; add delegate, or remove it"
            )
        return None
    if not _is_c_text(delegate) or not Path(delegate).name:
        raise ModelLoadError(
            f'the option delegate is a library such as "libQnnTFLiteDelegate.so", not {delegate!r:.100}'
        )
    if (advice := engine_advice(delegate)) is not None:
        raise ModelLoadError(
            f"the option delegate is a library, not {delegate!r}; {advice}"
        )
    path = find_library(delegate, source.original.resolve().parent)
    if path is not None:
        library = str(private_copy(path, source.trusted)) if path.exists() else ""
    elif library_digest(delegate) in source.trusted:
        library = delegate
    else:
        raise ModelLoadError(
            not_trusted(
                source.original,
                f"the delegate {delegate[:100]} is code that is not trusted",
            )
        )
    return DelegateRequest(Path(delegate).name, library, dict(texts), required)


def tflite_devices(options: Options) -> dict[str, Options]:
    """Return what runs a version by its options: XNNPACK, the CPU without it, and the delegate that they name."""
    delegate = options.get("delegate")
    plain = {
        key: value
        for key, value in options.items()
        if key not in {"xnnpack", *OPTION_KEYS}
    }
    devices = {"xnnpack": plain | {"xnnpack": True}, "cpu": plain | {"xnnpack": False}}
    current = "xnnpack" if options.get("xnnpack", True) else "cpu"
    return current_first(
        devices, Path(delegate).name if isinstance(delegate, str) else current, options
    )


def _is_c_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def find_library(delegate: str, folder: Path) -> Path | None:
    """Find the file that a delegate's name means; None for one that the dynamic loader is to find.

    A path is relative to the folder of the model file, and must not leave it. A name without a folder is a file beside
    the model, if there is one, else the loader's to find: where the system's owner and the environment say.
    """
    try:
        if "/" not in delegate and not (folder / delegate).exists():
            return None
        path = (folder / delegate).resolve()
        path.exists()
    except (
        OSError,
        RuntimeError,
    ) as error:  # a folder that may not be entered, links in a circle
        reason = getattr(error, "strerror", None) or short_reason(error)
        raise ModelLoadError(
            f"the delegate {delegate[:100]} cannot be looked at ({reason})"
        ) from error
    if not Path(delegate).is_absolute() and not path.is_relative_to(folder):
        raise ModelLoadError(
            f"the delegate {delegate[:100]} leaves the model's folder; copy the file into it or give an absolute path"
        )
    return path


def library_digest(name: str) -> str:
    """Return what stands for the content of a library that the dynamic loader finds."""
    return hashlib.sha256(f"library {name}".encode(errors="surrogatepass")).hexdigest()


def short_reason(reason: object) -> str:
    """Return the text of an error, short enough for a sentence."""
    return excerpt(reason, 200) or "no reason given"


GraphNode = tuple[int, tuple[int, ...], tuple[int, ...]]
"""A node's position in the list of all, and the numbers of its inputs and outputs."""


class DelegatedPart(NamedTuple):
    """The part of an interpreter's main graph that a delegate took."""

    name: str
    nodes: (
        frozenset[GraphNode] | None
    )  # that the delegate added; None where the package does not tell
    whole: bool

    @classmethod
    def of(cls, name: str, interpreter: Any) -> DelegatedPart:
        """Inspect an interpreter that was opened with the delegate and has not been allocated yet."""
        operators = _operators(interpreter)
        if operators is None:
            return cls(name, None, False)
        delegated = frozenset(
            node for node, kind in operators.items() if kind == "DELEGATE"
        )
        results = [
            int(details["index"]) for details in interpreter.get_output_details()
        ]
        return cls(
            name,
            delegated,
            bool(delegated) and not _needs_cpu(results, delegated, operators),
        )

    def device(self, interpreter: Any) -> str:
        """Return what runs the interpreter now that it is allocated."""
        if self.nodes is None:
            return f"{self.name} (not confirmed), cpu"
        if not self.nodes or self.is_lost(interpreter):
            return "cpu"
        return self.name if self.whole else f"{self.name}, cpu"

    def is_lost(self, interpreter: Any) -> bool:
        """Return whether the delegate took something, and the allocation undid it."""
        return bool(self.nodes) and not (self.nodes or frozenset()) & set(
            _operators(interpreter) or ()
        )


def _operators(interpreter: Any) -> dict[GraphNode, str] | None:
    """Return every node of the main graph with the name of its operator; None where the package does not tell."""
    try:
        return {
            (
                position,
                tuple(map(int, node["inputs"])),
                tuple(map(int, node["outputs"])),
            ): str(node["op_name"])
            for position, node in enumerate(interpreter._get_ops_details())
        }
    except Exception:  # a private method: it may be missing, or answer something else
        return None


def _needs_cpu(
    results: Sequence[int], delegated: frozenset[GraphNode], nodes: Iterable[GraphNode]
) -> bool:
    """Return whether a result depends on a node that the delegate did not take.

    The list still holds the nodes that were replaced: of a tensor that two nodes make, the delegate's does.
    """
    makers = {
        tensor: node
        for node in sorted(nodes, key=delegated.__contains__)
        for tensor in node[2]
    }
    pending, visited = list(results), set[int]()
    while pending:
        tensor = pending.pop()
        maker = makers.get(tensor)
        if maker is None or tensor in visited:
            continue
        if maker not in delegated:
            return True
        visited.add(tensor)
        pending.extend(maker[1])
    return False
