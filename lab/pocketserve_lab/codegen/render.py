"""Render this package's templates to a source file.

Equal metadata make equal bytes.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from pocketserve import __version__
from pocketserve_lab.codegen.escapes import (
    capital,
    comment,
    java_string,
    kotlin_string,
    typescript_key,
    typescript_string,
)
from pocketserve_lab.codegen.view import MAX_PARAMETERS, ModelView

EXTENSIONS = {"java": "java", "kotlin": "kt", "typescript": "ts"}
"""The languages -> the suffix of their files."""


STRINGS = {
    "java": java_string,
    "kotlin": kotlin_string,
    "typescript": typescript_string,
}
"""The languages -> the function that writes a literal."""


class ClassRequest(NamedTuple):
    """The requested class.

    Attributes:
        model: as the command names it.
        package: empty for TypeScript.
        version: that the class is bound to; None for the default version.
    """

    model: str
    language: str
    package: str
    class_name: str
    version: str | None

    @property
    def command(self) -> str:
        """The command that makes the class again, on any machine."""
        words = [
            "pocketserve",
            "codegen",
            self.model,
            "--language",
            self.language,
        ]
        if self.package:
            words += ["--package", self.package]
        words += ["--class", self.class_name]
        if self.version is not None:
            words += ["--version", self.version]
        return shlex.join(words)

    @property
    def file_name(self) -> str:
        """The name that the file must have."""
        return f"{self.class_name}.{EXTENSIONS[self.language]}"


_LIBRARY = """
    Box Datatype InferResult Nv21 PocketServe PocketServeException PredictOptions
    Prediction ServedModel Tensor TensorShape TypedAnswer
"""
_IMPORTS = {name: f"dev.pocketserve.bridge.{name}" for name in _LIBRARY.split()} | {
    "ByteBuffer": "java.nio.ByteBuffer",
    "ArrayList": "java.util.ArrayList",
    "List": "java.util.List",
}
_OF_KOTLIN = frozenset(("ArrayList", "List"))
"""Classes that need no import in Kotlin."""


def render_class(model: ModelView, request: ClassRequest) -> str:
    """Return the source of a model's class, in ASCII."""
    environment = _environment(request.language)
    values = {
        "model": model,
        "request": request,
        "has_many_inputs": len(model.inputs) > MAX_PARAMETERS,
    }
    body = environment.get_template(f"{request.language}.j2").render(values)
    head = environment.get_template("head.j2").render(
        values,
        generator=__version__,
        imports=_imports(body, request.language),
        ending=";" if request.language == "java" else "",
    )
    return head + body


def _environment(language: str) -> Environment:
    environment = Environment(
        loader=PackageLoader("pocketserve_lab.codegen"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # The result is no markup; the filters below escape.
        autoescape=False,
    )
    environment.filters["string"] = STRINGS[language]
    environment.filters["key"] = typescript_key
    environment.filters["comment"] = comment
    environment.filters["capital"] = capital
    return environment


def _imports(body: str, language: str) -> list[str]:
    """Return the full names of the classes that a source uses, sorted."""
    if language == "typescript":
        return []  # one import, in the template
    used = set(re.findall(r"\w+", body))
    if language == "kotlin":
        used -= _OF_KOTLIN
    return sorted(name for short, name in _IMPORTS.items() if short in used)
