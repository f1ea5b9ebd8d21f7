"""A furnished server behind HTTP for every test here, and raw clients of both protocol versions."""

from collections.abc import AsyncGenerator

import pytest

from harness.http import HttpWire, serving
from harness.older import HttpClient, OlderClient, http_session, pipe_session
from harness.rpc import EVERYTHING, Tasking
from harness.server import QUICK, UNPACED, Desk
from harness.stdio import stdio_process
from mcp_tasks import Tasks
from mcp_tasks.stores.memory import MemoryStore
from tests.spec.calling import ERAS, Caller, calling
from tests.spec.furnished import furnished


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def wire(desk: Desk, store: MemoryStore) -> AsyncGenerator[HttpWire]:
    async with serving(furnished(Tasks(store, settings=QUICK), desk)) as way:
        yield way


@pytest.fixture
def client(wire: HttpWire) -> Tasking:
    return Tasking(wire, EVERYTHING)


@pytest.fixture
async def older(wire: HttpWire) -> AsyncGenerator[HttpClient]:
    async with http_session(wire) as session:
        yield session


@pytest.fixture
async def listener(wire: HttpWire) -> AsyncGenerator[HttpClient]:
    async with http_session(wire) as session, session.listening():
        yield session


@pytest.fixture(params=ERAS)
async def caller(request: pytest.FixtureRequest, wire: HttpWire) -> AsyncGenerator[Caller]:
    async with calling(wire, request.param) as client:
        yield client


@pytest.fixture(params=["sse", "json", "stdio"])
async def everywhere(request: pytest.FixtureRequest) -> AsyncGenerator[OlderClient]:
    """A session of 2025-11-25 that can be reached at any time: over HTTP with its own stream open, and over stdio."""
    if request.param == "stdio":
        async with stdio_process(module="tests.spec.furnished") as pipes, pipe_session(pipes) as session:
            yield session
        return
    server = furnished(Tasks("memory://", settings=QUICK))
    async with (
        serving(server, json_response=request.param == "json") as way,
        http_session(way) as session,
        session.listening(),
    ):
        yield session


@pytest.fixture(params=["stateful", "stateless"])
async def guarded(request: pytest.FixtureRequest, desk: Desk) -> AsyncGenerator[HttpWire]:
    """A way to a server that lets nobody in without a token, with sessions and without."""
    server = furnished(Tasks("memory://", settings=QUICK, limits=UNPACED, send_input=True), desk, guarded=True)
    async with serving(server, stateless=request.param == "stateless") as way:
        yield way
