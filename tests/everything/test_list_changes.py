"""Clients of both eras hear of changes to a list once, however many there were."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp_types import InitializedNotification

from harness.http import serving
from harness.lowlevel import build_lowlevel
from harness.server import QUICK
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.client import TaskHandle, TasksClient, start_task
from mcp_tasks.errors import InvalidOption
from mcp_tasks.server import ListChanges
from tests.everything.serving import ERAS, Host, Visit, build, visiting
from tests.unit.virtual_time import simulated, time_passes

TOOLS, PROMPTS = "notifications/tools/list_changed", "notifications/prompts/list_changed"
SHORT, WINDOW = timedelta(milliseconds=20), timedelta(milliseconds=200)


async def _until_told(host: Host, method: str, count: int = 1) -> None:
    await eventually(lambda: host.told.count(method) >= count)


@asynccontextmanager
async def _listening(where: Any, era: str) -> AsyncGenerator[Visit]:
    """A client that hears of changes: the older one by itself, the newer one because it listens."""
    async with AsyncExitStack() as stack:
        visit = await stack.enter_async_context(visiting(where, era, extensions=[TasksClient()]))
        if era == "newer":
            listening = visit.client.listen(tools_list_changed=True, prompts_list_changed=True)
            await stack.enter_async_context(listening)
        yield visit


def _changing() -> MCPServer[Any]:
    return build(Tasks("memory://", settings=QUICK), ListChanges(window=WINDOW))


@simulated
@pytest.mark.parametrize("era", ERAS)
async def test_fifty_changes_in_one_go_are_told_of_once(era: str) -> None:
    async with _listening(_changing(), era) as visit:
        for times in (1, 2):
            for tool in ("more_tools", "fewer_tools"):
                await visit.client.call_tool(tool, {"count": 50})
                names = {listed.name for listed in (await visit.client.list_tools()).tools}
                assert ("fresh-49" in names) == (tool == "more_tools")
                await time_passes(3 * WINDOW.total_seconds())
            assert [visit.host.told.count(method) for method in (TOOLS, PROMPTS)] == [2 * times, times]


@simulated
async def test_a_change_by_a_task_reaches_every_session_and_listener() -> None:
    server = _changing()
    async with (
        _listening(server, "older") as one,
        _listening(server, "older") as two,
        _listening(server, "newer") as newer,
    ):
        for count, tool in ((1, "more_tools"), (2, "fewer_tools")):
            handle = await start_task(newer.client, tool, {"count": 5})
            assert isinstance(handle, TaskHandle)
            await handle.result()
            await time_passes(3 * WINDOW.total_seconds())
            assert [visit.host.told.count(TOOLS) for visit in (one, two, newer)] == [count] * 3


@pytest.mark.parametrize("era", ERAS)
async def test_changes_are_told_of_over_http(era: str) -> None:
    async with serving(_changing()) as wire, _listening(wire.url, era) as visit:

        async def hears() -> bool:
            # The stream on which a server speaks by itself is opened after the handshake, in the background.
            await visit.client.call_tool("more_tools", {"count": 1})
            await visit.client.call_tool("fewer_tools", {"count": 1})
            return {TOOLS, PROMPTS} <= {*visit.host.told}

        await eventually(hears)


class Counting(InMemorySubscriptionBus):
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


async def test_an_older_client_is_told_in_the_handshake_whether_it_will_hear_of_changes() -> None:
    async def promised(where: Any) -> list[bool | None]:
        async with visiting(where, "older") as visit:
            offers = visit.client.server_capabilities
            return [has and has.list_changed for has in (offers.tools, offers.prompts, offers.resources)]

    assert await promised(_changing()) == [True] * 3
    assert not any(await promised(build(Tasks("memory://", settings=QUICK))))
    # Without sessions nothing is promised, and nothing is waited for.
    bus = Counting()
    async with serving(
        build(Tasks("memory://", settings=QUICK), ListChanges(bus, window=SHORT)), stateless=True
    ) as wire:
        assert not any(await promised(wire.url))
        async with visiting(wire.url, "older") as visit:
            await visit.client.call_tool("more_tools", {"count": 2})
            assert bus.listening == 0


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_of_a_low_level_server_is_told_once_however_often_it_says_that_it_is_there(era: str) -> None:
    bus, host = Counting(), Host()
    changes = ListChanges(bus, window=SHORT)
    server = build_lowlevel(Tasks("memory://", settings=QUICK))
    changes.attach(server)
    mode: Any = ERAS[era]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(server, mode=mode, message_handler=host.hear))
        if era == "newer":
            await stack.enter_async_context(client.listen(tools_list_changed=True))
        else:
            for _ in range(5):
                await client.session.send_notification(InitializedNotification())
        # It is heard of before anything is published: the handshake is over when its notification has been handled.
        await client.call_tool("echo", {"value": 1})
        assert bus.listening == 1
        for count in (1, 2):
            for _ in range(20):
                await changes.publish(ToolsListChanged())
            await _until_told(host, TOOLS, count)
        assert host.told.count(TOOLS) == 2
    # And when it has left, nobody is there to be told.
    await eventually(lambda: not bus.listening)


# The window itself


async def test_equal_events_are_one_and_different_ones_keep_their_order() -> None:
    changes, heard = ListChanges(window=SHORT), list[ServerEvent]()
    changes.subscribe(heard.append)
    for _ in range(3):
        await changes.publish(ResourceUpdated(uri="memo://b"))
        await changes.publish(ToolsListChanged())
        await changes.publish(ResourceUpdated(uri="memo://a"))
    assert heard == []
    await eventually(lambda: len(heard) >= 3)
    assert heard == [ResourceUpdated(uri="memo://b"), ToolsListChanged(), ResourceUpdated(uri="memo://a")]

    async def change() -> bool:
        # Well before the window of the one before could have closed, had that been moved.
        await changes.publish(ToolsListChanged())
        return len(heard) >= 6

    await eventually(change)


async def test_a_change_outlives_the_call_that_made_it_and_a_bus_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(InMemorySubscriptionBus):
        async def publish(self, event: ServerEvent) -> None:
            if event == ToolsListChanged():
                raise ConnectionError("no broker")
            await super().publish(event)

    changes, heard = ListChanges(Failing(), window=timedelta(0)), list[ServerEvent]()

    def again(event: ServerEvent) -> None:
        heard.append(event)
        if len(heard) == 1:
            # A change while others are told of is told of afterwards.
            changing.append(asyncio.ensure_future(changes.publish(PromptsListChanged())))

    changing: list[asyncio.Future[None]] = []
    changes.subscribe(again)
    await changes.publish(ToolsListChanged())
    with anyio.CancelScope() as call:
        await changes.publish(PromptsListChanged())
        call.cancel()
        await anyio.lowlevel.checkpoint()
    await eventually(lambda: heard == [PromptsListChanged()] * 2)
    assert "could not send ToolsListChanged to clients" in caplog.text


def test_nothing_is_told_of_after_the_loop_has_ended() -> None:
    changes, heard = ListChanges(window=SHORT), list[ServerEvent]()
    changes.subscribe(heard.append)

    async def change(event: ServerEvent) -> None:
        await changes.publish(event)

    async def change_and_wait() -> None:
        await changes.publish(ToolsListChanged())
        await eventually(lambda: heard)

    asyncio.run(change(PromptsListChanged()))
    # And what was about to be told then is not told to whoever comes next.
    asyncio.run(change_and_wait())
    assert heard == [ToolsListChanged()]


@pytest.mark.parametrize("window", [timedelta(seconds=-1), timedelta(hours=1), 0.5])
def test_a_window_is_a_short_duration(window: Any) -> None:
    with pytest.raises(InvalidOption, match="window"):
        ListChanges(window=window)
