"""Convert torchvision's and Keras's architectures, and record the results.

Usage: .venv-zoo/bin/python tools/zoo.py run [--only TEXT] [--paths torch>onnx,…] [--stop HH:MM]
       .venv-zoo/bin/python tools/zoo.py write [--check]

``run`` converts through the functions of ``pocketserve convert`` and appends a line of JSON for each architecture and
path, so that it goes on where it was ended; ``write`` makes docs/generated/zoo.md of the lines.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from zoo_page import with_tables
from zoo_results import PATHS, Architecture, ConversionPath, Results

from pocketserve.config import STATE_VARIABLE
from pocketserve.engine.device.processes import descendants_of
from pocketserve.messages import excerpt
from pocketserve.repository.scan import scan
from pocketserve.state.folder_lock import remove_tree
from pocketserve.terminal.errors import CommandError
from pocketserve.trust.code_parts import code_of
from pocketserve.trust.store import TrustStore
from pocketserve_lab.compare.session import Plan, compare_versions
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.convert.environments import (
    ENVIRONMENTS,
    FOLDER_VARIABLE,
    ensure,
    environments_folder,
)
from pocketserve_lab.convert.process import ProcessLimits
from pocketserve_lab.convert.run import Conversion, ConversionSettings, ModelConverter

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "docs/generated/zoo.jsonl", ROOT / "docs/generated/zoo.md"
TIMEOUT_S, MEMORY_BYTES = 300.0, 8 << 30
BUILD_TIMEOUT_S = 600.0
MEMORY_INTERVAL_S = 0.5
MAX_REASON = 240


Build = Callable[[Architecture, Path], None]
"""Write an architecture's model folder; raise ConversionError where it cannot be built."""


class Zoo:
    """Convert architectures one by one in a folder.

    Args:
        work: a folder that is empty, for models and state.
        timeout: seconds for each process of a conversion.
        seconds: for comparing the speed of a result with that of its original; 0 compares none.
        stop: the time of :func:`time.time` after which nothing is begun.
    """

    def __init__(
        self,
        results: Results,
        work: Path,
        build: Build,
        timeout: float = TIMEOUT_S,
        stop: float = float("inf"),
        seconds: float = 0.0,
    ) -> None:
        self._results = results
        self._build = build
        self._stop = stop
        self._seconds = seconds
        self._limits = ProcessLimits(timeout, MEMORY_BYTES)
        self._models = work / "models"
        self._state = work / "state"
        self._models.mkdir(parents=True)
        self._state.mkdir(mode=0o700)

    def run(
        self, paths: Sequence[ConversionPath], architectures: Sequence[Architecture]
    ) -> None:
        """Convert everything without a result yet.

        The cheapest paths come first, and of each path the smallest architectures.
        """
        for group in sorted({path.group for path in paths}):
            for architecture in sorted(architectures, key=lambda item: item.parameters):
                due = []
                for p in paths:
                    if p.group == group and p.library == architecture.library:
                        due.append(p)
                due = [
                    path
                    for path in due
                    if self._is_due(
                        self._results.conversions.get((architecture.name, path.name))
                    )
                ]
                if due and time.time() < self._stop:
                    self._convert_all(architecture, due)

    def _is_due(self, line: dict[str, Any] | None) -> bool:
        return line is None or (
            self._seconds > 0 and line["state"] == "ok" and "p50_ms" not in line
        )

    def _convert_all(
        self, architecture: Architecture, paths: Sequence[ConversionPath]
    ) -> None:
        folder = self._models / architecture.name
        try:
            for source, quantize in dict.fromkeys(
                (path.source, path.quantize) for path in paths
            ):
                alike = [
                    path
                    for path in paths
                    if (path.source, path.quantize) == (source, quantize)
                ]
                fault = self._prepare(architecture, folder, source)
                if fault is None:
                    self._convert(architecture, source, quantize, alike)
                for path in alike if fault is not None else ():
                    self._keep(
                        architecture, path, {"state": "refused", "reason": fault}
                    )
        finally:
            remove_tree(folder)

    def _prepare(
        self, architecture: Architecture, folder: Path, source: str
    ) -> str | None:
        """Provide the source version, or return why there is none."""
        before = self._results.conversions.get((architecture.name, f"torch>{source}"))
        if before is not None and before["state"] != "ok":
            return f"there is no {source} version to begin with"
        try:
            if not folder.exists():
                self._build(architecture, folder)
            self._trust(architecture.name)
            if source not in scan(self._models)[architecture.name].versions:
                with closing(
                    self._converter(architecture.name, "torch", "none", Watch())
                ) as converter:
                    converter.convert(source)
                self._trust(architecture.name)
        except ConversionError as error:
            return f"there is nothing to begin with: {_without_names(error.message, architecture.name)}"
        return None

    def _trust(self, name: str) -> None:
        """Consent to the model's code, which this tool has written."""
        entry = scan(self._models)[name]
        for version in entry.versions.values():
            TrustStore(self._state).add(name, code_of(entry, version))

    def _converter(
        self, name: str, source: str, quantize: str, watch: Watch
    ) -> ModelConverter:
        settings = ConversionSettings(
            self._models,
            self._state,
            quantize=quantize,
            version=source,
            limits=self._limits,
        )
        return ModelConverter(scan(self._models)[name], settings, watch.tell, print)

    def _convert(
        self,
        architecture: Architecture,
        source: str,
        quantize: str,
        paths: Sequence[ConversionPath],
    ) -> None:
        watch = Watch()
        with closing(
            self._converter(architecture.name, source, quantize, watch)
        ) as converter:
            for path in paths:
                if time.time() >= self._stop:
                    return
                watch.begin()
                try:
                    conversion = converter.convert(path.kind)
                    result = {**_success(conversion), **watch.measured()}
                    if self._seconds:
                        result["p50_ms"] = self._speeds(
                            architecture.name, source, conversion.version
                        )
                except ConversionError as error:
                    state = "refused"
                    if UNFORESEEN.search(error.message):
                        state = "failed"
                    reason = _without_names(error.message, architecture.name)
                    result = {"state": state, "reason": reason, **watch.measured()}
                self._keep(architecture, path, result)

    def _speeds(self, name: str, source: str, version: str) -> list[float] | None:
        """Return the median milliseconds of original and result."""
        self._trust(name)
        plan = Plan(
            name, str(self._models), (source, version), source, seconds=self._seconds
        )
        try:
            versions = compare_versions(plan, lambda title, share: None)["versions"]
            return [
                float(f"{versions[key]['run_ms']['p50']['value']:.3g}")
                for key in (source, version)
            ]
        except (CommandError, KeyError):
            return None

    def _keep(
        self, architecture: Architecture, path: ConversionPath, result: dict[str, Any]
    ) -> None:
        self._results.add({"name": architecture.name, "path": path.name, **result})
        shown = result.get("reason") or f"{result['error']:.1e}"
        print(f"{architecture.name} {path.name}: {result['state']} {shown}", flush=True)


