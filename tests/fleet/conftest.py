"""A database of each kind, each started once."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import cast

import pytest

from tests.fleet.backends import Backend, BackendName, backend

BACKENDS = ("postgres", "redis")


@pytest.fixture(scope="module", params=BACKENDS)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Backend]:
    """A database, for all tests of a file."""
    name = cast(BackendName, request.param)
    with backend(name, tmp_path_factory.mktemp(name)) as found:
        yield found


@pytest.fixture
def url(database: Backend) -> str:
    """A database that is empty, for one test."""
    return database.fresh()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where processes write logs and notes."""
    return tmp_path
