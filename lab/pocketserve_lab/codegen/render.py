"""Templates of this package become a source file; equal metadata make equal bytes."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from pocketserve import __version__
from pocketserve_lab.codegen.escapes import capital, comment, java_string, kotlin_string
from pocketserve_lab.codegen.view import MAX_PARAMETERS, ModelView

EXTENSIONS = {"java": "java", "kotlin": "kt"}
"""The languages -> how their files end."""


class ClassRequest(NamedTuple):
    """The class that a caller asks for."""

    model: str  # as the command named it
    language: str
    package: str
    class_name: str
    version: (
        str | None
    )  # that the class is bound to; None for the one that answers by default

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
        ]
        words += ["--class", self.class_name]
        return shlex.join(
            words + (["--version", self.version] if self.version is not None else [])
        )

    @property
    def file_name(self) -> str:
        """The name that the file must have."""
        return f"{self.class_name}.{EXTENSIONS[self.language]}"


_LIBRARY = """
    Box Datatype InferResult Nv21 PocketServe PocketServeException PredictOptions Prediction ServedModel Tensor
    TensorShape TypedAnswer
"""
_IMPORTS = {name: f"dev.pocketserve.bridge.{name}" for name in _LIBRARY.split()} | {
    "ByteBuffer": "java.nio.ByteBuffer",
    "ArrayList": "java.util.ArrayList",
    "List": "java.util.List",
}
_OF_KOTLIN = frozenset(("ArrayList", "List"))  # known there without an import


def render_class(model: ModelView, request: ClassRequest) -> str:
    """Return the source of a model's class, in ASCII."""
    environment = Environment(
        loader=PackageLoader("pocketserve_lab.codegen"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # no markup: the filters below escape for their place
    )
    is_kotlin = request.language == "kotlin"
    string = kotlin_string if is_kotlin else java_string
    environment.filters |= {"string": string, "comment": comment, "capital": capital}
    values = {
        "model": model,
        "request": request,
        "has_many_inputs": len(model.inputs) > MAX_PARAMETERS,
    }
    body = environment.get_template(f"{request.language}.j2").render(values)
    mentioned = set(re.findall(r"\w+", body)) - (_OF_KOTLIN if is_kotlin else set())
    imports = sorted(name for short, name in _IMPORTS.items() if short in mentioned)
    ending = "" if is_kotlin else ";"
    head = environment.get_template("head.j2").render(
        values, generator=__version__, imports=imports, ending=ending
    )
    return head + body
