"""While a call is open, its caller hears what it would hear of a plain call, and the tool sees what it would see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import LOG_LEVEL_META_KEY, CallToolResult, InputRequiredResult, LoggingMessageNotificationParams

from harness.forking import piped
from harness.http import HttpWire, initialize, modern_headers, serving
from harness.older import OWN_STREAM, http_session
from harness.processes import ENVIRONMENT, PIPE, ROOT, python, running, tell
from harness.rpc import LEGACY, MODERN, NOTHING, PATIENCE, Reply, legacy_request, request
from harness.server import Desk
from mcp_tasks import Fallback
from tests.fallback.live_server import MARKED, PLAIN, SHORT, build_live

pytestmark = pytest.mark.anyio

TOKEN = "progress-of-this-call"
ASKS_FOR_ALL = {"progressToken": TOKEN, LOG_LEVEL_META_KEY: "debug"}


async def posted(wire: HttpWire, version: str, tool: str, **meta: Any) -> Reply:
    """A call of a tool, and everything that came on its stream."""
    params: dict[str, Any] = {"name": tool, "arguments": {}}
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
    async with serving(build_live(), stateless=stateless) as wire:
        marked, plain = [await posted(wire, version, tool, **meta) for tool in (MARKED, PLAIN)]
    assert heard(marked) == heard(plain)
    assert [method for method, _ in heard(marked)].count("notifications/progress") == 3
    assert [method for method, _ in heard(marked)].count("notifications/message") == (2 if version == MODERN else 3)
    assert said(marked) == {**said(plain), "attempt": 1}
    assert said(marked)["meta"]["progress_token"] == TOKEN
    assert said(marked)["trace"] == "of this call"


@pytest.mark.parametrize("version", [MODERN, LEGACY])
async def test_a_call_that_asks_for_nothing_is_sent_what_a_plain_call_is_sent(version: str) -> None:
    async with serving(build_live()) as wire:
        marked, plain = [await posted(wire, version, tool) for tool in (MARKED, PLAIN)]
    assert heard(marked) == heard(plain)
    assert [method for method, _ in heard(marked)] == ["notifications/message"] * (0 if version == MODERN else 3)


async def test_what_belongs_to_the_connection_goes_there_as_in_a_plain_call() -> None:
    own: list[Any] = []
    async with serving(build_live()) as wire, http_session(wire, NOTHING) as client, client.listening():
        for tool in (MARKED, PLAIN):
            before = len(client.arrived)
            await client.call(tool)
            own.append(await client.wait_for(lambda each: each.stream == OWN_STREAM, after=before))
    updated = ("notifications/resources/updated", {"uri": "test://frames"})
    assert [(each.method, each.params) for each in own] == [updated, updated]


@pytest.mark.parametrize("version", [MODERN, LEGACY])
async def test_the_tool_has_the_access_token_of_its_caller(version: str) -> None:
    async with serving(build_live(guarded=True)) as wire:
        one, other = [await posted(wire.as_user(each), version, MARKED) for each in ("machine", "robot")]
    assert (said(one)["client"], said(other)["client"]) == ("machine", "robot")


class Listener:
    """A client of the SDK that keeps what it hears."""

    def __init__(self) -> None:
        self.progress: list[Any] = []
        self.logs: list[Any] = []
        self._news = anyio.Event()

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
                self._news = anyio.Event()
                await self._news.wait()


@pytest.mark.parametrize("mode", [MODERN, "legacy"])
async def test_clients_of_the_sdk_over_stdio_hear_what_they_hear_of_a_plain_call(mode: str) -> None:
    command, *arguments = piped("tests.fallback.live_server")
    parameters = StdioServerParameters(command=command, args=arguments, cwd=ROOT, env=ENVIRONMENT)
    listener, logs = Listener(), 2 if mode == MODERN else 3
    async with Client(
        stdio_client(parameters), mode=mode, logging_callback=listener.on_log, log_level="info"
    ) as client:
        for calls, tool in enumerate((MARKED, PLAIN), 1):
            with anyio.fail_after(PATIENCE):
                result = await client.call_tool(tool, {}, progress_callback=listener.on_progress)
            assert "progress_token" in getattr(result.content[0], "text", "")
            await listener.until(lambda: len(listener.progress) == 3 * calls and len(listener.logs) == logs * calls)  # noqa: B023
    assert listener.progress == [(1, 3, "first"), (2, 3, None), (3, 3, "last")] * 2
    assert listener.logs == listener.logs[:logs] * 2


@pytest.mark.parametrize("version", [MODERN, LEGACY])
async def test_a_call_of_a_slow_tool_is_kept_alive(version: str) -> None:
    desk = Desk()
    beating = Fallback(heartbeat=timedelta(milliseconds=50))
    async with serving(build_live(desk, fallback=beating)) as wire:
        opening = asyncio.create_task(_open_soon(desk))
        reply = await posted(wire, version, MARKED, progressToken=TOKEN)
        await opening
    values = [params["progress"] for method, params in heard(reply) if method == "notifications/progress"]
    assert len(values) > 4
    assert all(earlier < later for earlier, later in pairwise(values))
    assert values[-1] == 3


async def _open_soon(desk: Desk) -> None:
    await desk.started.wait()
    await anyio.sleep(0.5)  # sleep: work that takes longer than a call waits
    desk.gate.set()


@pytest.mark.parametrize("version", [MODERN, LEGACY])
async def test_a_tool_whose_caller_has_gone_reports_to_nobody_and_goes_on(version: str) -> None:
    desk = Desk()
    async with serving(build_live(desk)) as wire:
        async with anyio.create_task_group() as group:

            async def call() -> None:
                await posted(wire, version, MARKED, progressToken=TOKEN)

            group.start_soon(call)
            await desk.started.wait()
            group.cancel_scope.cancel()
        desk.gate.set()
        with anyio.fail_after(PATIENCE):
            await desk.stopped.wait()


async def test_a_client_that_reads_nothing_does_not_hold_up_the_tool(tmp_path: Path) -> None:
    left = anyio.Path(tmp_path / "left")
    arguments = {"path": str(left)}
    call = request("tools/call", {"name": "flood", "arguments": arguments}, capabilities=NOTHING, meta=ASKS_FOR_ALL)
    with running(python("tests.fallback.live_server"), env=ENVIRONMENT, stdin=PIPE, stdout=PIPE) as process:
        tell(process, json.dumps(call).encode() + b"\n")
        with anyio.fail_after(PATIENCE):
            while not await left.exists():  # noqa: ASYNC110 - another process makes it
                await anyio.sleep(0.05)


async def test_a_call_that_comes_back_hears_the_rest() -> None:
    desk, listener = Desk(), Listener()
    async with (
        serving(build_live(desk, fallback=SHORT)) as wire,
        Client(wire.url, mode=MODERN, logging_callback=listener.on_log, log_level="debug") as client,
    ):
        session = client.session
        first = await session.call_tool(MARKED, {}, progress_callback=listener.on_progress, allow_input_required=True)
        assert isinstance(first, InputRequiredResult)
        await listener.until(lambda: len(listener.progress) == 2 and len(listener.logs) == 3)
        assert listener.progress == [(1, 3, "first"), (2, 3, None)]
        desk.gate.set()
        await session.call_tool(
            MARKED,
            {},
            request_state=first.request_state,
            progress_callback=listener.on_progress,
            allow_input_required=True,
        )
        await listener.until(lambda: len(listener.progress) == 3)
    assert listener.progress == [(1, 3, "first"), (2, 3, None), (3, 3, "last")]
    assert len(listener.logs) == 3
    assert len(desk.seen) == 1


async def test_a_leg_that_reaches_another_process_hears_the_run_through_the_store(tmp_path: Path) -> None:
    store, listener, desk = f"sqlite:///{tmp_path}/tasks.db", Listener(), Desk()
    async with (
        serving(build_live(desk, store=store, fallback=SHORT)) as one,
        serving(build_live(desk, store=store)) as other,
        Client(one.url, mode=MODERN) as to_one,
        Client(other.url, mode=MODERN) as to_other,
    ):
        first = await to_one.session.call_tool(
            MARKED, {}, progress_callback=listener.on_progress, allow_input_required=True
        )
        assert isinstance(first, InputRequiredResult)
        await listener.until(lambda: len(listener.progress) == 2)
        asyncio.get_running_loop().call_later(0.2, desk.gate.set)
        result = await to_other.session.call_tool(
            MARKED, {}, request_state=first.request_state, progress_callback=listener.on_progress
        )
        await listener.until(lambda: len(listener.progress) == 3)
    assert json.loads(getattr(result.content[0], "text", "")) == desk.seen[0]
    assert len(desk.seen) == 1
    assert listener.progress == [(1, 3, "first"), (2, 3, None), (3, 3, "last")]


async def test_after_a_restart_nothing_of_the_call_is_there_and_its_leg_hears_the_new_run(tmp_path: Path) -> None:
    store, listener, desk = f"sqlite:///{tmp_path}/tasks.db", Listener(), Desk()

    @asynccontextmanager
    async def served() -> AsyncGenerator[Client]:
        async with (
            serving(build_live(desk, store=store, fallback=SHORT)) as wire,
            Client(wire.url, mode=MODERN) as client,
        ):
            yield client

    async with served() as client:
        first = await client.session.call_tool(
            MARKED, {}, progress_callback=listener.on_progress, allow_input_required=True
        )
        assert isinstance(first, InputRequiredResult)
        await desk.started.wait()
    desk.gate.set()
    async with served() as client:
        with anyio.fail_after(PATIENCE):
            answer: Any = first
            while isinstance(answer, InputRequiredResult):
                answer = await client.session.call_tool(
                    MARKED,
                    {},
                    request_state=answer.request_state,
                    progress_callback=listener.on_progress,
                    allow_input_required=True,
                )
        await listener.until(lambda: listener.progress[-1] == (3, 3, "last"))
    assert isinstance(answer, CallToolResult)
    before, after = desk.seen
    assert "progress_token" in before["meta"]
    assert after == {"attempt": 2, "meta": {}, "trace": None, "client": None}
    assert json.loads(getattr(answer.content[0], "text", "")) == after
    values = [value for value, _, _ in listener.progress]
    assert values == sorted(set(values))
    assert listener.progress[-1] == (3, 3, "last")
