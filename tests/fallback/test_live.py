"""While a call is open, its caller hears what it would hear of a plain call, and the tool sees what it would see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import StdioServerParameters
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.mcpserver import Context
from mcp_types import LOG_LEVEL_META_KEY, InputRequiredResult, LoggingMessageNotificationParams

from harness.http import HttpWire, initialize, modern_headers, serving
from harness.older import OWN_STREAM, http_session
from harness.processes import ENVIRONMENT, PIPE, ROOT, running, tell
from harness.rpc import LEGACY, MODERN, NOTHING, PATIENCE, Reply, legacy_request, request
from harness.server import Name
from mcp_tasks import Fallback, current_task
from tests.fallback.scenes import MODES, chat, place
from tests.fallback.server import Served, build

pytestmark = pytest.mark.anyio

SHORT = Fallback(wait=timedelta(seconds=0.5))
"""Long enough for a tool to have begun, on a busy machine too."""

TOKEN = "progress-of-this-call"
ALL = [(1, 3, "first"), (2, 3, None), (3, 3, "last")]
TOOLS = ("talks", "talks_plainly")


def talking(**options: Any) -> Served:
    """A server whose tools that talk do not wait before their end."""
    served = build(**options)
    served.jobs.open("job")
    return served


async def posted(wire: HttpWire, version: str, tool: str, **meta: Any) -> Reply:
    """A call of a tool, and everything that came on its stream."""
    params: dict[str, Any] = {"name": tool, "arguments": {"job": "job"}}
    headers = [("x-trace", "of this call")]
    if version == MODERN:
        message = request("tools/call", params, capabilities=NOTHING, meta=meta)
        return await wire.post(json.dumps(message), [*modern_headers(message), *headers])
    session, _ = await initialize(wire, NOTHING, version)
    message = legacy_request("tools/call", {**params, "_meta": meta})
    return await wire.post(json.dumps(message), [*session.headers, *headers])


def said(reply: Reply) -> dict[str, Any]:
    """What the tool says that it saw."""
    return json.loads(reply.result["content"][0]["text"])


def heard(reply: Reply) -> list[Any]:
    """What came before the answer."""
    return [(notice["method"], notice["params"]) for notice in reply.notifications]


@pytest.mark.parametrize("stateless", [False, True], ids=["sessions", "stateless"])
@pytest.mark.parametrize("version", [MODERN, LEGACY, "2025-06-18"])
async def test_a_call_over_http_is_sent_what_a_plain_call_is_sent(version: str, stateless: bool) -> None:
    meta = {"progressToken": TOKEN, "example.com/a": [1], LOG_LEVEL_META_KEY: "info"}
    async with serving(talking().server, stateless=stateless) as wire:
        marked, plain = [await posted(wire, version, tool, **meta) for tool in TOOLS]
        quiet, plainly_quiet = [await posted(wire, version, tool) for tool in TOOLS]
    assert heard(marked) == heard(plain)
    methods = [method for method, _ in heard(marked)]
    assert methods.count("notifications/progress") == 3
    assert methods.count("notifications/message") == (2 if version == MODERN else 3)
    assert said(marked) == {**said(plain), "attempt": 1}
    assert said(marked)["meta"]["progress_token"] == TOKEN
    assert said(marked)["trace"] == "of this call"
    # And one that asks for nothing.
    assert heard(quiet) == heard(plainly_quiet)
    assert [method for method, _ in heard(quiet)] == ["notifications/message"] * (0 if version == MODERN else 3)


async def test_what_belongs_to_the_connection_goes_there_as_in_a_plain_call() -> None:
    own: list[Any] = []
    async with serving(talking().server) as wire, http_session(wire, NOTHING) as client, client.listening():
        for tool in TOOLS:
            before = len(client.arrived)
            await client.call(tool, {"job": "job"})
            own.append(await client.wait_for(lambda each: each.stream == OWN_STREAM, after=before))
    updated = ("notifications/resources/updated", {"uri": "test://frames"})
    assert [(each.method, each.params) for each in own] == [updated, updated]


@pytest.mark.parametrize("version", [MODERN, LEGACY])
async def test_the_tool_has_the_access_token_of_its_caller(version: str) -> None:
    async with serving(talking(auth=True).server) as wire:
        found = [said(await posted(wire.as_user(each), version, "talks"))["client"] for each in ("machine", "robot")]
    assert found == ["machine", "robot"]


async def test_a_tool_that_was_parked_has_the_token_of_its_call_while_that_is_open() -> None:
    served, left = build(auth=True), asyncio.Event()

    @served.tool(park_after=timedelta(milliseconds=50))
    async def who(ctx: Context) -> str:
        token, headers = get_access_token(), ctx.headers or {}
        try:
            await ctx.elicit("Shall it go on?", Name)
        finally:
            left.set()
        return f"{token and token.client_id}, {headers.get('authorization')}, run {current_task().attempt}"

    async with serving(served.server) as wire, http_session(wire.as_user("robot")) as client:
        pending = client.begin("tools/call", {"name": "who", "arguments": {}})
        question = await client.wait_for(lambda seen: seen.method == "elicitation/create")
        with anyio.fail_after(PATIENCE):
            await left.wait()
        await client.answer(question, {"action": "accept", "content": {"name": "Ada"}})
        assert (await pending.reply()).result["content"][0]["text"] == "robot, Bearer robot, run 2"


# --- clients of the SDK ---------------------------------------------------------------------------------------------


@dataclass
class Listener:
    """A client of the SDK that keeps what it hears."""

    progress: list[Any] = field(default_factory=list[Any])
    logs: list[Any] = field(default_factory=list[Any])
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, total, message))
        self._news.set()

    async def on_log(self, params: LoggingMessageNotificationParams) -> None:
        self.logs.append((params.level, params.data, params.logger))
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once it holds: the SDK's client may take a notification after the answer that it came before."""
        with anyio.fail_after(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def call(self, client: Any, state: str | None = None) -> Any:
        """One request of a call of the tool that talks."""
        return await client.session.call_tool(
            "talks",
            {"job": "job"},
            request_state=state,
            progress_callback=self.on_progress,
            allow_input_required=True,
        )

    async def begin(self, client: Any, logs: int = 0) -> str:
        """The first requests of a call, which hear the beginning."""
        state: str | None = None
        while len(self.progress) < 2 or len(self.logs) < logs:
            first = await self.call(client, state)
            assert isinstance(first, InputRequiredResult)
            state = first.request_state
            await anyio.sleep(0.05)  # sleep: a notification may be taken after the answer that it came before
        assert self.progress == ALL[:2]
        return state or ""


@pytest.mark.parametrize("mode", MODES)
async def test_clients_of_the_sdk_over_stdio_hear_what_they_hear_of_a_plain_call(mode: str) -> None:
    listener, logs = Listener(), 2 if mode == MODERN else 3
    with place() as here:
        here.jobs.open("job")
        command, *arguments = here.command(store="memory://")
        target = StdioServerParameters(command=command, args=arguments, cwd=ROOT, env=ENVIRONMENT)
        async with chat(target, mode, logging_callback=listener.on_log, log_level="info") as client:
            for calls, tool in enumerate(TOOLS, 1):
                with anyio.fail_after(PATIENCE):
                    await client.call_tool(tool, {"job": "job"}, progress_callback=listener.on_progress)
                await listener.until(lambda: len(listener.progress) == 3 * calls and len(listener.logs) == logs * calls)  # noqa: B023
    assert listener.progress == ALL * 2
    assert listener.logs == listener.logs[:logs] * 2


async def test_a_call_that_comes_back_hears_the_rest() -> None:
    served, listener = build(fallback=SHORT), Listener()
    async with (
        serving(served.server) as wire,
        chat(wire.url, MODERN, logging_callback=listener.on_log, log_level="debug") as client,
    ):
        state = await listener.begin(client, logs=3)
        served.jobs.open("job")
        await listener.call(client, state)
        await listener.until(lambda: len(listener.progress) == 3)
    assert listener.progress == ALL
    assert len(listener.logs) == 3
    assert served.jobs.count("start", "job") == 1


async def test_a_leg_that_reaches_another_process_hears_the_run_through_the_store(tmp_path: Path) -> None:
    store, listener = f"sqlite:///{tmp_path}/tasks.db", Listener()
    served, other = build(store, fallback=SHORT), build(store)
    async with (
        serving(served.server) as here,
        serving(other.server) as there,
        chat(here.url, MODERN) as one,
        chat(there.url, MODERN) as two,
    ):
        state = await listener.begin(one)
        calling = asyncio.create_task(listener.call(two, state))
        await other.jobs.until("request", "job")
        served.jobs.open("job")
        result = await calling
        await listener.until(lambda: len(listener.progress) == 3)
    assert json.loads(result.content[0].text)["attempt"] == 1
    assert (served.jobs.count("start", "job"), other.jobs.count("start", "job")) == (1, 0)
    assert listener.progress == ALL


async def test_after_a_restart_nothing_of_the_call_is_there_and_its_leg_hears_the_new_run(tmp_path: Path) -> None:
    listener = Listener()

    @asynccontextmanager
    async def served() -> AsyncGenerator[tuple[Served, Any]]:
        server = build(f"sqlite:///{tmp_path}/tasks.db", fallback=SHORT)
        async with serving(server.server) as wire, chat(wire.url, MODERN) as client:
            yield server, client

    async with served() as (_, client):
        state = await listener.begin(client)
    async with served() as (again, client):
        again.jobs.open("job")
        with anyio.fail_after(PATIENCE):
            while isinstance(answer := await listener.call(client, state), InputRequiredResult):
                state = answer.request_state or ""
        await listener.until(lambda: listener.progress[-1] == ALL[-1])
    assert json.loads(answer.content[0].text) == {"attempt": 2, "meta": {}, "trace": None, "client": None}
    values = [value for value, _, _ in listener.progress]
    assert all(earlier < later for earlier, later in pairwise(values))


# --- clients that do not listen -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [MODERN, LEGACY])
async def test_a_tool_whose_caller_has_gone_reports_to_nobody_and_goes_on(version: str) -> None:
    served = build()
    async with serving(served.server) as wire:
        calling = asyncio.create_task(posted(wire, version, "talks", progressToken=TOKEN))
        await served.jobs.until("start", "job")
        calling.cancel()
        await asyncio.wait([calling])
        served.jobs.open("job")
        await served.jobs.until("end", "job")


async def test_a_client_that_reads_nothing_does_not_hold_up_the_tool() -> None:
    meta = {"progressToken": TOKEN, LOG_LEVEL_META_KEY: "debug"}
    params = {"name": "floods", "arguments": {"job": "flood"}}
    with place() as here:
        command = here.command(store="memory://")
        with running(command, env=ENVIRONMENT, stdin=PIPE, stdout=PIPE) as process:
            tell(process, json.dumps(request("tools/call", params, capabilities=NOTHING, meta=meta)).encode() + b"\n")
            await here.jobs.until("end", "flood")
