"""Run a model in this process, as a server would."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from pocketserve.local.opening import open_model
from pocketserve_client.inputs import RawInput, raw_body
from pocketserve_client.transport import OCTETS, LabelledAnswer, Picture

if TYPE_CHECKING:
    from pocketserve.service import Service


class LocalModel:
    """A model that is loaded by its first request and unloaded by :meth:`close`.

    Threads may share it. It is a context manager, and ``model(data)`` is short for
    ``model.predict(data)``.

    Attributes:
        version: the version to use; None for the default one.
    """

    def __init__(self, service: Service, name: str, version: str | None) -> None:
        self._service = service
        self.name = name
        self.version = version

    def __enter__(self) -> LocalModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        version = "" if self.version is None else f", version {self.version!r}"
        return f"<model {self.name!r}{version}>"

    def close(self) -> None:
        """Unload the model."""
        self._service.close()

    @property
    def versions(self) -> list[str]:
        """The names of the model's versions."""
        return list(self._service.entry(self.name).versions)

    @overload
    def predict(
        self,
        data: RawInput,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        annotate: Literal["both"] | None = ...,
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
    ) -> LabelledAnswer: ...
    @overload
    def predict(
        self,
        data: RawInput,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        annotate: Literal["png", "jpeg"],
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
    ) -> Picture: ...
    def predict(
        self,
        data: RawInput,
        *,
        top_k: int | None = None,
        threshold: float | None = None,
        annotate: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        content_type: str = OCTETS,
    ) -> LabelledAnswer | Picture:
        """Predict from raw input, like :meth:`pocketserve_client.Client.predict`.

        Raises:
            pocketserve_wire.ApiError: the model cannot be loaded, or the input does not
                fit.
        """
        # late: opening a model needs none of it
        from pocketserve.api import predictions
        from pocketserve.api.messages import ApiRequest

        values: dict[str, Any] = {
            "version": self.version,
            "top_k": top_k,
            "threshold": threshold,
            "annotate": "png" if annotate == "both" else annotate,
        }
        values.update(parameters or {})
        request = ApiRequest(
            path={"model": self.name},
            query=_query_texts(values),
            body=memoryview(raw_body(data)),
            content_type=content_type,
        )
        prediction = predictions.ask(self._service, request)
        picture = prediction.picture
        if picture is not None and annotate != "both":
            return Picture(picture)
        answer = LabelledAnswer(predictions.document(prediction))
        if picture is not None:
            answer["picture"] = base64.b64encode(picture).decode("ascii")
        return answer

    __call__ = predict


def _query_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Convert parameters to texts as in a URL; None is omitted."""
    query = {}
    for key, value in values.items():
        if isinstance(value, bool):
            query[key] = str(value).lower()
        elif value is not None:
            query[key] = str(value)
    return query


def open_for_program(
    model: str | Path,
    *,
    version: str | None = None,
    models_dir: str | Path | None = None,
    threads: int = 0,
) -> LocalModel:
    """Open a model in this process; see :func:`pocketserve.load`."""
    folder = None if models_dir is None else str(models_dir)
    text = str(model)
    if isinstance(model, Path) and "/" not in text:
        # With a slash it is a path, even if a model has that name.
        text = os.path.join(".", text)
    service, name, own_version = open_model(text, folder, threads=threads)
    return LocalModel(service, name, version or own_version)
