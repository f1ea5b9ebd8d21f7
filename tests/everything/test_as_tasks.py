"""The same tools as tasks, on every transport and in both eras: what comes back is what the plain call gives."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp_types import CallToolResult, ResourceTemplateReference

from harness.rpc import PATIENCE
from mcp_tasks.client import (
    ServerTransport,
    TaskFailed,
    TaskHandle,
    TasksClient,
    reconnecting_http,
    start_task,
    stdio_transport,
    with_tasks,
)
from tests.everything.connecting import ERAS, TRANSPORTS, Host, listed_tools, own_tools, target, visiting

pytestmark = pytest.mark.anyio

NOTE = ResourceTemplateReference(uri="memo://{day}/note")

ASKING = ("ask_name", "ask_before", "ask_model", "ask_roots")
ANSWERING: dict[str, dict[str, Any]] = {"point": {"x": 1.5}, "logs": {}, "fails": {}}


def _transport(site: str, way: str) -> ServerTransport:
    where = target(site, "tasks", way)
    if isinstance(where, StdioServerParameters):
        return stdio_transport(where)
    return with_tasks(sse_client(f"{site}/tasks/old/sse")) if way == "old" else reconnecting_http(where)


@dataclass(frozen=True)
class Two:
    """A client that knows tasks, and one that does not, of the server that has none."""

    client: Client
    host: Host
    plain: Client
    answers: bool
    """Whether a task can ask the first one something: not in the older era without sessions."""
    declares: bool
    """Whether every message of the first one says that it takes tasks: not in the older era."""


@pytest.fixture(scope="module", params=[(way, era) for way in TRANSPORTS for era in ERAS], ids="-".join)
async def two(request: pytest.FixtureRequest, site: str) -> AsyncGenerator[Two]:
    way, era = request.param
    async with (
        visiting(_transport(site, way), ERAS[era], extensions=[TasksClient()]) as visit,
        visiting(target(site, "plain", "stateful"), ERAS["older"]) as plain,
    ):
        answers = era == "newer" or not way.startswith("stateless")
        yield Two(visit.client, visit.host, plain.client, answers, declares=era == "newer")


async def _start(client: Client, tool: str, **arguments: Any) -> TaskHandle:
    handle = await start_task(client, tool, arguments)
    assert isinstance(handle, TaskHandle)
    return handle


async def _as_task(client: Client, tool: str, **arguments: Any) -> CallToolResult:
    return await (await _start(client, tool, **arguments)).result(timeout=PATIENCE)


def _shown(result: CallToolResult) -> dict[str, Any]:
    return result.model_dump(by_alias=True, mode="json", exclude={"meta", "result_type"})


async def test_a_task_gives_what_the_call_gives(two: Two) -> None:
    listed = await listed_tools(two.client)
    # In the older era nobody can tell from a request for the list who will ask for tasks.
    assert (listed if two.declares else own_tools(listed)) == await listed_tools(two.plain)
    asking: dict[str, dict[str, Any]] = {tool: {} for tool in ASKING if two.answers}
    for tool, arguments in (ANSWERING | asking).items():
        expected = await two.plain.call_tool(tool, arguments)
        assert expected.is_error is (tool == "fails")
        assert _shown(await _as_task(two.client, tool, **arguments)) == _shown(expected)
    for tool in ASKING if not two.answers else ():
        # What a `Resolve(...)` parameter asks, the SDK refuses in its own words.
        words = "did not declare" if tool == "ask_before" else "this server is stateless"
        with pytest.raises(TaskFailed, match=words):
            await _as_task(two.client, tool)


async def test_everything_else_goes_on_beside_a_task(two: Two) -> None:
    handle = await _start(two.client, "linger")
    mine, theirs = [
        (
            [prompt.name for prompt in (await client.list_prompts()).prompts],
            (await client.get_prompt("introduce", {"person": "Ada"})).messages,
            (await client.read_resource("memo://greeting")).contents,
            (await client.complete(NOTE, {"name": "day", "value": "t"})).completion,
        )
        for client in (two.client, two.plain)
    ]
    assert mine == theirs
    assert (await handle.result(timeout=PATIENCE)).structured_content == {"result": "lingered"}
