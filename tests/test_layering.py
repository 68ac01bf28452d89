"""Check imports, in the sources and in fresh interpreters."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketserve_lab.convert.registry import converters

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ("pocketserve_client", "pocketserve_wire")
LAB = ("pocketserve_lab", "pocketserve_scale", "pocketserve_simulate")
SOURCES = {
    **dict.fromkeys(CLIENT, ROOT / "client"),
    "pocketserve": ROOT / "server",
    **dict.fromkeys(LAB, ROOT / "lab"),
}
COMMAND_LINE = "pocketserve.cli"
FRONT_DOOR = "pocketserve.__main__"
FRAMEWORKS = {"torch", "tensorflow", "ai_edge_litert", "tflite_runtime", "onnxruntime"}
LATE = FRAMEWORKS | {"PIL", "prometheus_client"}
SLOW = {
    "subprocess",
    "difflib",
    "email",
    "zipfile",
    "http",
    "gzip",
    "secrets",
    "random",
    "tempfile",
    "colorsys",
}
"""Parts of the standard library that a start avoids: they would take a twentieth of its
time.
"""

TRAINING = (
    "pocketserve_lab.compress.recipes.",
    "pocketserve_lab.compress.training",
    "pocketserve_lab.compress.tool",
)

SOCKET = {
    "pocketserve.transports.socket.connection",
    "pocketserve_wire.frames",
    "pocketserve_wire.handshake",
}
"""Modules of the socket protocol are loaded with its first connection; NumPy's types
are for type checkers only.
"""


def files(package: str) -> list[Path]:
    """Return the source files of a package, or of one module."""
    top, *rest = package.split(".")
    path = SOURCES[top].joinpath(top, *rest)
    found = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    assert found and all(file.is_file() for file in found), (
        f"{package} has no source files"
    )
    return found


def module_of(path: Path) -> str:
    """Return the dotted name of a source file's module; packages keep ``__init__``."""
    root = next(root for root in SOURCES.values() if path.is_relative_to(root))
    return ".".join(path.relative_to(root).with_suffix("").parts)


def targets(node: ast.AST, module: str) -> list[str]:
    """Return the dotted names that an import statement may load."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = ""
    if node.level:
        base = ".".join(module.split(".")[: -node.level])
    start = ".".join(part for part in (base, node.module) if part)
    return [start, *(f"{start}.{alias.name}" for alias in node.names)]


def type_checking(node: ast.AST) -> bool:
    """Return whether a node is an ``if TYPE_CHECKING:``, whose imports never run."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


IMPORTERS = ast.stmt | ast.excepthandler | ast.match_case
"""The kinds of nodes that can contain an import; expressions cannot."""


def walk(tree: ast.AST, *, into_functions: bool) -> Iterator[ast.AST]:
    """Yield the statements that run, at import or later."""
    pending = [tree]
    while pending:
        node = pending.pop()
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, IMPORTERS) or type_checking(child):
                continue
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and not into_functions:
                continue
            yield child
            pending.append(child)


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a source file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path, *, into_functions: bool = True) -> set[str]:
    """Return every module that a source file imports."""
    nodes = walk(parsed(path), into_functions=into_functions)
    return {target for node in nodes for target in targets(node, module_of(path))}


def reaches(target: str, package: str) -> bool:
    """Return whether a dotted name is that package or below it."""
    return target == package or target.startswith(f"{package}.")


def offenders(package: str, *forbidden: str) -> list[str]:
    """Return a package's imports that reach a forbidden package."""
    return [
        f"{module_of(path)} imports {target}"
        for path in files(package)
        for target in sorted(imports(path))
        if any(reaches(target, name) for name in forbidden)
    ]


ALLOWED = {
    "pocketserve_wire": {"pocketserve_wire"},
    "pocketserve_client": {
        "pocketserve_client",
        "pocketserve_wire",
        "numpy",
        "requests",
        "platformdirs",
    },
    "pocketserve.tensors": {"pocketserve_wire", "numpy"},
}


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_listed_ones(package: str) -> None:
    """The wire needs the standard library only, the client a phone's usual packages."""
    used = {
        target.partition(".")[0] for path in files(package) for target in imports(path)
    }
    assert used - ALLOWED[package] - sys.stdlib_module_names == set()


