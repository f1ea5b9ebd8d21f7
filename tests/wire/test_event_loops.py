"""Tasks run on asyncio. On another event loop the server says so, before anything is there that was not before."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from mcp.server import MCPServer, Server

from harness.lowlevel import build_lowlevel
from harness.official import in_memory
from harness.server import build
from mcp_tasks import Tasks
from mcp_tasks.errors import UsageError
from mcp_tasks.testing import TaskTester


def _refusal(raised: Any) -> UsageError:
    """The refusal, out of the groups that the SDK's own task groups put it in."""
    while isinstance(raised, BaseExceptionGroup):
        [raised] = cast("BaseExceptionGroup[Exception]", raised).exceptions
    assert isinstance(raised, UsageError), raised
    return raised


@pytest.mark.parametrize("make", [build, build_lowlevel])
def test_a_server_on_trio_is_refused_and_leaves_nothing_behind(tmp_path: Path, make: Any) -> None:
    file = tmp_path / "tasks.db"
    server: MCPServer[Any] | Server[Any] = make(Tasks(f"sqlite:///{file}"))

    async def serve() -> None:
        async with in_memory(server):
            raise AssertionError("it must not start")

    with pytest.raises((UsageError, BaseExceptionGroup)) as raised:
        anyio.run(serve, backend="trio")
    refused = _refusal(raised.value)
    assert "asyncio" in str(refused)
    assert "trio" in str(refused)
    assert list(tmp_path.iterdir()) == []


def test_a_lifespan_of_the_authors_own_is_not_begun_on_trio() -> None:
    begun: list[str] = []

    @asynccontextmanager
    async def own(server: MCPServer[int]) -> AsyncGenerator[int]:
        begun.append("began")
        yield 1

    tasks = Tasks("memory://")
    server = MCPServer("own", **tasks.wiring(own), log_level="CRITICAL")

    async def serve() -> None:
        async with in_memory(server):
            raise AssertionError("it must not start")

    with pytest.raises((UsageError, BaseExceptionGroup)) as raised:
        anyio.run(serve, backend="trio")
    assert "asyncio" in str(_refusal(raised.value))
    assert begun == []


def test_a_tester_on_trio_is_refused() -> None:
    tasks = Tasks("memory://")
    server = build(tasks)

    async def test() -> None:
        async with TaskTester(server, tasks):
            raise AssertionError("it must not start")

    with pytest.raises(UsageError, match="asyncio"):
        anyio.run(test, backend="trio")