class Watch:
    """Measure a conversion's time and peak memory."""

    def __init__(self) -> None:
        self._title = ""
        self.begin()

    def begin(self) -> None:
        """Start anew."""
        self._began = self._measured = time.monotonic()
        self._peak = 0

    def tell(self, title: str, share: float) -> None:
        """Look at the memory, now and then."""
        if title != self._title:
            self._title = title
        elif time.monotonic() < self._measured + MEMORY_INTERVAL_S:
            return
        self._measured = time.monotonic()
        self._peak = max(
            self._peak, sum(map(_resident_bytes, descendants_of(os.getpid())))
        )

    def measured(self) -> dict[str, int]:
        """Return the seconds, and the peak in megabytes."""
        return {
            "seconds": round(time.monotonic() - self._began),
            "peak_mb": round(self._peak / 1e6),
        }


def _resident_bytes(process: int) -> int:
    try:
        pages = int(
            Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
        )
    except (OSError, ValueError, IndexError):
        return 0  # it has ended meanwhile
    return pages * os.sysconf("SC_PAGE_SIZE")


UNFORESEEN = re.compile(
    r"^the result |crashed on this model|ended without a result|wrote nothing|^\w+(\.\w+)*: "
)
"""What a user should not meet: a wrong result, a crash, or a tool's error that no sentence was made of."""


def _success(conversion: Conversion) -> dict[str, Any]:
    agreement = conversion.agreement
    assert agreement is not None  # of every kind of PATHS
    return {
        "state": "ok",
        "bytes": conversion.result_bytes,
        "source_bytes": conversion.source_bytes,
        "error": float(f"{agreement.error:.2g}"),
        "largest": float(f"{agreement.largest:.2g}"),
        "same_class": agreement.same_class,
        "samples": agreement.samples,
        "tools": ", ".join(conversion.tools),
        "rows": 1 if any("one row" in note for note in conversion.notes) else -1,
    }


