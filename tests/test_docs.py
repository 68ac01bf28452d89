"""Check the documents: examples run, tables match the code, links work."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest

import pocketserve_client
from conftest import MODELS, ROOT, Server, start_server
from pocketserve.api.routes import ROUTES
from pocketserve.config import SETTINGS
from pocketserve.repository.manifest import Manifest, parse_manifest
from pocketserve_wire import ErrorCode

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
    ROOT / "android_bridge" / "PROTOCOL.md",
    ROOT / "android_bridge" / "PAIRING.md",
    ROOT / "android_bridge" / "vectors" / "README.md",
]
CARDS = sorted(MODELS.glob("*/README.md"))


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path) -> Iterator[Block]:
    """Return all fenced blocks with a language."""
    text = document.read_text(encoding="utf-8")
    for match in re.finditer(
        r"^```([a-z][^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    ):
        yield Block(document, text[: match.start()].count("\n") + 1, match[1], match[2])


ALL_BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]


@pytest.fixture(scope="module")
def reader_environment(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Server, dict[str, str]]]:
    """Start a reader's server.

    Return the environment in which its token is found.
    """
    folder = tmp_path_factory.mktemp("docs")
    running = start_server(folder, MODELS)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "POCKETSERVE_URL": running.url,
        "POCKETSERVE_TOKEN_FILE": str(folder / "token"),
        # `bench --tune` writes there, and not into a user's home.
        "POCKETSERVE_STATE_DIR": str(folder / "state"),
    }
    yield running, environment
    assert running.stop() == 0


def run_block(block: Block, reader_environment: tuple[Server, dict[str, str]]) -> str:
    """Run a shell or Python block in the project's folder; return its output."""
    server, environment = reader_environment
    code = block.code.replace("127.0.0.1:8470", f"127.0.0.1:{server.port}")
    command = (
        ["bash", "-euo", "pipefail", "-c", code]
        if block.language == "sh"
        else [sys.executable, "-c", code]
    )
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.live
@pytest.mark.thorough
@pytest.mark.parametrize(
    "block", [b for b in ALL_BLOCKS if b.language in ("sh", "python")], ids=str
)
def test_examples_run(
    block: Block, reader_environment: tuple[Server, dict[str, str]]
) -> None:
    """Every shell and Python example succeeds and prints no error."""
    printed = run_block(block, reader_environment)
    assert printed.strip()
    assert '"error"' not in printed


@pytest.mark.live
@pytest.mark.conformance
@pytest.mark.parametrize(
    "block", [b for b in ALL_BLOCKS if b.language == "python conformance"], ids=str
)
def test_foreign_client_examples_run(
    block: Block, reader_environment: tuple[Server, dict[str, str]]
) -> None:
    """They run where those clients are installed."""
    assert run_block(block, reader_environment).strip()


def site_pages() -> list[Path]:
    """Return the pages that ``make docs`` builds, by its settings' patterns."""
    settings = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    pages = set()
    for pattern in settings["include_patterns"]:
        pages.update(
            path
            for path in ROOT.glob(pattern.replace("**.md", "**/*.md"))
            if path.suffix == ".md"
        )
    excluded = [
        pattern for pattern in settings["exclude_patterns"] if "*" not in pattern
    ]
    chosen = []
    for page in sorted(pages):
        name = page.relative_to(ROOT).as_posix()
        is_hidden = any(
            part.startswith(".") or part == "build" for part in Path(name).parts
        )
        if not is_hidden and not any(
            name.startswith(f"{folder}/") for folder in excluded
        ):
            chosen.append(page)
    return chosen


def test_links_of_the_site_lead_to_files() -> None:
    """Sphinx finds such faults, too, but is not installed for these tests."""
    pages = site_pages()
    assert ROOT / "docs" / "README.md" in pages
    assert ROOT / "models" / "digits" / "README.md" in pages
    dead = []
    for page in pages:
        text = re.sub(
            r"^```.*?^```$",
            "",
            page.read_text(encoding="utf-8"),
            flags=re.MULTILINE | re.DOTALL,
        )
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if ":" not in target and not (page.parent / unquote(target)).exists():
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert not dead


def test_manifest_examples_are_valid() -> None:
    shown = [block for block in ALL_BLOCKS if block.language == "toml file=model.toml"]
    assert shown
    for block in shown:
        assert parse_manifest(tomllib.loads(block.code)) != Manifest()


def test_every_setting_is_documented() -> None:
    """The page of all settings has one row per setting, with its purpose."""
    text = (ROOT / "docs" / "generated" / "settings.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z_]+)` \|(.*)\|$", text, re.MULTILINE))
    assert set(rows) == set(SETTINGS)
    for name, setting in SETTINGS.items():
        assert setting.metadata["why"] in rows[name], name


