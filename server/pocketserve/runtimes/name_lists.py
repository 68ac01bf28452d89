"""Reads lists of allowed names, which runtimes keep in text files beside their modules."""

from __future__ import annotations

from importlib import resources


def read_names(package: str, file: str) -> dict[str, frozenset[str]]:
    """Return the names in a package's file by section: ``[SECTION]``, then names between spaces; ``#`` is a comment."""
    sections: dict[str, list[str]] = {}
    for line in resources.files(package).joinpath(file).read_text("ascii").splitlines():
        if line.startswith("["):
            names = sections.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            names += line.split()
    return {section: frozenset(names) for section, names in sections.items()}
