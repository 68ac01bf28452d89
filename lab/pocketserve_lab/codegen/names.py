"""Identifiers for Java and Kotlin, made from texts that anybody may have written."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

MAX_IDENTIFIER = 60  # characters; longer ones are cut
MAX_PACKAGE = 200  # characters, far below what file systems take

_WORDS = """
    abstract as assert boolean break byte case catch char class const continue default do double else enum extends false
    final finally float for fun goto if implements import in instanceof int interface is long native new null object
    package private protected public record return sealed short static strictfp super switch synchronized this throw
    throws transient true try typealias typeof val var void volatile when while yield _
"""
RESERVED = frozenset(_WORDS.split())
"""Words that mean something in Java or in Kotlin."""

_USED = """
    Any Array ArrayList BooleanArray Box Byte ByteArray ByteBuffer Datatype Double DoubleArray Float FloatArray
    IllegalArgumentException InferResult Int IntArray Integer JvmField JvmOverloads JvmStatic Label List Long LongArray
    Nv21 Object Outputs Override PocketServe PocketServeException PredictOptions Prediction Row ServedModel Short
    ShortArray String System Tensor TensorShape Throws TypedAnswer Unit
"""
USED_CLASSES = frozenset(_USED.split())
"""Classes that generated ones mention or hold, so that none of these can be called so."""

# Methods that every object has, and members of generated classes that no tensor or feature may hide.
_MEMBERS = "class equals getClass hashCode notify notifyAll options raw result toString values wait"
MEMBERS = frozenset(_MEMBERS.split())
_CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9_]{0,59}")
_PACKAGE_PART = re.compile(r"[a-z][a-z0-9_]*")


class NameFaultError(ValueError):
    """A name that cannot be used; the text is one sentence with the way out."""


def _words(text: str) -> list[str]:
    """Return the words of a text in ASCII; letters without a relative there are left out."""
    plain = (
        unicodedata.normalize("NFKD", text[: 4 * MAX_IDENTIFIER])
        .encode("ascii", "ignore")
        .decode("ascii")
    )
    return re.findall(r"[A-Za-z0-9]+", plain)


def camel_case(text: str, fallback: str) -> str:
    """Return a name of a variable, such as ``sepalLength``."""
    first, *more = _words(text) or [fallback]
    name = (
        first[:1].lower()
        + first[1:]
        + "".join(word[:1].upper() + word[1:] for word in more)
    )
    name = name if name[0].isalpha() else fallback + name
    name = name[:MAX_IDENTIFIER]
    return f"{name}Value" if name in RESERVED or name in MEMBERS else name


def constant_case(text: str, fallback: str, number: int) -> str:
    """Return a name of a constant, such as ``SEPAL_LENGTH``; ``LABEL_7`` for a text without letters of its own."""
    name = "_".join(_words(text)).upper() or f"{fallback}_{number}"
    name = name if name[0].isalpha() else f"{fallback}_{name}"
    return name[:MAX_IDENTIFIER].rstrip("_")


def class_case(text: str, fallback: str = "Model") -> str:
    """Return a name of a class, such as ``MobilenetV2``."""
    name = "".join(word[:1].upper() + word[1:] for word in _words(text)) or fallback
    name = (name if name[0].isalpha() else fallback + name)[:MAX_IDENTIFIER]
    return f"{name}Model" if name in USED_CLASSES else name


def distinct(names: Iterable[str]) -> list[str]:
    """Return the names so that no two are alike, whatever their case: one that came before gets its place, from 0."""
    used: set[str] = set()
    result = []
    for place, name in enumerate(names):
        candidate = name
        while candidate.casefold() in used:
            candidate = f"{candidate}_{place}"
        used.add(candidate.casefold())
        result.append(candidate)
    return result


def check_class(name: str, entries: Iterable[str] = ()) -> str:
    """Return a class's name that somebody chose; NameFaultError where no class can be called so."""
    if not _CLASS_NAME.fullmatch(name):
        raise NameFaultError(
            f"--class {name!r:.80} is no name of a class; it begins with a capital, such as Digits"
        )
    if name in USED_CLASSES or name in entries:
        raise NameFaultError(
            f"--class {name} is a name that the class itself uses; {name}Model is free"
        )
    return name


def check_package(name: str) -> str:
    """Return a package's name; NameFaultError where none can be called so."""
    parts = name.split(".")
    usable = all(
        _PACKAGE_PART.fullmatch(part) and part not in RESERVED for part in parts
    )
    if not usable or len(name) > MAX_PACKAGE or parts[0] == "java":
        raise NameFaultError(
            f"--package {name!r:.80} is no name of a package; it is one such as com.example.app"
        )
    return name
