"""Our server and our client, each in a process of its own or nearly so: tools ask as tasks, people answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitResult, ErrorData, TextContent

from harness.rpc import PATIENCE
from harness.waiting import eventually
from mcp_tasks.client import Hosting, ServerTransport, TasksClient, reconnecting_http
from tests.hosted.processes import http_server, over_stdio
from tests.hosted.raw_server import Host

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def hosting_client(transport: ServerTransport, host: Host, **options: Any) -> AsyncGenerator[Client]:
    tasks = TasksClient(hosting=Hosting(**options))
    async with Client(
        tasks.host(transport),
        mode="legacy",
        extensions=[tasks],
        elicitation_callback=host.elicit,
        sampling_callback=host.sample,
    ) as client:
        yield client


@asynccontextmanager
async def any_client(kind: str, host: Host) -> AsyncGenerator[Client]:
    if kind == "stdio":
        async with hosting_client(over_stdio(), host) as client:
            yield client
        return
    async with (
        http_server(*(["--json"] if kind == "json" else [])) as server,
        hosting_client(reconnecting_http(server.url), host) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> str:
    with anyio.fail_after(PATIENCE):
        result = await client.call_tool(tool, arguments)
    return said(result)


def said(result: CallToolResult) -> str:
    return " ".join(block.text for block in result.content if isinstance(block, TextContent))


@pytest.mark.parametrize("kind", ["stdio", "http", "json"])
async def test_a_tool_asks_as_a_task_and_gets_the_answer(kind: str, host: Host) -> None:
    host.ready.set()
    async with any_client(kind, host) as client:
        assert await call(client, "approve", question="Publish?") == "accept True"
        assert await call(client, "write", text="Hello") == "Hi"
    assert host.asked == ["Publish?", "sample"]


async def test_a_later_call_comes_back_for_the_answer(host: Host) -> None:
    async with any_client("stdio", host) as client:
        task_id = await call(client, "begin", question="Publish?")
        assert await call(client, "status", task_id=task_id) == "working"
        assert "did not end within 0.2 s" in await refused(client, "fetch", task_id=task_id, seconds=0.2)
        assert task_id in await call(client, "listed")
        host.ready.set()
        assert await call(client, "fetch", task_id=task_id, seconds=20) == "accept"
        assert await call(client, "status", task_id=task_id) == "completed"
    assert host.asked == ["Publish?"]


async def test_a_tool_cancels_what_it_asked(host: Host) -> None:
    async with any_client("stdio", host) as client:
        task_id = await call(client, "begin", question="Publish?")
        assert await call(client, "cancel", task_id=task_id) == "cancelled"
        assert await call(client, "status", task_id=task_id) == "cancelled"
        await eventually(lambda: host.cancelled == 1)
        # An error that it lets pass is said as what it was.
        assert "was cancelled" in await refused(client, "fetch", task_id=task_id, seconds=20)
        assert "already in terminal status" in await refused(client, "cancel", task_id=task_id)
        assert "The client has no such task" in await refused(client, "status", task_id="nobody's")


async def test_an_answer_that_is_no_and_an_error_reach_the_tool(host: Host) -> None:
    host.ready.set()
    async with any_client("stdio", host) as client:
        host.answer = ElicitResult(action="decline")
        assert await call(client, "approve", question="Publish?") == "decline"
        host.answer = ErrorData(code=-1, message="User rejected")
        assert "User rejected" in await refused(client, "approve", question="Publish?")


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    try:
        result = await client.call_tool(tool, arguments)
    except MCPError as exc:
        return exc.error.message
    assert result.is_error
    return said(result)


@pytest.mark.requirement("hosted-requestor/declared-only")
async def test_a_client_that_declares_no_tasks_is_not_asked_for_one(host: Host) -> None:
    async with Client(over_stdio(), mode="legacy", elicitation_callback=host.elicit) as client:
        assert "did not declare tasks.requests.elicitation.create" in await call(client, "try_to_ask")
    async with Client(over_stdio(), elicitation_callback=host.elicit) as client:
        assert "only 2025-11-25 has tasks of clients" in await call(client, "try_to_ask")
    async with (
        http_server("--stateless") as server,
        Client(streamable_http_client(server.url), mode="legacy") as client,
    ):
        assert "stateless" in await call(client, "try_to_ask")
    async with over_any_version(host) as client:
        assert "only 2025-11-25 has tasks of clients" in await call(client, "try_to_ask")
    assert host.asked == []


@asynccontextmanager
async def over_any_version(host: Host) -> AsyncGenerator[Client]:
    tasks = TasksClient(hosting=Hosting())
    async with Client(
        tasks.host(over_stdio()), extensions=[tasks], elicitation_callback=host.elicit, sampling_callback=host.sample
    ) as client:
        yield client
