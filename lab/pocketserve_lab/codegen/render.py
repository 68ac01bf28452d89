"""Render this package's templates to a source file.

Equal metadata make equal bytes.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from pocketserve import __version__
from pocketserve_lab.codegen.escapes import capital, comment, java_string, kotlin_string
from pocketserve_lab.codegen.view import MAX_PARAMETERS, ModelView

EXTENSIONS = {"java": "java", "kotlin": "kt"}
"""The languages -> the suffix of their files."""


class ClassRequest(NamedTuple):
    """The requested class.

    Attributes:
        model: as the command names it.
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
            "--package",
            self.package,
            "--class",
            self.class_name,
        ]
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
    is_kotlin = request.language == "kotlin"
    environment = _environment(is_kotlin=is_kotlin)
    values = {
        "model": model,
        "request": request,
        "has_many_inputs": len(model.inputs) > MAX_PARAMETERS,
    }
    body = environment.get_template(f"{request.language}.j2").render(values)
    head = environment.get_template("head.j2").render(
        values,
        generator=__version__,
        imports=_imports(body, is_kotlin=is_kotlin),
        ending="" if is_kotlin else ";",
    )
    return head + body


def _environment(*, is_kotlin: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("pocketserve_lab.codegen"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # The result is no markup; the filters below escape.
        autoescape=False,
    )
    environment.filters["string"] = kotlin_string if is_kotlin else java_string
    environment.filters["comment"] = comment
    environment.filters["capital"] = capital
    return environment


def _imports(body: str, *, is_kotlin: bool) -> list[str]:
    """Return the full names of the classes that a source uses, sorted."""
    used = set(re.findall(r"\w+", body))
    if is_kotlin:
        used -= _OF_KOTLIN
    return sorted(name for short, name in _IMPORTS.items() if short in used)