def test_generated_reference_pages_are_up_to_date() -> None:
    """``python tools/reference_pages.py`` writes them."""
    command = [sys.executable, str(ROOT / "tools" / "reference_pages.py"), "--check"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_error_code_is_documented() -> None:
    """The table has each code once, with its status."""
    text = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    documented = {
        code: (int(status), retry == "yes")
        for codes, status, retry in re.findall(
            r"^\| (`.*?`) \| (\d+) \| (yes|no) \|", text, re.MULTILINE
        )
        for code in re.findall(r"`([A-Z_]+)`", codes)
    }
    assert documented == {
        code.name: (code.status, code.retryable) for code in ErrorCode
    }


def test_the_site_leads_to_every_page() -> None:
    """Pages are in a list of the first page or among the recipes; client classes in one
    page.
    """
    first = ROOT / "docs" / "README.md"
    trees = re.findall(
        r"^```\{toctree\}\n(.*?)^```$",
        first.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    listed = [
        line for tree in trees for line in tree.splitlines() if line and line[0] != ":"
    ]
    assert len(listed) == len(set(listed))
    pages = {page.stem for page in first.parent.glob("*.md")} - {"README"}
    pages |= {f"generated/{page.stem}" for page in first.parent.glob("generated/*.md")}
    assert {
        name for name in listed if "/" not in name or name.startswith("generated/")
    } == pages
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    shown = set(
        re.findall(
            r"^\.\. auto(?:class|exception|function):: (\w+)", reference, re.MULTILINE
        )
    )
    assert shown == set(pocketserve_client.__all__) - {"__version__"}


def requirements(folder: Path) -> set[str]:
    """Return the names of the packages that a distribution needs."""
    settings = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    lines = "\n".join(settings["project"]["dependencies"])
    return set(re.findall(r"^[\w-]+", lines, re.MULTILINE))


def imported_packages(folder: Path) -> set[str]:
    """Return the top-level names that a folder's modules import."""
    names = set()
    for module in folder.rglob("*.py"):
        text = module.read_text(encoding="utf-8")
        names.update(re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE))
    return names


def test_every_requirement_is_listed() -> None:
    """The quickstart's table has exactly the core's packages."""
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    section = text.partition("The packages it installs")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)[1:]
    names = {name.lower() for row in rows for name in row.split(", ")}
    assert names == requirements(ROOT)
    assert "`pocketserve-client` alone needs NumPy and platformdirs." in section


def test_client_needs_only_packages_that_it_imports() -> None:
    assert requirements(ROOT / "client") == {"numpy", "platformdirs"}
    assert requirements(ROOT / "client") <= imported_packages(ROOT / "client")


def documented_paths() -> list[re.Pattern[str]]:
    """Return the overview's paths in ``docs/http.md``.

    ``[...]`` is optional, and an ellipsis matches any beginning.
    """
    rows = re.findall(
        r"^\| (`.*?) \|",
        (ROOT / "docs" / "http.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    spans = [span for row in rows for span in re.findall(r"`([^`]+)`", row)]
    paths = [re.sub(r"\?.*|^[A-Z ]+(or [A-Z]+ )?(?=[/…])", "", span) for span in spans]
    return [_path_pattern(path) for path in paths if path[0] in "/…"]


def _path_pattern(path: str) -> re.Pattern[str]:
    pattern = re.sub(r"\b(NAME|V|FILE)\b", "PLACE", path)
    pattern = re.escape(pattern).replace(r"\[", "(?:").replace(r"\]", ")?")
    return re.compile(pattern.replace("…", ".*").replace("PLACE", r"\{\w+\}"))


@pytest.mark.parametrize("pattern", sorted({route.pattern for route in ROUTES}))
def test_every_route_is_mentioned(pattern: str) -> None:
    """The overview has each route's whole path."""
    assert any(path.fullmatch(pattern) for path in documented_paths()), pattern


def test_patterns_match_documented_paths_only() -> None:
    path = _path_pattern("/v2/models/NAME[/versions/V]/infer")
    assert path.fullmatch("/v2/models/{model}/infer")
    assert path.fullmatch("/v2/models/{model}/versions/{version}/infer")
    assert not path.fullmatch("/v2/models/infer")
    assert not path.fullmatch("/v2/models/{model}/infers")


def anchors(document: Path) -> set[str]:
    """Return a document's anchors: those of headings on a forge, and explicit ones."""
    text = re.sub(
        r"^```.*?^```$",
        "",
        document.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    headings = []
    for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        headings.append(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line))
    slugs = [
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
        for heading in headings
    ]
    numbered = {
        f"{slug}-{count}" for slug in slugs for count in range(1, slugs.count(slug))
    }
    return {*slugs, *numbered, *re.findall(r'<a id="([^"]+)">', text)}


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *CARDS], ids=lambda path: str(path.relative_to(ROOT))
)
def test_links_and_anchors_exist(document: Path) -> None:
    for target, anchor in re.findall(
        r"\]\(([^)#]*)(?:#([^)]*))?\)", document.read_text(encoding="utf-8")
    ):
        if "://" not in target:
            file = document
            if target:
                file = document.parent / target
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), f"{target}#{anchor}"
