"""Share one gunicorn with two workers among tests that don't change it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conftest import Server
from gunicorn_server import gunicorn
from places import MODELS


@pytest.fixture(scope="session")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with gunicorn(tmp_path_factory.mktemp("gunicorn"), MODELS) as server:
        yield server
