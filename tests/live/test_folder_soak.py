"""A folder that changes under load causes no wrong answers and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import Server, StartServer
from numbered_models import DEADLINE_S
from pocketserve_client import Client
from pocketserve_client.errors import ServerError
from soaking import note, rounds

pytestmark = pytest.mark.soak

CHANGES = 8  # of one round


class Folder:
    """The folder of a regression, with two contents of its file.

    Attributes:
        path: the folder.
        one: the model's content.
        two: the same model with a larger bias.
    """

    def __init__(self, path: Path, bias: float) -> None:
        self.path = path
        self.one = (path / "petals.tflite").read_bytes()
        old_bias = np.float32(bias)
        new_bias = np.float32(old_bias + 1)
        self.two = self.one.replace(old_bias.tobytes(), new_bias.tobytes())
        self._aside = path.with_name("aside")
        shutil.rmtree(path)
        path.mkdir()

    def write(self, content: bytes) -> None:
        """Write the model's file in place."""
        (self.path / "m.tflite").write_bytes(content)

    def break_manifest(self) -> None:
        """Add an invalid manifest."""
        (self.path / "model.toml").write_text("[")

    def repair_manifest(self) -> None:
        """Remove the invalid manifest."""
        (self.path / "model.toml").unlink()

    def replace(self, content: bytes) -> None:
        """Replace the model's file atomically."""
        (self.path / ".fresh").write_bytes(content)
        (self.path / ".fresh").replace(self.path / "m.tflite")

    def hide(self) -> None:
        """Rename the folder."""
        self.path.rename(self._aside)

    def restore(self) -> None:
        """Undo :meth:`hide`."""
        self._aside.rename(self.path)


class Answers:
    """The allowed answers of the model, and clients that check them."""

    def __init__(self, server: Server, old: object, new: object) -> None:
        self.old = old
        self.new = new
        self.faults: list[object] = []
        self._server = server
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start a client of each transport."""
        for transport in ("http", "socket"):
            thread = threading.Thread(target=self._ask, args=(transport,))
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop the clients."""
        self._over.set()
        for thread in self._threads:
            thread.join(120)

    def _ask(self, transport: str) -> None:
        port = self._server.ready[transport]["port"]
        url = f"{transport}://127.0.0.1:{port}"
        with Client(url, self._server.token) as client:
            while not self._over.is_set():
                found = answer(client)
                if found not in (self.old, self.new, "MODEL_NOT_FOUND"):
                    self.faults.append(found)

    def wait_for(self, client: Client, expected: object) -> None:
        """Poll until the model gives this answer.

        The old version answers meanwhile.
        """
        deadline = time.monotonic() + DEADLINE_S
        found = answer(client)
        while found != expected:
            assert found in (self.old, self.new), found
            assert time.monotonic() < deadline, found
            found = answer(client)


def answer(client: Client) -> object:
    """Return the model's answer to zeros, or the error's code."""
    try:
        return client.predict("petals", [0, 0, 0])["predictions"]
    except ServerError as error:
        return error.code


def answer_to(client: Client, folder: Folder, content: bytes) -> object:
    """Return the answer of a model with this content."""
    folder.write(content)
    client.load("petals")
    found = answer(client)
    assert isinstance(found, list)
    return found


def change_folder(
    folder: Folder, client: Client, answers: Answers, length: int
) -> None:
    """Make :data:`CHANGES` changes and check the answer after each."""
    folder.write(folder.one)
    answers.wait_for(client, answers.old)
    folder.write(folder.one[:length])
    assert answer(client) == answers.old
    folder.break_manifest()
    assert answer(client) == answers.old
    folder.repair_manifest()
    folder.replace(folder.two)
    answers.wait_for(client, answers.new)
    folder.hide()
    assert answer(client) == "MODEL_NOT_FOUND"
    folder.restore()
    answers.wait_for(client, answers.new)


def count_descriptors(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def test_changes_under_load_give_no_wrong_answer(
    new_server: StartServer, models_copy: Path, tmp_path: Path
) -> None:
    """Change files and manifests while clients send requests over both transports.

    Every answer belongs to a file that was there, and the newest file answers without
    another change.
    """
    server = new_server(models_copy, "--state-dir", str(tmp_path / "state"))
    bias = _answer_to_zeros(server.url, server.token)
    folder = Folder(models_copy / "petals", bias)
    with Client(server.url, server.token) as client:
        new = answer_to(client, folder, folder.two)
        old = answer_to(client, folder, folder.one)
        assert old != new
        answers = Answers(server, old, new)
        descriptors = count_descriptors(server)
        turns = rounds(3, 150)
        answers.start()
        try:
            for turn in range(turns):
                change_folder(folder, client, answers, 50 + turn)
        finally:
            answers.stop()
        left = count_descriptors(server) - descriptors
    assert answers.faults == []
    assert left < 20
    assert len(list((tmp_path / "state" / "snapshots").iterdir())) <= 2
    note(
        "changes of a folder under load",
        f"{turns * CHANGES} changes, {len(answers.faults)} wrong answers, "
        f"{left} descriptors left",
    )


def _answer_to_zeros(url: str, token: str) -> float:
    """Return the regression's answer to zeros."""
    with Client(url, token) as client:
        return float(client.predict("petals", [0, 0, 0])["predictions"][0]["value"])
