"""External TFLite delegates: native libraries that use an accelerator.

A version's options are ``delegate`` (a library), ``delegate_options`` (texts for it)
and ``required``: fail to load rather than fall back to the CPU.

Observed behaviour that shapes this module:

* If the library does not load or lacks a function, the packages' ``Delegate`` object is
  half initialized and prints an error when it is collected. The library is therefore
  checked first.
* A delegate's share of the graph appears as nodes named DELEGATE after the model's own
  nodes. XNNPACK's nodes have the same name, but appear only with the first allocation;
  a delegate's are present from the start.
* If a delegate fails in an allocation, TFLite may remove *all* delegates without an
  error: ai-edge-litert 2.3 if XNNPACK fails on the nodes that another delegate left,
  both packages if a delegate rejects new sizes and XNNPACK is on. The DELEGATE nodes
  are missing after that allocation.
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
    """A delegate is unusable; the text follows its name: ``did not start (…)``."""


class DelegateRequest(NamedTuple):
    """The delegate that a manifest requests."""

    name: str  # the library's file name; used in messages and as the device
    library: str  # a name or absolute path for the dynamic loader; empty if missing
    options: Mapping[str, str]
    required: bool  # whether loading fails if the delegate cannot be used

    def load(self, module: Any) -> Any:
        """Return a new delegate object of the package.

        Raises:
            DelegateError: the library cannot be used.
        """
        if not self.library:
            raise DelegateError("cannot be loaded (there is no such file)")
        try:
            library = ctypes.PyDLL(self.library)
        except OSError as error:
            raise DelegateError(f"cannot be loaded ({short_reason(error)})") from None
        for function in _FUNCTIONS:
            if not hasattr(library, function):
                raise DelegateError(f"is not a TFLite delegate (it has no {function})")
        try:
            return module.load_delegate(self.library, dict(self.options))
        except Exception as error:
            # The package puts a line of its own before the delegate's message.
            reason = str(error).split("\n", 1)[-1]
            raise DelegateError(f"did not start ({short_reason(reason)})") from None

    def refusal(self, fault: str) -> ModelLoadError:
        """Return the error for a required delegate."""
        return ModelLoadError(
            f"the delegate {self.name} {fault}; change delegate in model.toml, or "
            "remove required to run on the CPU"
        )


def _refuse_unused_options(source: ModelSource) -> None:
    unused = sorted(OPTION_KEYS & source.options.keys())
    if unused:
        raise ModelLoadError(
            f"the option {unused[0]} does nothing without delegate; add delegate, "
            "or remove it"
        )


def delegate_request(source: ModelSource) -> DelegateRequest | None:
    """Return the delegate that a version's options request, or None.

    Raises:
        ModelLoadError: an option is invalid, or the delegate is not trusted.
    """
    delegate = source.options.get("delegate")
    texts = _delegate_options(source)
    required = source.flag("required")
    if delegate is None:
        _refuse_unused_options(source)
        return None
    if not _is_c_text(delegate) or not Path(delegate).name:
        raise ModelLoadError(
            'the option delegate is a library such as "libQnnTFLiteDelegate.so", not '
            f"{delegate!r:.100}"
        )
    advice = engine_advice(delegate)
    if advice is not None:
        raise ModelLoadError(
            f"the option delegate is a library, not {delegate!r}; {advice}"
        )
    library = _trusted_library(source, delegate)
    return DelegateRequest(Path(delegate).name, library, dict(texts), required)


def _delegate_options(source: ModelSource) -> Mapping[str, str]:
    texts = source.options.get("delegate_options", {})
    is_valid = isinstance(texts, Mapping)
    if is_valid:
        is_valid = all(map(_is_c_text, texts)) and all(map(_is_c_text, texts.values()))
    if not is_valid:
        raise ModelLoadError(
            "the option delegate_options is a table of texts such as "
            f'{{ backend_type = "htp" }}, not {texts!r:.100}'
        )
    return dict(texts)


def _trusted_library(source: ModelSource, delegate: str) -> str:
    """Return the dynamic loader's name or path; empty if missing."""
    path = find_library(delegate, source.original.resolve().parent)
    if path is not None:
        if not path.exists():
            return ""
        return str(private_copy(path, source.trusted))
    if library_digest(delegate) in source.trusted:
        return delegate
    fault = f"the delegate {delegate[:100]} is code that is not trusted"
    raise ModelLoadError(not_trusted(source.original, fault))


