"""The raw input that a task accepts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from pocketserve.inference.payload import RawInput, media_of
from pocketserve.tasks.base import AnswerOptions, Task
from pocketserve.tasks.encoded import MEDIA_KEYS
from pocketserve.tasks.form import Form, FormProvider

JSON: Final = "application/json"
TEXT_KEYS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "text": (("text",), ("text", "text_pair")),
    "texts": (("texts",),),
    "query": (("query", "texts"),),
    "question": (("question", "context"),),
    "items": (("items",), ("items", "user")),
}
"""Keys of the JSON objects that tasks take, by the kind of input (``Form.accepts``)."""


class RawInputs(NamedTuple):
    """The inputs of a request.

    Attributes:
        is_list: several could have been sent, so that each prediction names its input.
    """

    inputs: Sequence[RawInput]
    options: AnswerOptions
    is_list: bool = False


class Accepted(NamedTuple):
    """The raw input that a model takes.

    Attributes:
        kinds: as ``Form.accepts``.
        keys: names of fields and JSON keys that hold input.
        parameters: names of the request parameters that the task reads.
    """

    media: str
    kinds: tuple[str, ...]
    keys: Collection[str]
    parameters: tuple[str, ...]
    input_names: Collection[str]

    @property
    def objects(self) -> list[tuple[str, ...]]:
        """Return the keys of each JSON object that the task accepts."""
        objects: list[tuple[str, ...]] = []
        for kind in self.kinds:
            objects.extend(TEXT_KEYS.get(kind, ()))
        return objects


def accepted_by(task: Task, input_names: Collection[str]) -> Accepted:
    """Return the raw input that a task takes."""
    form = task.form() if isinstance(task, FormProvider) else Form(("file",))
    media = media_of(task)
    parameters = tuple(parameter.name for parameter in form.parameters)
    keys = _keys(form, media, input_names)
    return Accepted(media, form.accepts, keys, parameters, input_names)


def _keys(form: Form, media: str, input_names: Collection[str]) -> set[str]:
    """Return the names of fields and JSON keys that hold input."""
    keys: set[str] = set()
    if media:
        keys.update(MEDIA_KEYS[media], input_names)
    elif "rows" in form.accepts:
        keys.update(feature.name for feature in form.features)
    elif "tensors" in form.accepts:
        keys.update(input_names)
    for kind in form.accepts:
        for names in TEXT_KEYS.get(kind, ()):
            keys.update(names)
    return keys


def field_name(name: str) -> str:
    """Return a field's name without trailing brackets.

    Some libraries add them to names of lists.
    """
    return name.removesuffix("[]")