API = [
    "pocketserve.api",
    "pocketserve.service",
    "pocketserve.server",
    "pocketserve.terminal",
]
MODELS = [
    f"pocketserve.{name}"
    for name in ("repository", "runtimes", "tasks", "engine", "inference")
]
HTTP = ["flask", "werkzeug", "waitress", "pocketserve.transports"]
FORBIDDEN = {
    "pocketserve_wire": [
        "pocketserve",
        *LAB,
        "pocketserve_client",
        "socket",
        "socketserver",
        "http",
        "asyncio",
        "ssl",
    ],
    "pocketserve_client": ["pocketserve", *LAB],
    "pocketserve": [*LAB],  # its command line finds their commands by entry points
    "pocketserve.config": [*HTTP, *API, "pocketserve.engine", "pocketserve_client"],
    "pocketserve.auth": [*HTTP, *API, *MODELS, "pocketserve_client"],
    "pocketserve.formats": [
        *HTTP,
        *API,
        *MODELS,
        "pocketserve.state",
        "pocketserve_client",
    ],
    "pocketserve.state": [
        *HTTP,
        *API,
        *MODELS,
        "pocketserve.trust",
        "pocketserve_client",
    ],
    "pocketserve.runtimes": [
        *HTTP,
        *API,
        "pocketserve.engine",
        "pocketserve.tasks",
        "pocketserve_client",
    ],
    "pocketserve.tasks": [*HTTP, *API, "pocketserve.engine", "pocketserve_client"],
    "pocketserve.repository": [
        *HTTP,
        *API,
        "pocketserve.engine",
        "pocketserve.tasks",
        "pocketserve_client",
    ],
    "pocketserve.engine": [*HTTP, *API, "pocketserve.inference", "pocketserve_client"],
    "pocketserve.engine.device": [
        "pocketserve.engine.lifecycle",
        "pocketserve.engine.scheduling",
    ],
    "pocketserve.engine.scheduling": [
        "pocketserve.engine.engine",
        "pocketserve.engine.lifecycle",
    ],
    "pocketserve.engine.lifecycle": [
        "pocketserve.engine.engine",
        "pocketserve.quarantine",
    ],
    "pocketserve.child": [
        *HTTP,
        *API,
        "pocketserve.repository",
        "pocketserve.runtimes",
        "pocketserve.tasks",
        "pocketserve.inference",
        "pocketserve_client",
    ],
    "pocketserve.quarantine": [*HTTP, *API, "pocketserve_client"],
    "pocketserve.doctor": [*HTTP, *API, "pocketserve_client", "requests"],
    "pocketserve.terminal": [*HTTP, "pocketserve.api", "pocketserve.server"],
    "pocketserve_lab.convert": [
        *HTTP,
        "pocketserve.api",
        "pocketserve.server",
        "pocketserve_client",
    ],
    "pocketserve_lab.convert.converter": [
        *HTTP,
        *API,
        *MODELS,
        "pocketserve_lab.convert.registry",
        "numpy",
    ],
    "pocketserve_lab.compress": [
        *HTTP,
        "pocketserve.api",
        "pocketserve.server",
        "pocketserve_client",
    ],
    "pocketserve_lab.compress.recipes": [
        *HTTP,
        *API,
        "pocketserve.engine",
        "pocketserve.tasks",
        "pocketserve.repository",
    ],
    "pocketserve.system": [*HTTP, *API, "pocketserve.engine", "pocketserve_client"],
    "pocketserve_simulate": [
        *HTTP,
        "pocketserve.api",
        "pocketserve.service",
        "pocketserve.server",
    ],
    "pocketserve.inference": [*HTTP, *API, "pocketserve_client"],
    "pocketserve.inference.inputs": [
        "pocketserve.inference.compile",
        "pocketserve.inference.operations",
        "pocketserve.inference.tensor_operation",
        "pocketserve.inference.task_operation",
        "pocketserve.inference.call",
    ],
    "pocketserve.inference.tensor_operation": [
        "pocketserve.inference.operations",
        "pocketserve.inference.task_operation",
        "pocketserve.inference.call",
    ],
    "pocketserve.inference.task_operation": [
        "pocketserve.inference.operations",
        "pocketserve.inference.tensor_operation",
        "pocketserve.inference.call",
    ],
    "pocketserve.service": [
        *HTTP,
        "pocketserve.api",
        "pocketserve.server",
        "pocketserve_client",
    ],
    "pocketserve.local": [*HTTP, "pocketserve.server"],
    "pocketserve.testing": [*HTTP, *API, "pocketserve.server"],
    "pocketserve.api": [
        *HTTP,
        "pocketserve.server",
        "pocketserve_client",
    ],
    "pocketserve_scale": [
        "flask",
        "werkzeug",
        "pocketserve.tasks",
        "pocketserve_lab.convert",
        "pocketserve_client",
    ],
    "pocketserve.transports.socket": [
        "flask",
        "werkzeug",
        "waitress",
        "pocketserve.transports.http",
    ],
    "pocketserve.transports": [
        "pocketserve.server",
        "pocketserve_client",
    ],
}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_nothing_is_imported_upward(package: str) -> None:
    """Each layer knows only those below it."""
    assert offenders(package, *FORBIDDEN[package]) == []


