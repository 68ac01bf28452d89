"""Who may import whom: read from the source, and from what a fresh interpreter has loaded."""

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
"""Parts of the standard library that a start does without: together they cost it a twentieth."""

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
"""What speaks the socket protocol waits for its first connection; NumPy's types are for type checkers only."""


def files(package: str) -> list[Path]:
    """The source files of a package such as ``pocketserve.tasks``, or the one file of a module."""
    top, *rest = package.split(".")
    path = SOURCES[top].joinpath(top, *rest)
    found = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    assert found and all(file.is_file() for file in found), (
        f"{package} has no source files"
    )
    return found


def module_of(path: Path) -> str:
    """The dotted name of a source file's module; a package keeps its ``__init__``."""
    root = next(root for root in SOURCES.values() if path.is_relative_to(root))
    return ".".join(path.relative_to(root).with_suffix("").parts)


def targets(node: ast.AST, module: str) -> list[str]:
    """The dotted names that an import statement may load; other nodes load none."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = ".".join(module.split(".")[: -node.level]) if node.level else ""
    start = ".".join(part for part in (base, node.module) if part)
    return [start, *(f"{start}.{alias.name}" for alias in node.names)]


def type_checking(node: ast.AST) -> bool:
    """Whether a node is an ``if TYPE_CHECKING:``, whose imports never run."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def walk(node: ast.AST, *, into_functions: bool) -> Iterator[ast.AST]:
    """The nodes that run, when a module is imported or at any time."""
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        )
        if type_checking(child) or (is_function and not into_functions):
            continue
        yield child
        yield from walk(child, into_functions=into_functions)


@functools.cache
def imports(path: Path, *, into_functions: bool = True) -> set[str]:
    """Every module that a source file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = walk(tree, into_functions=into_functions)
    return {target for node in nodes for target in targets(node, module_of(path))}


def reaches(target: str, package: str) -> bool:
    """Whether a dotted name is that package or lies in it."""
    return target == package or target.startswith(f"{package}.")


def offenders(package: str, *forbidden: str) -> list[str]:
    """The imports of a package that reach something forbidden."""
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
def test_all_that_a_package_may_import(package: str) -> None:
    """The wire needs the standard library only; the client adds what a phone's Python has anyway."""
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
    """A request goes straight from room to room; no room knows those in front of it."""
    assert offenders(package, *FORBIDDEN[package]) == []


def test_nothing_imports_the_command_line() -> None:
    """Commands share what they need below ``pocketserve.cli``, also with the lab."""
    importing = [
        offender
        for package in SOURCES
        for offender in offenders(package, COMMAND_LINE)
        if not reaches(offender.partition(" ")[0], COMMAND_LINE)
    ]
    assert {line.partition(" ")[0] for line in importing} == {FRONT_DOOR}


def test_what_is_forbidden_exists() -> None:
    """A module that was renamed is forbidden by its new name."""
    names = {name for forbidden in FORBIDDEN.values() for name in forbidden}
    assert [
        name for name in sorted(names) if importlib.util.find_spec(name) is None
    ] == []


def neighbours(*, into_functions: bool) -> dict[str, set[str]]:
    """For each of our modules, those of ours that it imports; a package stands for its ``__init__``."""
    ours = {
        module_of(path).removesuffix(".__init__"): path
        for package in SOURCES
        for path in files(package)
    }
    graph: dict[str, set[str]] = {module: set() for module in ours}
    for module, path in ours.items():
        for node in walk(
            ast.parse(path.read_text(encoding="utf-8")), into_functions=into_functions
        ):
            named = targets(node, module_of(path))
            if isinstance(node, ast.ImportFrom) and all(
                name in ours for name in named[1:]
            ):
                del named[
                    0
                ]  # ``from package import module`` wants nothing of the package itself
            graph[module].update(name for name in named if name in ours)
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The modules that lead back to themselves, each with all that lie on such a way."""
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
def test_no_module_imports_itself_by_a_detour(into_functions: bool) -> None:
    """No circles, not even through imports within functions: each module can be understood from those below it.

    Names for type checkers only do not count: they load nothing.
    """
    assert circles(neighbours(into_functions=into_functions)) == []


def test_the_finder_of_circles() -> None:
    """It finds a module that imports itself by a detour, and not two ways to the same one."""
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
    """No module imports a framework, Pillow or the metrics library before a function needs it."""
    early = {
        f"{module_of(path)} imports {target}"
        for path in files(package)
        for target in imports(path, into_functions=False)
        if target.partition(".")[0] in LATE
    }
    assert early == set()


@pytest.mark.parametrize("package", SOURCES)
def test_source_roots_are_not_packages(package: str) -> None:
    """``server`` and ``client`` are folders of packages, never imported themselves."""
    assert offenders(package, "server", "client") == []
    assert not (SOURCES[package] / "__init__.py").exists()


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS - {"onnxruntime"}))
def test_a_framework_is_known_to_the_runtimes_only(framework: str) -> None:
    """One file per framework: only ``runtimes``, and what tools' processes run, imports one, not even late."""
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
    """They run in environments with NumPy and none of the server's packages: of ours, they import the contract, each
    other, and what reads models with NumPy alone.

    Those that have no environment run where the server does.
    """
    at_home = {
        entry.module
        for entry in converters()
        if entry.environment is None and entry.fallback is None
    }
    paths = [
        path
        for path in files("pocketserve_lab.convert.tools")
        if path.stem not in at_home
    ]
    ours = {target for path in paths for target in imports(path)}
    allowed = ["pocketserve_lab.convert.converter", "pocketserve_lab.convert.tools"]
    allowed += [f"pocketserve.{name}" for name in ("runtimes", "messages", "tensors")]
    wrong = {
        t
        for t in ours
        if t.split(".")[0] in SOURCES and not any(reaches(t, name) for name in allowed)
    }
    assert (
        wrong - {"pocketserve", "pocketserve_lab", "pocketserve_lab.convert"} == set()
    )


def test_the_reader_of_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above see late, relative and dotted imports, and pass over those for type checkers only."""
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
    """The modules that a fresh interpreter holds after a statement."""
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


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
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
    ],
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
def test_what_an_import_loads(statement: str, unwanted: set[str]) -> None:
    """The server starts small: no framework, no picture library, no metrics and no client is loaded with it."""
    # An older NumPy imports some of them by itself.
    assert (
        loaded_by(statement)
        & unwanted - (set() if "numpy" in unwanted else loaded_by("import numpy"))
        == set()
    )
