"""Replace containers of an exported program whose classes aren't installed.

A program names such classes (a dataclass of its author's, Hugging Face's ``SequenceClassifierOutput``), and PyTorch
loads it only where they are registered. A dictionary of the same tensors does instead: the program tells their names,
and runs no code of the class.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pocketserve.formats.zip_archives import BadZipError, members, read_member

# Limit of a program's description; a thousand operators take a megabyte.
MAX_GRAPH_BYTES = 256 * 1024 * 1024

MAX_CLASSES = 100


class _StandIn(dict[str, Any]):
    """The tensors of a container by name, and the context of its class."""

    context: Any = None


_lock = threading.Lock()
"""Held while names are registered, for all of the process."""

_stand_ins: dict[str, type[_StandIn]] = {}
"""By name; PyTorch never lets go of a class that was registered once."""


@contextlib.contextmanager
def stand_ins(path: Path) -> Iterator[None]:
    """Register the classes of a program that nothing else has registered.

    Afterwards the names are free again, for the packages that they belong to. One program at a time: the first to end
    would take the names from another.
    """
    from torch.utils import _pytree as pytree

    registered = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
    with _lock:
        names = [name for name in class_names(path) if name not in registered]
        try:
            for name in names:
                if name in _stand_ins:
                    registered[name] = _stand_ins[name]
                else:
                    _stand_ins[name] = _register(pytree, name)
            yield
        finally:
            for name in names:
                registered.pop(name, None)


def class_names(path: Path) -> list[str]:
    """Return the containers in a program's description; empty if unreadable.

    They lie in ``{"signature": {"in_spec": "[1, {"type": NAME, "children_spec": […], …}]", "out_spec": …}, …}``.
    """
    names: dict[str, None] = {}

    def note(item: dict[str, Any]) -> None:
        if "children_spec" in item and isinstance(item["type"], str):
            names[item["type"]] = None
        for key in ("in_spec", "out_spec"):
            if isinstance(item.get(key), str) and item[key]:
                json.loads(item[key], object_hook=note)

    with contextlib.suppress(
        BadZipError, OSError, ValueError, LookupError, RecursionError
    ):
        for member in members(path):
            if member.name.startswith("models/") and member.name.endswith(".json"):
                json.loads(read_member(path, member, MAX_GRAPH_BYTES), object_hook=note)
    return list(names)[:MAX_CLASSES]


def _register(pytree: Any, name: str) -> type[_StandIn]:
    kind = type(name.rpartition(".")[2], (_StandIn,), {})

    def unflatten(children: Any, context: Any) -> _StandIn:
        items = list(children)
        value: _StandIn = kind(zip(_keys(context, len(items)), items, strict=True))
        value.context = context
        return value

    pytree.register_pytree_node(
        kind,
        lambda value: (list(value.values()), value.context),
        unflatten,
        serialized_type_name=name,
        to_dumpable_context=json.dumps,
        from_dumpable_context=json.loads,
        flatten_with_keys_fn=lambda value: (
            [(pytree.MappingKey(k), v) for k, v in value.items()],
            value.context,
        ),
    )
    return kind


def _keys(context: Any, count: int) -> list[str]:
    """Return the names of a container's parts, else numbers."""
    candidates = [context]
    if isinstance(context, list | tuple):
        candidates += context
    elif isinstance(context, Mapping):
        candidates = list(context.values())
    for names in candidates:
        if _is_name_list(names, count):
            return list(names)
    return [str(number) for number in range(count)]


def _is_name_list(value: Any, count: int) -> bool:
    if not isinstance(value, list) or len(value) != count:
        return False
    return all(isinstance(name, str) for name in value)
