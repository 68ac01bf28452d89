"""Explain errors of TFLite and its delegates, and free their frames."""

from __future__ import annotations

import re
import traceback

from .delegates import DelegateError, short_reason

# Compiled on demand: most models load without an error.
_SELECT_OP = r"Select TensorFlow op|\bFlex[A-Z]"
_JOINT = (
    r"(?<=[\w.?)])(?=Node number \d|Failed to apply the default |Registration failed"
    r"|Tensor \d|tflite/\w)"
)
_CUSTOM_OP = r"unresolved custom op: ?([\w:.-]*\w)?"
_NEW_OP = r"Didn't find op for builtin opcode '(\w+)'(?: version '(\d+)')?"
_ODD_TYPE = r"expected type (\w+)|[Uu]nsupported data type (\d+)|Invalid data-type"
_FLEX_NAME = r"\((Flex\w+)\)"


def is_hopeless(text: str) -> bool:
    """Return whether an error means a missing operator or type, not a wrong size."""
    patterns = (_SELECT_OP, _CUSTOM_OP, _NEW_OP, _ODD_TYPE)
    return any(re.search(pattern, text) for pattern in patterns)


def explain_tflite_error(name: str, framework: str, text: str) -> str:
    """Turn an error text into a sentence for users.

    Args:
        framework: the package with its version.
    """
    explanation = _explain_operator(name, framework, text)
    if explanation is not None:
        return explanation
    # TFLite joins sentences without a space and repeats those of a retry. "Failed to
    # apply the default delegate" is a consequence, not a reason.
    parts = dict.fromkeys(part.strip(" .\n") for part in re.split(_JOINT, text))
    reasons = "; ".join(
        part for part in parts if not part.startswith("Failed to apply the default ")
    )
    return (
        f"{framework} cannot load {name} ({short_reason(reasons)}): it is damaged, or "
        "needs what this version does not have; copy or convert the file again, or "
        "install a newer package"
    )


def _explain_operator(name: str, framework: str, text: str) -> str | None:
    """Explain a missing operator or type; None for other errors."""
    if re.search(_SELECT_OP, text):
        flex = re.search(_FLEX_NAME, text)
        detail = _in_parentheses(flex and flex[1])
        return (
            f"{name} uses TensorFlow operators{detail}, which {framework} does not "
            "have; convert the model with TFLite's built-in operators only"
        )
    custom = re.search(_CUSTOM_OP, text)
    if custom:
        detail = _in_parentheses(custom[1])
        return (
            f"{name} uses a custom operator{detail}, which {framework} does not have; "
            "convert the model without it"
        )
    return _explain_version(name, framework, text) or _explain_type(
        name, framework, text
    )


def _explain_version(name: str, framework: str, text: str) -> str | None:
    """Explain an operator that is newer than the framework."""
    new = re.search(_NEW_OP, text)
    if new:
        version = _in_parentheses(new[2] and f"version {new[2]}")
        return (
            f"{name} needs the operator {new[1]}{version}, which {framework} does not "
            "have; install a newer TFLite runtime or convert the model with an older "
            "TensorFlow"
        )
    return None


def _explain_type(name: str, framework: str, text: str) -> str | None:
    """Explain a tensor of an unsupported type."""
    odd = re.search(_ODD_TYPE, text)
    if odd:
        detail = _in_parentheses(odd[1] or odd[2])
        return (
            f"{name} has a tensor of a type{detail} that {framework} cannot exchange; "
            "convert the model with inputs and outputs of another type"
        )
    return None


def _in_parentheses(detail: str | None) -> str:
    if detail:
        return f" ({detail})"
    return ""


def delegate_fault(error: Exception) -> str:
    """Describe a delegate's fault in words that follow its name."""
    if isinstance(error, DelegateError):
        return str(error)
    return f"does not take this model ({short_reason(error)})"


def clear_frames(error: BaseException) -> None:
    """Clear an error's frames to free the runners and interpreters in them."""
    # Not __context__: our caller may be handling that error.
    errors = [error]
    cause = error.__cause__
    while cause is not None and cause not in errors:
        errors.append(cause)
        cause = cause.__cause__
    for link in errors:
        traceback.clear_frames(link.__traceback__)