def test_nothing_imports_the_command_line() -> None:
    """Shared parts of commands are below ``pocketserve.cli``, also for the lab."""
    importing = [
        offender
        for package in SOURCES
        for offender in offenders(package, COMMAND_LINE)
        if not reaches(offender.partition(" ")[0], COMMAND_LINE)
    ]
    assert {line.partition(" ")[0] for line in importing} == {FRONT_DOOR}


def test_forbidden_modules_exist() -> None:
    """A renamed module stays forbidden."""
    names = {name for forbidden in FORBIDDEN.values() for name in forbidden}
    assert [
        name for name in sorted(names) if importlib.util.find_spec(name) is None
    ] == []


def imports_by_module(*, into_functions: bool) -> dict[str, set[str]]:
    """Return our modules that each of our modules imports.

    A package stands for its ``__init__``.
    """
    ours = {
        module_of(path).removesuffix(".__init__"): path
        for package in SOURCES
        for path in files(package)
    }
    graph: dict[str, set[str]] = {module: set() for module in ours}
    for module, path in ours.items():
        for node in walk(parsed(path), into_functions=into_functions):
            named = targets(node, module_of(path))
            if isinstance(node, ast.ImportFrom) and all(
                name in ours for name in named[1:]
            ):
                # ``from package import module`` doesn't use the package itself.
                del named[0]
            graph[module].update(name for name in named if name in ours)
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return modules that import themselves indirectly, with the modules in between."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        found: set[str] = set()
        ahead = [start]
        while ahead:
            new = graph[ahead.pop()] - found
            found |= new
            ahead += new
        reached[start] = found
    knots = {
        frozenset(other for other in found if start in reached[other])
        for start, found in reached.items()
    }
    return sorted(sorted(knot) for knot in knots if knot)


@pytest.mark.parametrize("into_functions", [False, True], ids=["at import", "ever"])
def test_there_are_no_import_cycles(into_functions: bool) -> None:
    """Late imports count, too, so that each module can be understood from those below
    it.

    Imports for type checkers load nothing and don't count.
    """
    assert circles(imports_by_module(into_functions=into_functions)) == []


def test_the_search_finds_cycles_only() -> None:
    """Two paths to the same module are not a cycle."""
    graph = {
        "a": {"b", "c"},
        "b": {"d"},
        "c": {"d"},
        "d": set[str](),
        "e": {"f"},
        "f": {"g", "a"},
        "g": {"e"},
    }
    assert circles(graph) == [["e", "f", "g"]]
    assert circles(graph | {"d": {"b"}}) == [["b", "d"], ["e", "f", "g"]]


@pytest.mark.parametrize("package", SOURCES)
def test_frameworks_are_imported_late(package: str) -> None:
    """The same applies to Pillow and the metrics library."""
    early = {
        f"{module_of(path)} imports {target}"
        for path in files(package)
        for target in imports(path, into_functions=False)
        if target.partition(".")[0] in LATE
    }
    assert early == set()


@pytest.mark.parametrize("package", SOURCES)
def test_source_roots_are_not_packages(package: str) -> None:
    """``server`` and ``client`` contain packages, and are never imported."""
    assert offenders(package, "server", "client") == []
    assert not (SOURCES[package] / "__init__.py").exists()


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS - {"onnxruntime"}))
def test_only_runtimes_import_frameworks(framework: str) -> None:
    """Only ``runtimes`` and the processes of tools import one, even late."""
    users = {
        offender.partition(" ")[0]
        for package in SOURCES
        for offender in offenders(package, framework)
    }
    assert all(
        user.startswith(
            ("pocketserve.runtimes.", "pocketserve_lab.convert.tools.", *TRAINING)
        )
        for user in users
    )


