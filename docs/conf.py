"""Settings of the site that ``make docs`` builds. Its root is the project, whose pages link to each other."""

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("server", "client", "lab")]

from pocketserve_wire.version import __version__  # noqa: E402

project = "Pocketserve"
author = project_copyright = "The Pocketserve authors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/README"
include_patterns = [
    "*.md",
    *(
        f"{folder}/**.md"
        for folder in ("android_bridge", "benchmarks", "docs", "models", "tests")
    ),
]
# Links of the templates are right once they are rendered.
exclude_patterns = ["**/build", "**/.*", "models/recipes/templates"]
myst_heading_anchors = 6
# Blocks of bytes and of CSV have no colours; cards and decisions are reached by links.
suppress_warnings = ["misc.highlighting_failure", "toc.not_included"]
autodoc_typehints = "description"
html_theme = "furo"
html_title = f"Pocketserve {release}"
html_show_sourcelink = html_copy_source = False


def setup(app: Any) -> None:
    """Connect what happens before a page is parsed, and at the end."""
    app.connect("source-read", _name_anchors)
    app.connect("build-finished", _write_index)


def _name_anchors(app: Any, page: str, source: list[str]) -> None:
    """Turn a forge's anchors, ``<a id="x"></a>`` on a line of its own, into targets of the generator."""
    source[0] = re.sub(
        r'^<a id="([\w-]+)"></a>$', r"(\1)=", source[0], flags=re.MULTILINE
    )


def _write_index(app: Any, error: Exception | None) -> None:
    """Lead from the site's folder to its first page."""
    page = f'<!doctype html><title>Pocketserve</title><meta http-equiv="refresh" content="0; url={root_doc}.html">'
    (Path(app.outdir) / "index.html").write_text(page + "\n", encoding="utf-8")
