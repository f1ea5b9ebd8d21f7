"""A furnished server behind HTTP for every test here."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from harness.http import HttpWire, serving
from harness.rpc import EVERYTHING, Tasking
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from mcp_tasks.stores.memory import MemoryStore


@pytest.fixture
def desk() -> Desk:
    """Where tools wait for the test."""
    return Desk()


@pytest.fixture
def store() -> MemoryStore:
    """Where the server keeps its tasks."""
    return MemoryStore()


@pytest.fixture
async def wire(desk: Desk, store: MemoryStore) -> AsyncGenerator[HttpWire]:
    """A way to the furnished server."""
    async with serving(build(Tasks(store, settings=QUICK), desk)) as way:
        yield way


@pytest.fixture
def client(wire: HttpWire) -> Tasking:
    """A client of that server that declares the extension and answers every kind of question."""
    return Tasking(wire, EVERYTHING)
