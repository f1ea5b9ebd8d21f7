"""Clients of both eras hear of changes to a list once, however many there were."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp import Client
from mcp.server import Server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp_types import InitializedNotification

from harness.http import serving
from harness.rpc import PATIENCE
from mcp_tasks.client import TaskHandle, TasksClient, start_task
from mcp_tasks.errors import InvalidDuration
from mcp_tasks.server import ListChanges
from tests.everything.connecting import ERAS, Host, Visit, target, visiting
from tests.everything.lowlevel import build_lowlevel
from tests.everything.server import build
from tests.everything.site import WINDOW, new_tasks

pytestmark = pytest.mark.anyio

TOOLS, PROMPTS = "notifications/tools/list_changed", "notifications/prompts/list_changed"
SHORT = timedelta(milliseconds=20)


@pytest.fixture(params=["stdio", "changes"], ids=["stdio", "http"])
def way(request: pytest.FixtureRequest) -> str:
    """How the server is reached."""
    return request.param


async def _until_told(host: Host, method: str, count: int = 1) -> None:
    with anyio.fail_after(PATIENCE):
        while host.told.count(method) < count:  # noqa: ASYNC110 - it comes by itself
            await anyio.sleep(0.01)


async def _settle() -> None:
    """Wait for what must not come: several windows, so that whatever was still to be told has been."""
    await anyio.sleep(WINDOW.total_seconds() * 4)  # sleep: the time in which nothing may come


@pytest.fixture
async def visit(request: pytest.FixtureRequest, site: str, way: str) -> AsyncGenerator[Visit]:
    """A client in one of the eras that hears of changes: the older one by itself, the newer one because it listens."""
    era = request.param
    async with AsyncExitStack() as stack:
        options = ["--changes"] if way == "stdio" else []
        connected = await stack.enter_async_context(visiting(target(site, "tasks", way, options), ERAS[era]))
        if era == "newer":
            listening = connected.client.listen(tools_list_changed=True, prompts_list_changed=True)
            await stack.enter_async_context(listening)
        elif way == "changes":
            # The stream on which a server speaks by itself is opened after the handshake, in the background.
            await _open_stream(connected)
        yield connected


async def _open_stream(visit: Visit) -> None:
    with anyio.fail_after(PATIENCE):
        while TOOLS not in visit.host.told:
            await visit.client.call_tool("grow", {"count": 1})
            await visit.client.call_tool("shrink", {"count": 1})
            await anyio.sleep(WINDOW.total_seconds() * 2)
    await _settle()
    visit.host.told.clear()


@pytest.mark.parametrize("visit", ERAS, indirect=True)
async def test_fifty_changes_in_one_go_are_told_of_once(visit: Visit) -> None:
    await visit.client.call_tool("grow", {"count": 50})
    await _until_told(visit.host, TOOLS)
    await _until_told(visit.host, PROMPTS)
    assert len((await visit.client.list_tools()).tools) > 50
    await _settle()
    assert (visit.host.told.count(TOOLS), visit.host.told.count(PROMPTS)) == (1, 1)
    # What changes afterwards is told of again.
    await visit.client.call_tool("shrink", {"count": 50})
    await _until_told(visit.host, TOOLS, count=2)
    await _settle()
    assert (visit.host.told.count(TOOLS), visit.host.told.count(PROMPTS)) == (2, 1)


async def test_a_change_reaches_every_session_and_listener(site: str) -> None:
    async with AsyncExitStack() as stack:
        older = [
            await stack.enter_async_context(visiting(target(site, "tasks", "changes"), ERAS["older"])) for _ in range(2)
        ]
        newer = await stack.enter_async_context(visiting(target(site, "tasks", "changes"), ERAS["newer"]))
        await stack.enter_async_context(newer.client.listen(tools_list_changed=True))
        for visit in older:
            await _open_stream(visit)
        for visit in (*older, newer):
            visit.host.told.clear()
        await newer.client.call_tool("grow", {"count": 3})
        try:
            for visit in (*older, newer):
                await _until_told(visit.host, TOOLS)
            await _settle()
            assert [visit.host.told.count(TOOLS) for visit in (*older, newer)] == [1, 1, 1]
        finally:
            await newer.client.call_tool("shrink", {"count": 3})


async def test_a_tool_that_runs_as_a_task_changes_the_list_too(site: str) -> None:
    async with visiting(target(site, "tasks", "changes"), ERAS["newer"], extensions=[TasksClient()]) as visit:
        async with visit.client.listen(tools_list_changed=True):
            # What was changed before is told of by now.
            await _settle()
            visit.host.told.clear()
            handle = await start_task(visit.client, "grow", {"count": 5})
            assert isinstance(handle, TaskHandle)
            await handle.result()
            await _until_told(visit.host, TOOLS)
            await _settle()
            assert visit.host.told.count(TOOLS) == 1
        await visit.client.call_tool("shrink", {"count": 5})


@pytest.mark.parametrize("kind", ["tasks", "plain"])
async def test_an_older_client_is_told_in_the_handshake_that_it_will_hear_of_changes(site: str, kind: str) -> None:
    async with visiting(target(site, kind, "changes"), ERAS["older"]) as visit:
        capabilities = visit.client.server_capabilities
    for has in (capabilities.tools, capabilities.prompts, capabilities.resources):
        assert has is not None
        assert has.list_changed
    async with visiting(target(site, kind, "stateful"), ERAS["older"]) as visit:
        tools = visit.client.server_capabilities.tools
    assert tools is not None
    assert not tools.list_changed


async def test_without_sessions_nothing_is_promised_and_nothing_is_waited_for() -> None:
    bus = Counting()
    server = build(new_tasks(), ListChanges(bus, window=SHORT))
    async with serving(server, stateless=True) as wire, visiting(wire.url, ERAS["older"]) as visit:
        tools = visit.client.server_capabilities.tools
        assert tools is not None
        assert not tools.list_changed
        await visit.client.call_tool("grow", {"count": 2})
        assert bus.listening == 0


@pytest.mark.parametrize("era", ERAS)
async def test_a_low_level_server_has_it_too(era: str) -> None:
    changes = ListChanges(window=SHORT)
    server: Server[Any] = build_lowlevel(new_tasks())
    changes.attach(server)
    host = Host()
    async with AsyncExitStack() as stack:
        mode: Any = ERAS[era]
        client = await stack.enter_async_context(Client(server, mode=mode, message_handler=host.hear))
        if era == "newer":
            await stack.enter_async_context(client.listen(tools_list_changed=True))
        # It is heard of before anything is published: the handshake is over when its notification has been handled.
        await client.call_tool("tool-1", {})
        for _ in range(20):
            await changes.publish(ToolsListChanged())
        await _until_told(host, TOOLS)
        await _settle()
        assert host.told.count(TOOLS) == 1


class Counting(InMemorySubscriptionBus):
    """A bus that knows how many listen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.listening = 0

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        forget = super().subscribe(listener)
        self.listening += 1

        def leave() -> None:
            self.listening -= 1
            forget()

        return leave


