"""What the SDK brings to a server, and what passes our middleware on its way: the same in a task and in a plain call.

Streams that broke and are taken up again, pages that somebody is sent to, the level of the log, and updates of
resources. Each over a real socket.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import httpx2
import pytest
from mcp.server import MCPServer, ServerRequestContext
from mcp.server.mcpserver import Context
from mcp_types import (
    ElicitRequest,
    ElicitRequestURLParams,
    ElicitResult,
    EmptyResult,
    InputRequiredResult,
    JSONRPCMessage,
    LoggingLevel,
    SetLevelRequestParams,
    SubscribeRequestParams,
    UnsubscribeRequestParams,
)
from starlette.applications import Starlette

from harness.http import HttpWire, http_client, initialize, serving_app
from harness.rpc import PATIENCE, accept, legacy_request, loads, response, text_of
from harness.server import QUICK, Name
from harness.waiting import eventually
from mcp_tasks import Tasks
from tests.conformance.everything_server import MemoryEvents
from tests.everything.connecting import ERAS, Visit, visiting
from tests.everything.server import NoTasks

pytestmark = pytest.mark.anyio

PAGE: Final = "https://login.example.com/start"
MEMO: Final = "memo://1"
LEVELS: Final[tuple[LoggingLevel, ...]] = ("debug", "info", "notice", "warning", "error")


@pytest.fixture(params=[True, False], ids=["marked", "beside"])
def marked(request: pytest.FixtureRequest) -> bool:
    """Whether the tools that are called may be tasks, or are others of a server with tasks."""
    return request.param


@dataclass
class Stage:
    """Where a test tells a tool that its stream has broken, and that another has been opened."""

    broken: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)


class Events(MemoryEvents):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        self.text += str(message)
        return await super().store_event(stream_id, message)


def build(marked: bool, stage: Stage, events: Events | None) -> Starlette:
    tasks = Tasks("memory://", settings=QUICK)
    server: MCPServer[Any] = MCPServer("beside", version="1", log_level="CRITICAL", **tasks.wiring())
    marks: Any = tasks if marked else NoTasks()
    chosen: list[LoggingLevel] = ["debug"]
    subscribed: set[str] = set()

    @server.tool()
    @marks.task()
    async def linger(hang_up: bool, ctx: Context) -> str:
        """Its stream breaks meanwhile: the client leaves, or the tool itself hangs up."""
        await ctx.report_progress(1, 3, "heard")
        if hang_up:
            await ctx.close_sse_stream()
        await stage.broken.wait()
        await ctx.report_progress(2, 3, "unheard")
        await stage.resumed.wait()
        await ctx.report_progress(3, 3, "heard again")
        answer = await ctx.elicit("What is your name?", Name)
        return f"Hello, {answer.data.name}!" if answer.action == "accept" else answer.action

    @server.tool()
    @marks.task()
    async def older_visit(ctx: Context) -> str:
        answer = await ctx.elicit_url("Please sign in", PAGE, "sign-in")
        await ctx.session.send_elicit_complete("sign-in", ctx.request_context.request_id)
        return answer.action

    @server.tool()
    @marks.task()
    async def newer_visit(ctx: Context) -> str | InputRequiredResult:
        answer = (ctx.input_responses or {}).get("page")
        if isinstance(answer, ElicitResult):
            return answer.action
        page = ElicitRequestURLParams(message="Please sign in", url=PAGE, elicitation_id="sign-in")
        return InputRequiredResult(input_requests={"page": ElicitRequest(params=page)})

    @server.tool()
    @marks.task()
    async def log(ctx: Context) -> str:
        for level in LEVELS[LEVELS.index(chosen[-1]) :]:
            await ctx.log(level, f"a line of {level}")  # pyright: ignore[reportDeprecated]
        return "logged"

    @server.tool()
    @marks.task()
    async def touch(ctx: Context) -> str:
        await ctx.notify_resource_updated(MEMO)
        for uri in subscribed:
            await ctx.session.send_resource_updated(uri)
        return "touched"

    async def set_level(ctx: ServerRequestContext[Any, Any], params: SetLevelRequestParams) -> EmptyResult:
        chosen.append(params.level)
        return EmptyResult()

    async def subscribe(ctx: ServerRequestContext[Any, Any], params: SubscribeRequestParams) -> EmptyResult:
        subscribed.add(str(params.uri))
        return EmptyResult()

    async def unsubscribe(ctx: ServerRequestContext[Any, Any], params: UnsubscribeRequestParams) -> EmptyResult:
        subscribed.remove(str(params.uri))
        return EmptyResult()

    app = server.streamable_http_app(event_store=events)
    # What `MCPServer` has no handlers for, the low-level server behind its app takes.
    lowlevel = server.session_manager.app
    lowlevel.add_request_handler("logging/setLevel", SetLevelRequestParams, set_level)
    lowlevel.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
    lowlevel.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)
    return app


@asynccontextmanager
async def visited(marked: bool, era: str) -> AsyncGenerator[Visit]:
    async with (
        serving_app(build(marked, Stage(), None)) as base,
        visiting(f"{base}/mcp", ERAS[era]) as visit,
    ):
        yield visit


async def _call(visit: Visit, tool: str) -> str:
    return text_of((await visit.client.call_tool(tool, {})).model_dump())


# Streams that broke


async def _events(answer: httpx2.Response) -> AsyncGenerator[tuple[str, Any]]:
    """The events of a stream: id and message, which an event that only opens the stream has none of."""
    assert answer.status_code == 200
    event_id = ""
    async for line in answer.aiter_lines():
        if line.startswith("id:"):
            event_id = line[3:].strip()
        elif line.startswith("data:"):
            yield event_id, loads(line[5:]) if line[5:].strip() else None


@pytest.mark.parametrize("hang_up", [False, True], ids=["client", "tool"])
async def test_a_call_whose_stream_broke_is_taken_up_where_it_was(marked: bool, hang_up: bool) -> None:
    stage, events = Stage(), Events()
    async with serving_app(build(marked, stage, events)) as base, http_client() as http:
        wire = HttpWire(f"{base}/mcp", http)
        session, _ = await initialize(wire, {"elicitation": {}})
        headers = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")]
        headers += session.headers
        params = {"name": "linger", "arguments": {"hang_up": hang_up}, "_meta": {"progressToken": "p"}}
        call = json.dumps(legacy_request("tools/call", params))
        seen, heard = "", list[Any]()
        with anyio.fail_after(PATIENCE):
            async with wire.client.stream("POST", wire.url, headers=headers, content=call) as broken:
                async for seen, message in _events(broken):  # noqa: B007 - used when it has broken
                    if message is not None:
                        heard.append(message)
                        if not hang_up:
                            break
            await eventually(lambda: "'heard'" in events.text)
            stage.broken.set()
            await eventually(lambda: "'unheard'" in events.text)
            # The SDK ends what it replays while it has not seen that the first stream is gone.
            while not heard or "result" not in heard[-1]:
                resuming = [*headers, ("last-event-id", seen)]
                async with wire.client.stream("GET", wire.url, headers=resuming) as resumed:
                    async for seen, message in _events(resumed):  # noqa: B007 - used by the next one
                        if message is None:
                            # All has been replayed, and what comes from now on is sent as it comes.
                            stage.resumed.set()
                            continue
                        if message.get("method") == "elicitation/create":
                            told = json.dumps(response(message["id"], accept(name="Ada")))
                            assert (await wire.raw_post(told, session.headers)).status_code == 202
                            continue
                        heard.append(message)
                        if "result" in message:
                            break
    *progress, answer = heard
    assert [each["params"]["message"] for each in progress] == ["heard", "unheard", "heard again"]
    assert text_of(answer["result"]) == "Hello, Ada!"


# Pages, the log, and resources


@pytest.mark.parametrize("era", ERAS)
async def test_somebody_is_sent_to_a_page(marked: bool, era: str) -> None:
    async with visited(marked, era) as visit:
        assert await _call(visit, f"{era}_visit") == "accept"
        assert visit.host.pages == [PAGE]
        if era == "older":
            await eventually(lambda: "notifications/elicitation/complete" in visit.host.told)


@pytest.mark.parametrize(("era", "lowest"), [("older", "warning"), ("newer", "info")])
async def test_the_log_has_the_level_that_the_client_chose(marked: bool, era: str, lowest: LoggingLevel) -> None:
    async with visited(marked, era) as visit:
        if era == "older":
            await visit.client.session.set_logging_level(lowest)  # pyright: ignore[reportDeprecated]
        assert await _call(visit, "log") == "logged"
        expected = [(level, f"a line of {level}") for level in LEVELS[LEVELS.index(lowest) :]]
        assert visit.host.logged == expected


async def test_an_older_client_hears_of_the_resources_that_it_subscribed_to(marked: bool) -> None:
    async with visited(marked, "older") as visit:
        session = visit.client.session
        await session.subscribe_resource(MEMO)  # pyright: ignore[reportDeprecated]
        assert await _call(visit, "touch") == "touched"
        await eventually(lambda: visit.host.told == ["notifications/resources/updated"])
        await session.unsubscribe_resource(MEMO)  # pyright: ignore[reportDeprecated]
        assert await _call(visit, "touch") == "touched"


async def test_a_newer_client_hears_of_the_resources_that_it_listens_to(marked: bool) -> None:
    async with visited(marked, "newer") as visit, visit.client.listen(resource_subscriptions=[MEMO]) as listening:
        assert listening.honored.resource_subscriptions == [MEMO]
        assert await _call(visit, "touch") == "touched"
        await eventually(lambda: "notifications/resources/updated" in visit.host.told)
