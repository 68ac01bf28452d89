"""Make identifiers for generated classes from arbitrary texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

MAX_IDENTIFIER = 60
"""Characters of an identifier; longer ones are cut."""

MAX_PACKAGE = 200
"""Characters of a package's name, far below the limits of file systems."""

_WORDS = """
    abstract as assert boolean break byte case catch char class const continue default
    do double else enum extends false final finally float for fun goto if implements
    import in instanceof int interface is long native new null object package private
    protected public record return sealed short static strictfp super switch
    synchronized this throw throws transient true try typealias typeof val var void
    volatile when while yield _
"""
RESERVED = frozenset(_WORDS.split())
"""Keywords of Java or Kotlin."""

_USED = """
    Any Array ArrayList BooleanArray Box Byte ByteArray ByteBuffer Datatype Double
    DoubleArray Float FloatArray IllegalArgumentException InferResult Int IntArray
    Integer JvmField JvmOverloads JvmStatic Label List Long LongArray Nv21 Object
    Outputs Override PocketServe PocketServeException PredictOptions Prediction Row
    ServedModel Short ShortArray String System Tensor TensorShape Throws TypedAnswer
    Unit
"""
USED_CLASSES = frozenset(_USED.split())
"""Classes that generated code uses or defines; no generated class has their names."""

_OF_TYPESCRIPT = """
    ArrayBuffer ArrayBufferView BigInt64Array BigUint64Array Blob Bytes FEATURES
    Float32Array Float64Array Infinity Inputs Int16Array Int32Array Int8Array LABELS NaN
    OUTPUTS Promise RangeError Uint16Array Uint32Array Uint8Array
"""
TYPESCRIPT_CLASSES = frozenset(_OF_TYPESCRIPT.split())
"""Further names that a generated TypeScript class uses."""

# Methods of every object, and members of generated classes, which no tensor or feature
# may hide.
_MEMBERS = """
    class equals getClass hashCode notify notifyAll options raw result toString values
    wait
"""
MEMBERS = frozenset(_MEMBERS.split())
_CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9_]{0,59}")
_PACKAGE_PART = re.compile(r"[a-z][a-z0-9_]*")


class NameFaultError(ValueError):
    """An unusable name; the text is one sentence with the way out."""


def _words(text: str) -> list[str]:
    """Return the words of a text in ASCII, without letters that have no equivalent."""
    normalized = unicodedata.normalize("NFKD", text[: 4 * MAX_IDENTIFIER])
    plain = normalized.encode("ascii", "ignore").decode("ascii")
    return re.findall(r"[A-Za-z0-9]+", plain)


def _upper_first(word: str) -> str:
    return word[:1].upper() + word[1:]


def camel_case(text: str, fallback: str) -> str:
    """Return a variable's name, such as ``sepalLength``."""
    first, *more = _words(text) or [fallback]
    name = first[:1].lower() + first[1:] + "".join(map(_upper_first, more))
    if not name[0].isalpha():
        name = fallback + name
    name = name[:MAX_IDENTIFIER]
    if name in RESERVED or name in MEMBERS:
        return f"{name}Value"
    return name


def constant_case(text: str, fallback: str, number: int) -> str:
    """Return a constant's name, such as ``SEPAL_LENGTH``.

    A text without letters gets a name such as ``LABEL_7``.
    """
    name = "_".join(_words(text)).upper() or f"{fallback}_{number}"
    if not name[0].isalpha():
        name = f"{fallback}_{name}"
    return name[:MAX_IDENTIFIER].rstrip("_")


def class_case(text: str, fallback: str = "Model") -> str:
    """Return a class's name, such as ``MobilenetV2``."""
    name = "".join(map(_upper_first, _words(text))) or fallback
    if not name[0].isalpha():
        name = fallback + name
    name = name[:MAX_IDENTIFIER]
    if name in USED_CLASSES:
        return f"{name}Model"
    return name


def distinct(names: Iterable[str]) -> list[str]:
    """Make names unique regardless of case.

    A repeated one gets its index, from 0.
    """
    used: set[str] = set()
    result = []
    for index, name in enumerate(names):
        candidate = name
        while candidate.casefold() in used:
            candidate = f"{candidate}_{index}"
        used.add(candidate.casefold())
        result.append(candidate)
    return result


def check_class(name: str, entries: Iterable[str] = ()) -> str:
    """Return the user's name of a class.

    Raises:
        NameFaultError: it is invalid, or in use.
    """
    if not _CLASS_NAME.fullmatch(name):
        raise NameFaultError(
            f"--class {name!r:.80} is not a class name; use one with a capital, such as "
            "Digits"
        )
    if name in USED_CLASSES or name in entries:
        raise NameFaultError(
            f"--class {name} is a name that the class uses itself; {name}Model is free"
        )
    return name


def check_package(name: str) -> str:
    """Return the user's name of a package.

    Raises:
        NameFaultError: it is invalid.
    """
    parts = name.split(".")
    is_valid = len(name) <= MAX_PACKAGE and parts[0] != "java"
    for part in parts:
        if part in RESERVED or not _PACKAGE_PART.fullmatch(part):
            is_valid = False
    if not is_valid:
        raise NameFaultError(
            f"--package {name!r:.80} is not a package name; use one such as "
            "com.example.app"
        )
    return name
