"""Write the pages of ``docs/generated`` that repeat tables of the code.

Usage: python tools/reference_pages.py [--check]

With ``--check`` nothing is written, and the exit code is 1 if a page is out of date.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pocketserve.config import GROUPS, SETTINGS
from pocketserve.runtimes.engines import ENGINES

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "generated"

FOLDERS = {
    "models_dir": "the embedded models",
    "token_file": "`token` in the user's state folder",
    "state_dir": "the user's state folder",
}
"""Defaults that differ between users."""

SETTINGS_PAGE = """# All settings

Every setting of `pocketserve serve`, by subject. [Configuration](../configuration.md) explains how to set one.
`tools/reference_pages.py` writes this page.
"""
TABLE_HEAD = """
## {title}

| setting | default | unit | purpose |
|---|---|---|---|
"""
ENGINES_PAGE = """# Other engines

The advice that you get if you name one of these engines in `--to`, `--device` or `model.toml`.
`tools/reference_pages.py` writes this page.

"""


def main(arguments: Sequence[str]) -> int:
    """Write or check the pages; return the exit code."""
    pages = {"settings.md": settings_page(), "other-engines.md": engines_page()}
    outdated = [name for name, text in pages.items() if text != _text_of(FOLDER / name)]
    if "--check" in arguments:
        for name in outdated:
            print(
                f"{name} is out of date: run python tools/reference_pages.py",
                file=sys.stderr,
            )
        return int(bool(outdated))
    for name in outdated:
        (FOLDER / name).write_text(pages[name], encoding="utf-8")
    return 0


def settings_page() -> str:
    """Return a page with a table for each group of settings."""
    text = SETTINGS_PAGE
    for title, names in settings_by_group():
        text += TABLE_HEAD.format(title=title.capitalize())
        for name in names:
            text += _row(name)
    return text


def settings_by_group() -> Iterator[tuple[str, list[str]]]:
    """Yield the groups of the command's help, and the settings outside of them."""
    grouped = [name for names in GROUPS.values() for name in names]
    yield "the folder", [name for name in SETTINGS if name not in grouped]
    for title, names in GROUPS.items():
        yield title, list(names)


def _row(name: str) -> str:
    field = SETTINGS[name]
    default = FOLDERS.get(name) or _default(field)
    unit, purpose = field.metadata["unit"], field.metadata["why"]
    return f"| `{name}` | {default} | {unit} | {purpose} |\n"


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in (None, ()):
        return "none"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`"


def engines_page() -> str:
    """Return a page with a paragraph for each engine."""
    return ENGINES_PAGE + "\n\n".join(f"{engine.advice}." for engine in ENGINES) + "\n"


def _text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8") if page.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
