"""Versions change under load; exactly one version answers each request."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conftest import Server, StartServer
from numbered_models import BROKEN, await_that, external, put, sum_of_files, times
from pocketserve_client import Client
from pocketserve_client.errors import PocketserveError
from soaking import note, rounds

pytestmark = pytest.mark.soak

FILES = ("a.bin", "b.bin", "c.bin")
PADDING = 1_000_000  # values in a version that is slow to load
PIECES = 8  # pieces of a slow copy
OLD_VERSIONS = 2  # versions kept in the folder
Answer = tuple[str, float]


@dataclass
class Load:
    """Clients that send requests continuously and check every answer.

    Attributes:
        allowed: answers that are right now; replaced as a whole, never changed.
        faults: wrong answers and errors.
    """

    server: Server
    allowed: set[Answer]
    faults: list[object] = field(default_factory=list)
    answers: int = 0
    _is_over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Start one client per transport."""
        for transport in ("http", "socket"):
            thread = threading.Thread(target=self._ask, args=(transport,))
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop the clients."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    def _ask(self, transport: str) -> None:
        url = f"{transport}://127.0.0.1:{self.server.ready[transport]['port']}"
        with Client(url, self.server.token) as client:
            while not self._is_over.is_set():
                # The answer may have been sent before that changed.
                before = frozenset(self.allowed)
                try:
                    answer: object = ask(client)
                except PocketserveError as error:
                    answer = repr(error)
                self.answers += 1
                if answer not in before | self.allowed:
                    self.faults.append(
                        (
                            answer,
                            sorted(before),
                            sorted(self.allowed),
                        )
                    )


def ask(client: Client) -> Answer:
    """Send a request; return the answer's version and value."""
    answer = client.predict("m", [[1.0]])
    (output,) = answer["predictions"]
    return answer["version"], float(output["data"][0])


class Folder:
    """The model's folder, whose newest version changes.

    Attributes:
        number: the highest version so far.
        current: the expected answer.
    """

    def __init__(self, root: Path, load: Load, client: Client) -> None:
        self.root = root
        self.load = load
        self.client = client
        self.number = 1
        self.current: Answer = ("1", 1.0)

    def expect(self, answer: Answer, change: Callable[[], object]) -> None:
        """Make a change.

        Until the new answer arrives, the former one is right too.
        """
        self.load.allowed |= {answer}
        change()
        await_that(lambda: ask(self.client) == answer)
        self.current = answer
        self.load.allowed = {answer}

    def next_folder(self) -> Path:
        """Return the next version's folder, which does not exist yet."""
        self.number += 1
        return self.root / "m" / str(self.number)

    def good(self) -> None:
        """Add a complete version."""
        value = float(self.next_folder().name)
        self.expect(
            (str(self.number), value), lambda: put(self.root, self.number, times(value))
        )

    def slow(self) -> None:
        """Add a version that takes long to try and to load."""
        value = float(self.next_folder().name)
        self.expect(
            (str(self.number), value),
            lambda: put(self.root, self.number, times(value, PADDING)),
        )

    def broken(self) -> None:
        """Add a version that cannot be loaded."""
        folder = self.next_folder()
        put(self.root, self.number, BROKEN + bytes(str(self.number), "ascii"))
        await_that(lambda: self._state_of(folder.name) == "UNAVAILABLE")
        shutil.rmtree(folder)

    def half_copied(self) -> None:
        """Copy a version in pieces, with its file closed halfway."""
        folder = self.next_folder()
        value = float(self.number)
        content = times(value, PADDING)
        step = len(content) // PIECES + 1

        def copy() -> None:
            folder.mkdir()
            for start in range(0, len(content), step):
                with (folder / "model.onnx").open("ab") as file:
                    file.write(content[start : start + step])

        self.expect((folder.name, value), copy)

    def several_files(self) -> None:
        """Copy a version of several files in place, the model first."""
        folder = self.next_folder()
        value = float(self.number)

        def copy() -> None:
            folder.mkdir()
            (folder / "model.onnx").write_bytes(external(FILES))
            sum_of_files(folder, dict.fromkeys(FILES, value))

        self.expect((folder.name, 1 + 3 * value), copy)

    def changed_files(self) -> None:
        """Replace the current version's files one after the other."""
        self.several_files()
        folder = self.root / "m" / str(self.number)
        value = self.number + 0.5
        aside = self.root / ".aside"
        aside.mkdir(exist_ok=True)
        sum_of_files(aside, dict.fromkeys(FILES, value))

        def replace() -> None:
            for name in FILES:
                (aside / name).replace(folder / name)

        self.expect((folder.name, 1 + 3 * value), replace)

    def one_after_the_other(self) -> None:
        """Add several versions while one is being loaded."""
        first = self.number + 1
        last = self.number + 3
        self.load.allowed |= {
            (str(number), float(number)) for number in range(first, last)
        }
        self.number = last

        def put_all() -> None:
            for number in range(first, last + 1):
                put(self.root, number, times(float(number)))

        self.expect((str(last), float(last)), put_all)

    def clean(self) -> None:
        """Remove old versions."""
        for folder in (self.root / "m").iterdir():
            if (
                folder.name.isdecimal()
                and int(folder.name) < int(self.current[0]) - OLD_VERSIONS
            ):
                shutil.rmtree(folder)

    def _state_of(self, version: str) -> str:
        return next(
            (
                entry["state"]
                for entry in self.client.index()
                if entry["version"] == version
            ),
            "",
        )


def test_changing_versions_fails_no_request(
    new_server: StartServer, tmp_path: Path
) -> None:
    """Good, slow, broken, half-copied and changed versions arrive while both transports
    send requests.
    """
    root = tmp_path / "models"
    put(root, 1, times(1.0))
    server = new_server(root, "--state-dir", str(tmp_path / "state"))
    load = Load(server, {("1", 1.0)})
    changes = rounds(14, 1000)
    began = time.monotonic()
    with Client(server.url, server.token) as client:
        folder = Folder(root, load, client)
        assert ask(client) == folder.current
        load.start()
        kinds = (
            folder.good,
            folder.broken,
            folder.half_copied,
            folder.several_files,
            folder.changed_files,
            folder.slow,
            folder.one_after_the_other,
        )
        try:
            for number in range(changes):
                kinds[number % len(kinds)]()
                folder.clean()
                assert load.faults == []
        finally:
            load.stop()
    assert load.faults == []
    assert load.answers > changes
    seconds = time.monotonic() - began
    note(
        "versions that change under load",
        f"{changes} changes, {load.answers:,} answers, 0 wrong, {seconds:.0f} s",
    )