def _without_names(message: str, name: str) -> str:
    """Remove names from a reason, so that equal ones can be counted."""
    text = re.sub(r"/\S*/", "", message.replace(name, "MODEL"))
    return excerpt(text, MAX_REASON)


def library_python(library: str) -> str:
    """Return the Python whose environment has a library."""
    if library == "torchvision":
        return sys.executable
    folder = environments_folder(ROOT)
    return str(
        ensure(ENVIRONMENTS["tensorflow"], folder, lambda title, share: None, print)
    )


def run_builder(library: str, action: str, *arguments: str) -> str:
    """Run tools/zoo_models.py and return its output.

    Raises:
        ConversionError: it failed; with its last line.
    """
    command = [
        library_python(library),
        str(ROOT / "tools/zoo_models.py"),
        action,
        library,
        *arguments,
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConversionError(
            f"building it took more than {BUILD_TIMEOUT_S:g} s"
        ) from None
    if done.returncode:
        raise ConversionError(
            (done.stderr.strip().splitlines() or ["building it failed"])[-1],
            detail=done.stderr,
        )
    return done.stdout


def build_model(architecture: Architecture, folder: Path) -> None:
    """Write the model folder of an architecture."""
    run_builder(architecture.library, "build", architecture.name, str(folder))


def run(options: argparse.Namespace) -> int:
    """Convert everything without a result yet."""
    # The folder of `make test-convert`.
    os.environ.setdefault(FOLDER_VARIABLE, str(ROOT / ".converters"))
    results = Results(options.results)
    paths = list(PATHS)
    if options.paths:
        names = options.paths.split(",")
        paths = [path for path in PATHS if path.name in names]
    if options.by_architecture:
        paths = [path._replace(group=0) for path in paths]
    _list_architectures(results, paths)
    architectures = results.architectures
    if options.only:
        architectures = [
            item for item in architectures if re.fullmatch(options.only, item.name)
        ]
    # Conversions in progress are ended and cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="zoo-", dir=options.folder) as work:
        os.environ[STATE_VARIABLE] = f"{work}/state"  # of the comparisons, too
        stop = _stop_time(options.stop)
        zoo = Zoo(
            results, Path(work), build_model, options.timeout, stop, options.seconds
        )
        zoo.run(paths, architectures)
    return 0


def _list_architectures(results: Results, paths: Sequence[ConversionPath]) -> None:
    """Record the architectures of libraries that have none yet."""
    listed = {architecture.library for architecture in results.architectures}
    for library in dict.fromkeys(path.library for path in paths):
        if library not in listed:
            items = json.loads(run_builder(library, "list"))
            results.add_architectures(Architecture(library, **item) for item in items)


def _stop_time(text: str | None) -> float:
    if text is None:
        return float("inf")
    today = datetime.datetime.now().astimezone()
    stop = today.replace(hour=int(text[:2]), minute=int(text[3:]), second=0)
    return stop.timestamp()


def write(options: argparse.Namespace) -> int:
    """Write the tables into the page, or compare them."""
    before = PAGE.read_text(encoding="utf-8")
    after = with_tables(before, Results(options.results))
    if not options.check:
        PAGE.write_text(after, encoding="utf-8")
        return 0
    if before == after:
        print(f"{PAGE.name} is up to date")
        return 0
    print(f"{PAGE.name} is not made of the results: run `write`")
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or write; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Convert every architecture that can be built without a download."
    )
    parser.add_argument("action", choices=("run", "write"))
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        help="lines of JSON [docs/generated/zoo.jsonl]",
    )
    parser.add_argument(
        "--only", metavar="REGEX", help="architectures whose whole name matches"
    )
    parser.add_argument(
        "--paths",
        metavar="PATH,…",
        help=f"some of {', '.join(path.name for path in PATHS)}",
    )
    parser.add_argument(
        "--by-architecture",
        action="store_true",
        help="all paths of one before the next architecture",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT_S,
        metavar="S",
        help="for each process [300]",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="compare speeds, too, for so long [0]",
    )
    parser.add_argument(
        "--stop", metavar="HH:MM", help="begin nothing after this time today"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="where models are made for a while [the system's temporary folder]",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; fail where the page is not as the results",
    )
    options = parser.parse_args(arguments)
    if options.action == "run":
        return run(options)
    return write(options)


if __name__ == "__main__":
    sys.exit(main())
