"""A database of each kind, shared with all tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from harness.backends import Backend, BackendName

BACKENDS = ("postgres", "redis")


@pytest.fixture(scope="module", params=BACKENDS)
def database(request: pytest.FixtureRequest, shared_backend: Callable[[BackendName], Backend]) -> Backend:
    return shared_backend(cast(BackendName, request.param))


@pytest.fixture
def url(database: Backend) -> str:
    """A database that is empty, for one test."""
    return database.fresh()