async def test_a_session_is_told_once_however_often_it_says_that_it_is_there() -> None:
    bus, host = Counting(), Host()
    changes = ListChanges(bus, window=SHORT)
    server: Server[Any] = build_lowlevel(new_tasks())
    changes.attach(server)
    async with Client(server, mode="legacy", message_handler=host.hear) as client:
        for _ in range(5):
            await client.session.send_notification(InitializedNotification())
        await client.call_tool("tool-1", {})
        assert bus.listening == 1
        await changes.publish(ToolsListChanged())
        await _until_told(host, TOOLS)
        await _settle()
        assert host.told.count(TOOLS) == 1
    with anyio.fail_after(PATIENCE):
        # And when it has left, nobody is there to be told.
        while bus.listening:  # noqa: ASYNC110 - the server notices by itself
            await anyio.sleep(0.01)


# The window itself


class Heard:
    """What goes out of a window."""

    def __init__(self, changes: ListChanges) -> None:
        self.events: list[ServerEvent] = []
        self.forget = changes.subscribe(self.events.append)

    async def until(self, count: int) -> None:
        with anyio.fail_after(PATIENCE):
            while len(self.events) < count:  # noqa: ASYNC110 - it comes by itself
                await anyio.sleep(0.001)


async def test_equal_events_are_one_and_different_ones_keep_their_order() -> None:
    changes = ListChanges(window=SHORT)
    heard = Heard(changes)
    for _ in range(3):
        await changes.publish(ResourceUpdated(uri="memo://b"))
        await changes.publish(ToolsListChanged())
        await changes.publish(ResourceUpdated(uri="memo://a"))
    assert heard.events == []
    await heard.until(3)
    assert heard.events == [ResourceUpdated(uri="memo://b"), ToolsListChanged(), ResourceUpdated(uri="memo://a")]


