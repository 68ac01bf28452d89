"""Describe tasks' calls and answers for generated programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable


class AnswerField(NamedTuple):
    """A member of an entry of an answer.

    Attributes:
        name: its key.
        kind: ``text``, ``integer``, ``real`` or ``reals`` (a list of them); ``label`` is a class's name, with its
            number as ``index`` beside it; ``box`` a place on a picture; ``list`` has entries of its own.
        meaning: what it is, with its unit, as the end of a sentence.
        fields: of the entries of a ``list``.
        entry: what an entry of a ``list`` is called.
    """

    name: str
    kind: str
    meaning: str
    fields: tuple[AnswerField, ...] = ()
    entry: str = ""


class TaskCall(NamedTuple):
    """A way to ask a model.

    Attributes:
        verb: what the caller wants done, such as ``classify``.
        takes: ``picture``, ``sound``, ``text``, ``question``, ``comparison``, ``rows`` or ``items``.
        entry: what an entry of the answer is called, such as ``Detection``.
        fields: the entry's members; one that an answer does not have is 0, not a number, or empty.
    """

    verb: str
    takes: str
    entry: str
    fields: tuple[AnswerField, ...]


SCORE = AnswerField("score", "real", "the score, usually from 0 to 1")
CLASS = AnswerField("label", "label", "the class")
BOX = AnswerField("box", "box", "its position, in pixels of the upright picture")
RANKED = (CLASS, SCORE)


@runtime_checkable
class Structured(Protocol):
    """A task that describes its calls further."""

    def structure(self) -> Mapping[str, Any]:
        """Return what programs are written from, all of it optional.

        ``labels`` are class names by the index of answers; ``features`` the columns of a row, each ``{"name", "unit",
        "datatype"}``; ``target`` is ``{"name", "unit"}``, and ``targets`` a list of them if there are several;
        ``user`` says that a call names a user.
        """
        ...
