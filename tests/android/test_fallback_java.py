"""Let a Java client fall back to a second server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS, ROOT, Server
from held_server import HeldServer

from .conftest import load_script

pytestmark = [pytest.mark.java, pytest.mark.live]
PICTURE = (MODELS / "digits/samples/7.png").read_bytes()
SCRIPT: Any = load_script(ROOT / "android_bridge" / "build.py")


@pytest.fixture(scope="module")
def built(
    toolchain: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path, Path]:
    """Build the library and its tests."""
    build = SCRIPT.Build(toolchain, tmp_path_factory.mktemp("java"))
    library = build.library()
    return build, library, build.tests(library)


def properties(prefix: str, server: Server, folder: Path) -> dict[str, str]:
    """Return the properties that point Java to a server."""
    token = folder / f"{prefix}.token"
    token.write_text(server.token or "")
    ports = {}
    for name in ("http", "socket"):
        ports[f"{prefix}.{name}"] = str(server.ready[name]["port"])
    return {
        **ports,
        f"{prefix}.token": str(token),
        f"{prefix}.pid": str(server.process.pid),
    }


@pytest.mark.parametrize("transport", ["HTTP", "SOCKET"])
def test_the_second_server_is_the_fallback(
    built: tuple[Any, Path, Path], new_server: Any, tmp_path: Path, transport: str
) -> None:
    build, library, tests = built
    phone = new_server(MODELS, "--low-power", "on")
    desktop = new_server(MODELS)
    assert phone.token != desktop.token
    where = properties("pocketserve.phone", phone, tmp_path) | properties(
        "pocketserve", desktop, tmp_path
    )
    where |= {
        "pocketserve.transport": transport,
        "pocketserve.digits": str(MODELS / "digits/samples"),
    }
    outcomes = build.run_tests(
        library, tests, ["dev.pocketserve.bridge.FallbackLiveTest"], where
    )
    assert outcomes and not [outcome.trace for outcome in outcomes if outcome.trace], (
        outcomes[0].trace
    )
    assert phone.process.wait(120) != 0


@pytest.mark.parametrize("transport", ["HTTP", "SOCKET"])
def test_a_full_queue_falls_back_to_the_second_server(
    built: tuple[Any, Path, Path], server: Server, tmp_path: Path, transport: str
) -> None:
    """The first server refuses while its model is busy."""
    build, library, tests = built
    first = HeldServer(tmp_path, queue_limit=1)
    sockets, http, token = first.addresses
    where = {
        "pocketserve.phone.socket": sockets,
        "pocketserve.phone.http": http,
        "pocketserve.phone.token": token,
    }
    where |= properties("pocketserve", server, tmp_path)
    where |= {
        "pocketserve.transport": transport,
        "pocketserve.digits": str(MODELS / "digits/samples"),
    }
    try:
        with ThreadPoolExecutor(1) as pool:
            first.model.hold(pool)
            try:
                first.model.send(
                    lambda: first.model.peer.ask("POST /predictions/digits", PICTURE)
                )
                outcomes = build.run_tests(
                    library,
                    tests,
                    ["dev.pocketserve.bridge.FallbackBusyLiveTest"],
                    where,
                )
            finally:
                first.model.go()
            assert first.model.peer.answer().status == 200
    finally:
        first.close()
    assert outcomes and not [outcome.trace for outcome in outcomes if outcome.trace], (
        outcomes[0].trace
    )
