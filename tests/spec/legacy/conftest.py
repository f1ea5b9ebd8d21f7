"""A furnished server, and raw clients of the 2025-11-25 wire over every transport."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from harness.http import HttpWire, serving
from harness.older import HttpClient, OlderClient, http_session, pipe_session
from harness.server import QUICK, UNPACED, Desk
from harness.stdio import stdio_process
from mcp_tasks import Tasks
from mcp_tasks.stores.memory import MemoryStore
from tests.spec.legacy.furnished import furnished


@pytest.fixture
async def wire(desk: Desk, store: MemoryStore) -> AsyncGenerator[HttpWire]:
    """A way to the server over HTTP, with sessions and streams."""
    async with serving(furnished(Tasks(store, settings=QUICK), desk)) as way:
        yield way


@pytest.fixture
async def client(wire: HttpWire) -> AsyncGenerator[HttpClient]:
    """A session over HTTP that listens on no stream of its own."""
    async with http_session(wire) as session:
        yield session


@pytest.fixture
async def listener(wire: HttpWire) -> AsyncGenerator[HttpClient]:
    """A session over HTTP that listens on a stream of its own."""
    async with http_session(wire) as session, session.listening():
        yield session


@pytest.fixture(params=["sse", "json", "stdio"])
async def everywhere(request: pytest.FixtureRequest) -> AsyncGenerator[OlderClient]:
    """A session that can be reached at any time: over HTTP with its own stream open, and over stdio."""
    if request.param == "stdio":
        async with (
            stdio_process(module="tests.spec.legacy.furnished") as pipes,
            pipe_session(pipes) as session,
        ):
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


@pytest.fixture
async def stateless(desk: Desk, store: MemoryStore) -> AsyncGenerator[HttpWire]:
    """A way to a server that keeps no sessions and asks for no token."""
    async with serving(furnished(Tasks(store, settings=QUICK), desk), stateless=True) as way:
        yield way
