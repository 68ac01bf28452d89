"""Read lists of allowed names from text files of a package."""

from __future__ import annotations

from importlib import resources


def read_names(package: str, file: str) -> dict[str, frozenset[str]]:
    """Return the names in a package's file by section.

    A section begins with ``[SECTION]``; names are separated by whitespace; ``#`` begins
    a comment line.
    """
    sections: dict[str, list[str]] = {}
    text = resources.files(package).joinpath(file).read_text("ascii")
    names: list[str] = []
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            names = sections.setdefault(section, [])
        elif not line.startswith("#"):
            names += line.split()
    frozen = {}
    for section, names in sections.items():
        frozen[section] = frozenset(names)
    return frozen
