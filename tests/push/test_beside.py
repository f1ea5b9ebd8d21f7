"""Task notifications ride beside the SDK's own: neither gets in the other's way."""

from __future__ import annotations

import anyio
import pytest
from mcp import Client
from mcp.client.subscriptions import ToolsListChanged

from harness.http import HttpWire
from harness.rpc import NOTHING, PATIENCE, Tasking
from harness.schema import check_notification
from harness.server import Desk
from mcp_tasks.client import TasksClient
from tests.push.listening import TASKS, TOOLS_CHANGED, Stream, listen

pytestmark = pytest.mark.anyio


async def test_one_stream_carries_tasks_and_changes_of_the_server(client: Tasking, wire: HttpWire, desk: Desk) -> None:
    task_id = await client.create("gated")
    message = listen([task_id], toolsListChanged=True, promptsListChanged=True, resourceSubscriptions=["memo://x"])
    async with wire.stream(message) as frames:
        stream = Stream(message["id"], frames)
        assert await stream.acknowledged() == {
            "taskIds": [task_id],
            "toolsListChanged": True,
            "promptsListChanged": True,
            "resourceSubscriptions": ["memo://x"],
        }
        await client.finish("grow")
        seen = [await stream.frame()]
        while seen[-1]["method"] != TOOLS_CHANGED:
            seen.append(await stream.frame())
        check_notification("ToolListChangedNotification", seen[-1])
        desk.gate.set()
        await stream.until("completed")
    assert {frame["method"] for frame in seen} == {TASKS, TOOLS_CHANGED}


async def test_a_change_that_was_not_asked_for_does_not_come(client: Tasking, wire: HttpWire, desk: Desk) -> None:
    task_id = await client.create("gated")
    message = listen([task_id])
    async with wire.stream(message) as frames:
        stream = Stream(message["id"], frames)
        await stream.acknowledged()
        await client.finish("grow")
        desk.gate.set()
        # `until` takes nothing but states of tasks.
        await stream.until("completed")


async def test_a_stream_without_ids_is_the_sdks_own_and_needs_no_declaration(client: Tasking, wire: HttpWire) -> None:
    message = listen(toolsListChanged=True, capabilities=NOTHING)
    async with wire.stream(message) as frames:
        stream = Stream(message["id"], frames)
        assert await stream.acknowledged() == {"toolsListChanged": True}
        await client.finish("echo", value=1)
        await client.finish("grow")
        frame = await stream.frame()
        assert frame["method"] == TOOLS_CHANGED


async def test_the_sdks_listen_works_beside_waits_for_tasks(wire: HttpWire) -> None:
    async with (
        Client(wire.url, extensions=[TasksClient()]) as client,
        client.listen(tools_list_changed=True) as events,
    ):
        await client.call_tool("grow", {})
        with anyio.fail_after(PATIENCE):
            assert isinstance(await anext(aiter(events)), ToolsListChanged)