def tflite_devices(options: Options) -> dict[str, Options]:
    """Return a version's devices: XNNPACK, the plain CPU and its delegate."""
    plain = dict(options)
    for key in ("xnnpack", *OPTION_KEYS):
        plain.pop(key, None)
    devices = {"xnnpack": plain | {"xnnpack": True}, "cpu": plain | {"xnnpack": False}}
    delegate = options.get("delegate")
    if isinstance(delegate, str):
        current = Path(delegate).name
    elif options.get("xnnpack", True):
        current = "xnnpack"
    else:
        current = "cpu"
    return current_first(devices, current, options)


def _is_c_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def find_library(delegate: str, folder: Path) -> Path | None:
    """Resolve a delegate's name to a file; None leaves it to the dynamic loader.

    A relative path starts at the model's folder and must stay inside it. A plain name is
    a file beside the model if there is one; otherwise the dynamic loader searches the
    system's folders.
    """
    try:
        if "/" not in delegate and not (folder / delegate).exists():
            return None
        path = (folder / delegate).resolve()
        path.exists()
    except (OSError, RuntimeError) as error:  # a forbidden folder, a loop of links
        reason = getattr(error, "strerror", None) or short_reason(error)
        raise ModelLoadError(
            f"the delegate {delegate[:100]} cannot be read ({reason})"
        ) from error
    if not Path(delegate).is_absolute() and not path.is_relative_to(folder):
        raise ModelLoadError(
            f"the delegate {delegate[:100]} leaves the model's folder; copy the file "
            "into it or give an absolute path"
        )
    return path


def library_digest(name: str) -> str:
    """Return the digest for a library that the dynamic loader finds by name."""
    return hashlib.sha256(f"library {name}".encode(errors="surrogatepass")).hexdigest()


def short_reason(reason: object) -> str:
    """Shorten an error's text to fit a sentence."""
    return excerpt(reason, 200) or "no reason given"


GraphNode = tuple[int, tuple[int, ...], tuple[int, ...]]
"""A node's position, and the numbers of its inputs and outputs."""


class DelegatedPart(NamedTuple):
    """The part of an interpreter's main graph that a delegate runs."""

    name: str
    nodes: frozenset[GraphNode] | None  # the delegate's own; None if unknown
    whole: bool

    @classmethod
    def of(cls, name: str, interpreter: Any) -> DelegatedPart:
        """Inspect an interpreter opened with the delegate, before its allocation."""
        operators = _operators(interpreter)
        if operators is None:
            return cls(name, None, False)
        delegated = frozenset(
            node for node, kind in operators.items() if kind == "DELEGATE"
        )
        results = []
        for details in interpreter.get_output_details():
            results.append(int(details["index"]))
        is_whole = bool(delegated) and not _needs_cpu(results, delegated, operators)
        return cls(name, delegated, is_whole)

    def device(self, interpreter: Any) -> str:
        """Return the device of the allocated interpreter."""
        if self.nodes is None:
            return f"{self.name} (not confirmed), cpu"
        if not self.nodes or self.is_lost(interpreter):
            return "cpu"
        if self.whole:
            return self.name
        return f"{self.name}, cpu"

    def is_lost(self, interpreter: Any) -> bool:
        """Return whether the delegate took something, and the allocation undid it."""
        return bool(self.nodes) and not (self.nodes or frozenset()) & set(
            _operators(interpreter) or ()
        )


def _operators(interpreter: Any) -> dict[GraphNode, str] | None:
    """Return the main graph's nodes and operators; None if unknown."""
    try:
        return {
            (
                position,
                tuple(map(int, node["inputs"])),
                tuple(map(int, node["outputs"])),
            ): str(node["op_name"])
            for position, node in enumerate(interpreter._get_ops_details())
        }
    except Exception:  # a private method: missing or different in other versions
        return None


def _needs_cpu(
    results: Sequence[int], delegated: frozenset[GraphNode], nodes: Iterable[GraphNode]
) -> bool:
    """Return whether a result depends on a node outside the delegate.

    ``nodes`` includes replaced nodes. If two nodes produce a tensor, the delegate's
    counts.
    """
    makers: dict[int, GraphNode] = {}
    for node in sorted(nodes, key=delegated.__contains__):
        for tensor in node[2]:
            makers[tensor] = node
    pending = list(results)
    visited = set[int]()
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
