"""The common part of the tasks on pictures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import NO_HINTS, Answer, Arrays, Hints, Prepared, invalid_input, single_run
from pocketserve.tasks.labels import Labels
from pocketserve.tasks.vision.picture_input import PictureInput, is_tensor
from pocketserve.tensors import TensorSpec

if TYPE_CHECKING:
    from pocketserve.tasks.vision.drawing import Canvas


class PictureTask(ABC):
    """Takes a picture; also the input tensor's values as JSON or ``.npy``. Each task adds ``answer``.

    Args:
        picture: the only input.
        labels: names of what is answered; empty where none are known.
    """

    name: str
    answer_text: ClassVar[str]

    def __init__(self, picture: PictureInput, labels: Labels) -> None:
        self.labels = labels.names
        self._labels = labels
        self._picture = picture

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`; the context is the picture's placement in the input."""
        array, placement = self._picture.read(body, hints)
        return single_run({self._picture.spec.name: array}, placement)

    def annotate(self, body: memoryview, hints: Hints, runs: Sequence[Arrays], answer: Answer, context: Any) -> bytes:
        """See :class:`~pocketserve.tasks.base.Annotator`."""
        if is_tensor(body, hints):
            raise invalid_input("annotate needs a picture, the body holds numbers")
        from pocketserve.tasks.vision.drawing import Canvas  # late: few answers are drawn

        canvas = Canvas(body, hints, self._picture.max_pixels)
        self._draw(canvas, runs, answer, context)
        return canvas.png()

    @abstractmethod
    def _draw(self, canvas: Canvas, runs: Sequence[Arrays], answer: Answer, context: Any) -> None:
        """Draw an answer on its picture."""

    def describe(self) -> Mapping[str, str]:
        """See :class:`~pocketserve.tasks.base.Described`."""
        return {
            "input": "a picture (JPEG, PNG, WebP, BMP, GIF), or a camera frame with ?format=",
            "preprocessing": self._picture.describe(),
            "answer": self.answer_text,
            "example": "photo.jpg",
        }


def named_output(outputs: Sequence[TensorSpec], key: str, name: str) -> TensorSpec:
    """Return the output that a key of the manifest names.

    Raises:
        ModelLoadError: there is none.
    """
    for spec in outputs:
        if name in (spec.name, *spec.aliases):
            return spec
    names = ", ".join(repr(spec.name) for spec in outputs)
    raise ModelLoadError(f"model.toml: {key} names {name!r}; the model's outputs are {names}")
