"""Explains the errors of TFLite and of its delegates, and frees what they hold."""

from __future__ import annotations

import re
import traceback

from .delegates import DelegateError, short_reason

# Compiled when they are needed: most models are loaded without an error.
_SELECT_OP = r"Select TensorFlow op|\bFlex[A-Z]"
_JOINT = r"(?<=[\w.?)])(?=Node number \d|Failed to apply the default |Registration failed|Tensor \d|tflite/\w)"
_CUSTOM_OP = r"unresolved custom op: ?([\w:.-]*\w)?"
_NEW_OP = r"Didn't find op for builtin opcode '(\w+)'(?: version '(\d+)')?"
_ODD_TYPE = r"expected type (\w+)|[Uu]nsupported data type (\d+)|Invalid data-type"
_FLEX_NAME = r"\((Flex\w+)\)"


def is_hopeless(text: str) -> bool:
    """Return whether an interpreter's error says that it lacks an operator or type, as opposed to not liking a size."""
    return any(
        re.search(pattern, text)
        for pattern in (_SELECT_OP, _CUSTOM_OP, _NEW_OP, _ODD_TYPE)
    )


def explain_tflite_error(name: str, framework: str, text: str) -> str:
    """Return a sentence for people out of an error text; ``framework`` is the package with its version."""
    if re.search(_SELECT_OP, text):
        flex = re.search(_FLEX_NAME, text)
        return (
            f"{name} uses TensorFlow operators{_in_parentheses(flex and flex[1])}, which {framework} does not have; "
            "convert the model with TFLite's built-in operators only"
        )
    if custom := re.search(_CUSTOM_OP, text):
        return (
            f"{name} uses a custom operator{_in_parentheses(custom[1])}, which {framework} does not have; "
            "convert the model without it"
        )
    if new := re.search(_NEW_OP, text):
        return (
            f"{name} needs the operator {new[1]}{_in_parentheses(new[2] and 'version ' + new[2])}, which {framework} "
            "does not have; install a newer TFLite runtime or convert the model with an older TensorFlow"
        )
    if odd := re.search(_ODD_TYPE, text):
        return (
            f"{name} has a tensor of a type{_in_parentheses(odd[1] or odd[2])} that {framework} cannot exchange; "
            "convert the model with inputs and outputs of another type"
        )
    # TFLite puts its sentences together without a space, and again those of a second try. That its own delegate was
    # not applied is a consequence, not a reason.
    parts = dict.fromkeys(part.strip(" .\n") for part in re.split(_JOINT, text))
    reasons = "; ".join(
        part for part in parts if not part.startswith("Failed to apply the default ")
    )
    return (
        f"{framework} cannot load {name} ({short_reason(reasons)}): it is damaged, or needs what this version does not "
        "have; copy or convert the file again, or install a newer package"
    )


def _in_parentheses(detail: str | None) -> str:
    return f" ({detail})" if detail else ""


def delegate_fault(error: Exception) -> str:
    """Return what a delegate did wrong, to go on from its name."""
    return (
        str(error)
        if isinstance(error, DelegateError)
        else f"does not take this model ({short_reason(error)})"
    )


def clear_frames(error: BaseException) -> None:
    """Clear the frames that an error holds, and with them the runners and interpreters in there."""
    # Not __context__: it may be an error that our caller is just handling.
    errors = [error]
    while (cause := errors[-1].__cause__) is not None and cause not in errors:
        errors.append(cause)
    for link in errors:
        traceback.clear_frames(link.__traceback__)