def test_tools_of_converters_stand_alone() -> None:
    """They run in environments with NumPy and without the server's packages.

    Of ours, they import the contract, each other, and readers of models and the
    comparison of outputs, which only need NumPy. Tools without an environment run beside
    the server.
    """
    at_home = set()
    for entry in converters():
        if entry.environment is None and entry.fallback is None:
            at_home.add(entry.module)
    paths = [
        path
        for path in files("pocketserve_lab.convert.tools")
        if path.stem not in at_home
    ]
    ours = {target for path in paths for target in imports(path)}
    lab = [
        f"pocketserve_lab.convert.{name}" for name in ("converter", "tools", "verify")
    ]
    server = [f"pocketserve.{name}" for name in ("runtimes", "messages", "tensors")]
    allowed = [*lab, *server]
    wrong = {
        t
        for t in ours
        if t.split(".")[0] in SOURCES and not any(reaches(t, name) for name in allowed)
    }
    assert (
        wrong - {"pocketserve", "pocketserve_lab", "pocketserve_lab.convert"} == set()
    )


def test_the_reader_finds_every_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees late, relative and dotted imports, but none for type checkers only."""
    path = tmp_path / "pocketserve" / "cli" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import a.b\nfrom . import c\nfrom ..d import e\n"
        "if TYPE_CHECKING:\n    import never\n"
        "try:\n    import f\nexcept ImportError:\n    import g\n"
        "class K:\n    import h\n    def m(self):\n        import late\n"
    )
    monkeypatch.setitem(SOURCES, "pocketserve", tmp_path)
    early = {
        "a.b",
        "pocketserve.cli",
        "pocketserve.cli.c",
        "pocketserve.d",
        "pocketserve.d.e",
        "f",
        "g",
        "h",
    }
    assert imports(path, into_functions=False) == early
    assert imports(path) == early | {"late"}


def loaded_by(statement: str) -> set[str]:
    """Return the modules in a fresh interpreter after a statement."""
    code = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    folders = os.pathsep.join(str(root) for root in dict.fromkeys(SOURCES.values()))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **{k: v for k, v in os.environ.items() if k != "XDG_STATE_HOME"},
            "SHELL": "sh",
            "PYTHONPATH": folders,
        },
        capture_output=True,
        check=True,
        timeout=60,
    )
    return set(json.loads(done.stdout))


UNWANTED_MODULES = [
    (
        "import pocketserve_wire.oip",
        {*LATE, "numpy", "requests", "flask", "socket", "pocketserve"},
    ),
    ("import pocketserve", {*LATE, "numpy", "requests", "flask", "waitress"}),
    (
        "import pocketserve.server",
        {
            *LATE,
            "requests",
            "flask",
            "werkzeug",
            "platformdirs",
            "numpy.typing",
            *LAB,
        }
        | SLOW
        | SOCKET,
    ),
    (
        "import pocketserve.cli as c; c.command_parser([])",
        {*LATE, "numpy", "requests", "flask", "waitress"},
    ),
    (
        "import pocketserve.cli as c; c.command_parser(['serve'])",
        {
            *LATE,
            *LAB,
            "importlib.metadata",
            "numpy",
            "requests",
            "flask",
            "waitress",
        },
    ),
    (
        "import pocketserve.config as c; c.load_config({}, {})",
        {"platformdirs", "tempfile", "numpy"},
    ),
    (
        "import pocketserve.transports.socket.connection",
        {*LATE, "requests", "flask", "werkzeug", "waitress"},
    ),
    (
        "import pocketserve.runtimes.registry as r; [r.runtime_for(k) for k in r.FORMATS]",
        LATE,
    ),
    (
        "import pocketserve_client",
        {*LATE, "requests", "flask", "waitress", "pocketserve"},
    ),
]


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    UNWANTED_MODULES,
    ids=[
        "wire",
        "pocketserve",
        "server",
        "help",
        "command",
        "settings",
        "socket",
        "runtimes",
        "client",
    ],
)
def test_imports_load_no_heavy_modules(statement: str, unwanted: set[str]) -> None:
    """The server starts without frameworks, picture library, metrics or client."""
    # An older NumPy imports some of them by itself.
    assert (
        loaded_by(statement)
        & unwanted - (set() if "numpy" in unwanted else loaded_by("import numpy"))
        == set()
    )