async def test_changes_that_never_end_are_told_of_all_the_same() -> None:
    changes = ListChanges(window=SHORT)
    heard = Heard(changes)
    with anyio.fail_after(PATIENCE):
        # Each well before the window of the one before could have closed, had that been moved.
        while len(heard.events) < 3:
            await changes.publish(ToolsListChanged())
            await anyio.sleep(0.001)


async def test_a_change_while_others_are_told_of_is_told_of_afterwards() -> None:
    changes = ListChanges(window=timedelta(0))
    heard: list[ServerEvent] = []

    def again(event: ServerEvent) -> None:
        heard.append(event)
        if len(heard) == 1:
            changing.append(asyncio.ensure_future(changes.publish(ToolsListChanged())))

    changing: list[asyncio.Future[None]] = []
    changes.subscribe(again)
    await changes.publish(ToolsListChanged())
    with anyio.fail_after(PATIENCE):
        while len(heard) < 2:  # noqa: ASYNC110 - it comes by itself
            await anyio.sleep(0.001)


async def test_a_change_outlives_the_call_that_made_it() -> None:
    changes = ListChanges(window=SHORT)
    heard = Heard(changes)
    with anyio.CancelScope() as call:
        await changes.publish(ToolsListChanged())
        call.cancel()
        await anyio.lowlevel.checkpoint()
    await heard.until(1)


async def test_a_bus_that_fails_is_logged_and_does_not_stop_the_next(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(InMemorySubscriptionBus):
        async def publish(self, event: ServerEvent) -> None:
            if event == ToolsListChanged():
                raise ConnectionError("no broker")
            await super().publish(event)

    changes = ListChanges(Failing(), window=timedelta(0))
    heard = Heard(changes)
    await changes.publish(ToolsListChanged())
    await changes.publish(PromptsListChanged())
    await heard.until(1)
    assert heard.events == [PromptsListChanged()]
    assert "could not be told of ToolsListChanged" in caplog.text


def test_nothing_is_told_of_after_the_loop_has_ended() -> None:
    changes = ListChanges(window=SHORT)
    heard = Heard(changes)

    async def change() -> None:
        await changes.publish(PromptsListChanged())

    async def change_and_wait() -> None:
        await changes.publish(ToolsListChanged())
        await heard.until(1)

    asyncio.run(change())
    # And what was about to be told then is not told to whoever comes next.
    asyncio.run(change_and_wait())
    assert heard.events == [ToolsListChanged()]


@pytest.mark.parametrize("window", [timedelta(seconds=-1), timedelta(hours=1), 0.5])
def test_a_window_is_a_short_duration(window: Any) -> None:
    with pytest.raises(InvalidDuration, match="window"):
        ListChanges(window=window)
