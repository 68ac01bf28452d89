"""A folder that changes under load causes no wrong answers and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import StartServer
from numbered_models import DEADLINE_S
from pocketserve_client import Client
from pocketserve_client.errors import ServerError
from soaking import note, rounds

pytestmark = pytest.mark.soak

CHANGES = 8  # of one round


def test_changes_under_load_give_no_wrong_answer(
    new_server: StartServer, models_copy: Path, tmp_path: Path
) -> None:
    """Change files and manifests while clients send requests over both transports.

    Every answer belongs to a file that was there, and the newest file answers without
    another change.
    """
    server = new_server(models_copy, "--state-dir", str(tmp_path / "state"))
    folder, aside = models_copy / "petals", models_copy / "aside"
    one = (folder / "petals.tflite").read_bytes()
    (bias,) = np.array([_answer_to_zeros(server.url, server.token)], np.float32)
    two = one.replace(bias.tobytes(), np.float32(bias + 1).tobytes())
    shutil.rmtree(folder)
    folder.mkdir()
    over, faults = threading.Event(), list[object]()

    def answer(client: Client) -> object:
        try:
            return client.predict("petals", [0, 0, 0])["predictions"]
        except ServerError as error:
            return error.code

    def ask(transport: str) -> None:
        with Client(
            f"{transport}://127.0.0.1:{server.ready[transport]['port']}", server.token
        ) as client:
            while not over.is_set():
                if (found := answer(client)) not in (old, new, "MODEL_NOT_FOUND"):
                    faults.append(found)

    def await_answer(expected: object) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while (
            found := answer(client)
        ) != expected:  # the old version answers while the new one loads
            assert found in (old, new) and time.monotonic() < deadline, found

    with Client(server.url, server.token) as client:
        (folder / "m.tflite").write_bytes(two)
        client.load("petals")
        new = answer(client)
        (folder / "m.tflite").write_bytes(one)
        client.load("petals")
        old = answer(client)
        assert isinstance(old, list) and isinstance(new, list) and old != new
        descriptors, turns = (
            len(os.listdir(f"/proc/{server.process.pid}/fd")),
            rounds(3, 150),
        )
        threads = [
            threading.Thread(target=ask, args=(transport,))
            for transport in ("http", "socket")
        ]
        for thread in threads:
            thread.start()
        try:
            for turn in range(turns):
                (folder / "m.tflite").write_bytes(one)
                await_answer(old)
                (folder / "m.tflite").write_bytes(one[: 50 + turn])
                assert answer(client) == old
                (folder / "model.toml").write_text("[")
                assert answer(client) == old
                (folder / "model.toml").unlink()
                (folder / ".fresh").write_bytes(two)
                (folder / ".fresh").replace(folder / "m.tflite")
                await_answer(new)
                folder.rename(aside)
                assert answer(client) == "MODEL_NOT_FOUND"
                aside.rename(folder)
                await_answer(new)
        finally:
            over.set()
            for thread in threads:
                thread.join(120)
        left = len(os.listdir(f"/proc/{server.process.pid}/fd")) - descriptors
    assert faults == [] and left < 20
    assert len(list((tmp_path / "state" / "snapshots").iterdir())) <= 2
    note(
        "changes of a folder under load",
        f"{turns * CHANGES} changes, {len(faults)} wrong answers, {left} descriptors left",
    )


def _answer_to_zeros(url: str, token: str) -> float:
    """Return the regression's answer to zeros."""
    with Client(url, token) as client:
        return float(client.predict("petals", [0, 0, 0])["predictions"][0]["value"])
