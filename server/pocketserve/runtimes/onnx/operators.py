"""The operators that an ONNX model may have: those that only compute, and functions that the model defines.

Left out of ONNX Runtime's own are ``EPContext`` and ``Snpe``, which name a file, or hold a program, for the library of
an accelerator; those that call Python in builds for training (``PythonOp``, ``TritonOp``); and those that send the
input to a service in the network (the domain ``com.microsoft.extensions``, whose provider is part of the usual
package). Operators of other domains come from libraries that are not loaded here.
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
    """Return the first operator, by name, that is neither allowed nor one of the model's functions."""
    for name in sorted(operators):
        domain, kind = name
        if not (
            kind in MICROSOFT
            if domain == "com.microsoft"
            else domain in DOMAINS or name in functions
        ):
            return name
    return None
