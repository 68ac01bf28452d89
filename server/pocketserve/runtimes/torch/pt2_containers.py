"""Stand-ins for classes that an exported program takes or returns its tensors in, and that are not at hand.

A program names such classes (a dataclass of its author's, Hugging Face's ``SequenceClassifierOutput``), and PyTorch
loads it only where they are registered. All that is needed of one is what it is made of, which the program tells too,
so a dictionary of the same tensors does: no code of the class is needed to run the program.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pocketserve.formats.zip_archives import BadZipError, members, read_member

MAX_GRAPH_BYTES = 256 * 1024 * 1024
"""The description of a program; one of a thousand operators has a megabyte."""

MAX_CLASSES = 100


class _StandIn(dict[str, Any]):
    """The tensors of a container by name, and what its class itself would have kept beside them."""

    context: Any = None


_lock = threading.Lock()
"""Held while names are registered, for all of the process."""

_made: dict[str, type[_StandIn]] = {}
"""By name; PyTorch never lets go of a class that was registered once."""


@contextlib.contextmanager
def stand_ins(path: Path) -> Iterator[None]:
    """Within it, classes of a program that nothing else has registered are known by their names.

    Afterwards the names are free again, for the packages that they belong to. One program at a time: what ends would
    take the names from another that is loaded meanwhile.
    """
    from torch.utils import _pytree as pytree

    known = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
    with _lock:
        names = [name for name in class_names(path) if name not in known]
        try:
            for name in names:
                if name in _made:
                    known[name] = _made[name]
                else:
                    _made[name] = _register(pytree, name)
            yield
        finally:
            for name in names:
                known.pop(name, None)


def class_names(path: Path) -> list[str]:
    """The names of all containers in a program's own description; none where it cannot be read."""
    found: dict[str, None] = {}
    with contextlib.suppress(BadZipError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        for member in members(path):
            if member.name.startswith("models/") and member.name.endswith(".json"):
                _collect(json.loads(read_member(path, member, MAX_GRAPH_BYTES)), found)
    return list(found)[:MAX_CLASSES]


def _collect(description: Any, found: dict[str, None]) -> None:
    """Out of ``{"graph_module": {"module_call_graph": [{"signature": {"in_spec": "[1, {…}]", …}}, …]}}``."""
    module = description.get("graph_module", {}) if isinstance(description, dict) else {}
    for entry in module.get("module_call_graph", ()):
        signature = entry.get("signature") or {}
        for key in ("in_spec", "out_spec"):
            if isinstance(signature.get(key), str) and signature[key]:
                waiting = json.loads(signature[key])[1:]
                while waiting:
                    spec = waiting.pop()
                    if isinstance(spec["type"], str):
                        found[spec["type"]] = None
                    waiting += spec["children_spec"]


def _register(pytree: Any, name: str) -> type[_StandIn]:
    kind = type(name.rpartition(".")[2], (_StandIn,), {})

    def taken_apart(value: _StandIn) -> tuple[list[Any], Any]:
        return list(value.values()), value.context

    def put_together(children: Any, context: Any) -> _StandIn:
        items = list(children)
        made: _StandIn = kind(zip(_keys(context, len(items)), items, strict=True))
        made.context = context
        return made

    def with_keys(value: _StandIn) -> tuple[list[tuple[Any, Any]], Any]:
        return [(pytree.MappingKey(key), item) for key, item in value.items()], value.context

    pytree.register_pytree_node(
        kind,
        taken_apart,
        put_together,
        serialized_type_name=name,
        to_dumpable_context=json.dumps,
        from_dumpable_context=json.loads,
        flatten_with_keys_fn=with_keys,
    )
    return kind


def _keys(context: Any, count: int) -> list[str]:
    """The names of a container's parts: a list of them is what dictionaries and dataclasses keep, else numbers do."""
    candidates = (context, *(context if isinstance(context, list | tuple) else ()))
    if isinstance(context, Mapping):
        candidates = tuple(context.values())
    for names in candidates:
        if isinstance(names, list) and len(names) == count and all(isinstance(name, str) for name in names):
            return list(names)
    return [str(number) for number in range(count)]
