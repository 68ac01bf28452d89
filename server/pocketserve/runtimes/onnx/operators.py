"""The operators that an ONNX model may use.

Allowed are operators that only compute, and the model's own functions. Not allowed are
some of ONNX Runtime's own: ``EPContext`` and ``Snpe``, which refer to a file or contain
a program for an accelerator's library; ``PythonOp`` and ``TritonOp``, which call Python
in training builds; and the domain ``com.microsoft.extensions``, which sends the input
to a network service and is part of the usual package. Operators of other domains need
libraries that are not loaded here.
"""

from __future__ import annotations

from collections.abc import Set

from pocketserve.runtimes.name_lists import read_names

_NAMES = read_names(__package__, "operators.txt")
DOMAINS = _NAMES["domains"] | {""}
MICROSOFT = _NAMES["com.microsoft"]

OperatorName = tuple[str, str]
"""An operator's or function's domain and type."""


def first_foreign(
    operators: Set[OperatorName], functions: Set[OperatorName]
) -> OperatorName | None:
    """Return the first operator by name that is not allowed, or None."""
    for name in sorted(operators):
        if not _is_allowed(name, functions):
            return name
    return None


def _is_allowed(name: OperatorName, functions: Set[OperatorName]) -> bool:
    domain, kind = name
    if domain == "com.microsoft":
        return kind in MICROSOFT
    return domain in DOMAINS or name in functions
