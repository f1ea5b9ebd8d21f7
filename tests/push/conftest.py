"""A furnished server behind HTTP, and a client that declares everything."""

from collections.abc import AsyncGenerator

import pytest

from harness.http import HttpWire, serving
from harness.rpc import EVERYTHING, Tasking
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from mcp_tasks.stores.memory import MemoryStore


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def wire(desk: Desk, store: MemoryStore) -> AsyncGenerator[HttpWire]:
    async with serving(build(Tasks(store, settings=QUICK), desk)) as way:
        yield way


@pytest.fixture
def client(wire: HttpWire) -> Tasking:
    return Tasking(wire, EVERYTHING)
