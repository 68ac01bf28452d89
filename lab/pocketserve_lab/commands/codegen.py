"""``pocketserve codegen``: writes a model's class for an app."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.terminal.connection import (
    add_connection_options,
    open_client,
    reading_answers,
)
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.local import names_path, open_local, quiet_frameworks
from pocketserve.terminal.progress import Progress

if TYPE_CHECKING:
    from pocketserve_lab.codegen.view import ModelView

EXIT_FRESH, EXIT_STALE = 0, 1
LANGUAGES = ("java", "kotlin", "typescript")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "codegen",
        help="write a Java, Kotlin or TypeScript class for a model",
        description="Writes a class that sends requests to a model, with its names, labels "
        "and types. A path is opened in this process; a name is looked up on the running "
        "server, or with --local in a models folder. docs/codegen.md explains it.",
    )
    parser.add_argument(
        "model", metavar="FILE|MODEL", help="a model file or folder, or a model's name"
    )
    parser.add_argument(
        "--local",
        action="store_true",
        help="look the name up in a models folder, without a server",
    )
    parser.add_argument(
        "--models-dir",
        metavar="DIR",
        help="with --local: the models folder [the one that is served]",
    )
    parser.add_argument(
        "--language", required=True, choices=LANGUAGES, help="the language of the app"
    )
    parser.add_argument(
        "--package",
        metavar="NAME",
        help="the package of a Java or Kotlin class, such as com.example.app",
    )
    parser.add_argument(
        "--class",
        dest="class_name",
        metavar="NAME",
        help="the class [after the model's name]",
    )
    parser.add_argument(
        "--version",
        dest="model_version",
        metavar="NAME",
        help="bind the class to this version",
    )
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="the folder of sources, above the package",
    )
    target.add_argument(
        "--check",
        type=Path,
        metavar="FILE",
        help="write nothing; exit code 1 if FILE would change",
    )
    add_connection_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Write the class to a folder, or else to standard output."""
    file_name, source = _render(options)
    if options.check is not None:
        return _compare(options.check, source)
    if options.output is None:
        print(source, end="")
        return EXIT_FRESH
    folder = options.output
    if options.package:
        folder = folder.joinpath(*options.package.split("."))
    folder.mkdir(parents=True, exist_ok=True)
    path, part = folder / file_name, folder / f".{file_name}.part"
    part.write_bytes(source.encode("ascii"))
    os.replace(part, path)  # a build never sees half a class
    print(path)
    return EXIT_FRESH


def _render(options: argparse.Namespace) -> tuple[str, str]:
    """Return the name of the source file, and its text."""
    from pocketserve_lab.codegen.names import NameFaultError, check_class
    from pocketserve_lab.codegen.render import ClassRequest, render_class
    from pocketserve_lab.codegen.view import default_class

    try:
        _check_package(options)
        name, model = _read_model(options)
        used = _used_names(model, options.language)
        class_name = options.class_name or default_class(model.name, used)
        check_class(class_name, used)
    except NameFaultError as error:
        raise CommandError(str(error)) from None
    request = ClassRequest(
        name,
        options.language,
        options.package or "",
        class_name,
        options.model_version,
    )
    return request.file_name, render_class(model, request)


def _check_package(options: argparse.Namespace) -> None:
    """Check that the language's class has a valid package, or none."""
    from pocketserve_lab.codegen.names import NameFaultError, check_package

    if options.language == "typescript":
        if options.package:
            raise NameFaultError("TypeScript has no packages; leave out --package")
        return
    if not options.package:
        raise NameFaultError(
            f"a class in {options.language} needs --package, such as com.example.app"
        )
    check_package(options.package)


def _used_names(model: ModelView, language: str) -> set[str]:
    """Return the names that the class may not have."""
    from pocketserve_lab.codegen.names import TYPESCRIPT_CLASSES

    used = {entry.name for entry in model.entries}
    if language == "typescript":
        used |= TYPESCRIPT_CLASSES
    return used


def _read_model(options: argparse.Namespace) -> tuple[str, ModelView]:
    """Return the model's name and interface."""
    from pocketserve_lab.codegen.view import read_interface

    is_local = options.local or options.models_dir or names_path(options.model)
    with Progress().waiting(f"waiting for {options.model}, which may be loading"):
        name, answer = _read_local(options) if is_local else _ask_server(options)
    with reading_answers():
        return name, read_interface(answer)


def _ask_server(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the model's name and interface from the running server."""
    with open_client(options) as client:
        answer = client.model_interface(options.model, options.model_version)
    return options.model, answer


def _read_local(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the model's name and interface from its files."""
    from pocketserve.engine.interface import describe_interface

    service, name, version = open_local(options.model, options.models_dir)
    chosen_version = options.model_version or version
    try:
        with (
            quiet_frameworks(options),
            service.running(name, chosen_version) as (_, handle),
        ):
            return name, describe_interface(handle.model)
    finally:
        service.close()


def _compare(file: Path, source: str) -> int:
    try:
        is_fresh = file.read_bytes() == source.encode("ascii")
    except FileNotFoundError:
        raise CommandError(f"there is no {file}; write it with --output") from None
    if is_fresh:
        print(f"{file} is up to date")
        return EXIT_FRESH
    print(f"{file} is out of date: generate it again, with --output")
    return EXIT_STALE
