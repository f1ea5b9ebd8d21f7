"""As in a plain call: what a caller hears while its call is open, what the tool sees, and calls that make no task."""

import asyncio
import json
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import LOG_LEVEL_META_KEY, InputRequiredResult, LoggingMessageNotificationParams

from harness.http import HttpWire, http_client, initialize, modern_headers, serving, serving_app
from harness.older import OWN_STREAM, http_session
from harness.processes import ENVIRONMENT, PIPE, running, tell
from harness.rpc import (
    INTERNAL_ERROR,
    LEGACY,
    MODERN,
    NOTHING,
    PATIENCE,
    Reply,
    accept,
    legacy_request,
    loads,
    request,
    text_of,
)
from harness.server import Name
from harness.waiting import eventually
from mcp_tasks import Fallback, current_task
from tests.conformance.everything_server import MemoryEvents
from tests.fallback.scenes import MODES, Call, asking, chat, place
from tests.fallback.server import Served, build

SHORT = Fallback(wait=timedelta(seconds=0.5))
"""Long enough for a tool to have begun, on a busy machine too."""

TOKEN = "progress-of-this-call"
TOOLS = ("talks", "talks_plainly")


def talking(**options: Any) -> Served:
    """A server whose tools that talk do not wait before their end."""
    served = build(**options)
    served.jobs.open("job")
    return served


async def posted(wire: HttpWire, version: str, tool: str, **meta: Any) -> Reply:
    params: dict[str, Any] = {"name": tool, "arguments": {"job": "job"}}
    headers = [("x-trace", "of this call")]
    if version == MODERN:
        message = request("tools/call", params, capabilities=NOTHING, meta=meta)
        return await wire.post(json.dumps(message), [*modern_headers(message), *headers])
    session, _ = await initialize(wire, NOTHING, version)
    message = legacy_request("tools/call", {**params, "_meta": meta})
    return await wire.post(json.dumps(message), [*session.headers, *headers])


def said(reply: Reply) -> dict[str, Any]:
    return json.loads(reply.result["content"][0]["text"])


def heard(reply: Reply) -> list[Any]:
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
    assert methods.count("notifications/elicitation/complete") == 1
    assert said(marked) == {**said(plain), "attempt": 1}
    assert said(marked)["meta"]["progress_token"] == TOKEN
    assert said(marked)["trace"] == "of this call"
    # And one that asks for nothing.
    assert heard(quiet) == heard(plainly_quiet)
    assert [method for method, _ in heard(quiet)].count("notifications/message") == (0 if version == MODERN else 3)


async def test_what_belongs_to_the_connection_goes_there_as_in_a_plain_call() -> None:
    own: list[Any] = []
    async with serving(talking().server) as wire, http_session(wire, NOTHING) as client, client.listening():
        for tool in TOOLS:
            before = len(client.arrived)
            await client.call(tool, {"job": "job"})
            own.append(await client.wait_for(lambda each: each.stream == OWN_STREAM, after=before))
    updated = ("notifications/resources/updated", {"uri": "test://frames"})
    assert [(each.method, each.params) for each in own] == [updated, updated]


async def test_a_call_whose_stream_broke_is_taken_up_where_it_was() -> None:
    served = build()
    app = served.server.streamable_http_app(event_store=MemoryEvents())
    async with serving_app(app) as base, http_client() as http:
        wire = HttpWire(f"{base}/mcp", http)
        session, _ = await initialize(wire, NOTHING)
        headers = [*session.headers, ("accept", "application/json, text/event-stream")]
        params = {"name": "talks", "arguments": {"job": "job"}, "_meta": {"progressToken": TOKEN}}
        call = legacy_request("tools/call", params)
        event, told = "", list[dict[str, Any]]()

        async def read(stream: httpx2.Response, until: str) -> None:
            nonlocal event
            async for line in stream.aiter_lines():
                event = line[3:].strip() if line.startswith("id:") else event
                if line.strip() == "data:" and until == "result":
                    # All has been replayed, and what comes from now on is sent as it comes.
                    served.jobs.open("job")
                elif line.startswith("data:") and line[5:].strip():
                    told.append(loads(line[5:]))
                    if until in told[-1].get("params", told[-1]):
                        break

        with anyio.fail_after(PATIENCE):
            async with http.stream("POST", wire.url, headers=headers, json=call) as broken:
                await read(broken, until="progress")
            # The SDK ends what it replays while it has not seen that the first stream is gone.
            while "result" not in told[-1]:
                resuming = [*headers, ("last-event-id", event)]
                async with http.stream("GET", wire.url, headers=resuming) as resumed:
                    await read(resumed, until="result")
    progress = [each["params"]["progress"] for each in told if each.get("method") == "notifications/progress"]
    assert progress == [1, 2, 3]
    assert told[-1]["id"] == call["id"]


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
    """Keeps what a client of the SDK hears, which may be after the answer that it came before."""

    progress: list[Any] = field(default_factory=list[Any])
    logs: list[Any] = field(default_factory=list[Any])

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, total, message))

    async def on_log(self, params: LoggingMessageNotificationParams) -> None:
        self.logs.append((params.level, params.data, params.logger))


@pytest.mark.parametrize("mode", MODES)
async def test_clients_of_the_sdk_over_stdio_hear_what_they_hear_of_a_plain_call(mode: str) -> None:
    listener, logs = Listener(), 2 if mode == MODERN else 3
    with place() as here:
        here.jobs.open("job")
        async with chat(here.command(), mode, logging_callback=listener.on_log, log_level="info") as client:
            for calls, tool in enumerate(TOOLS, 1):
                with anyio.fail_after(PATIENCE):
                    await client.call_tool(tool, {"job": "job"}, progress_callback=listener.on_progress)
                await eventually(lambda: len(listener.progress) == 3 * calls and len(listener.logs) == logs * calls)  # noqa: B023
    assert listener.progress == [(1, 3, "first"), (2, 3, None), (3, 3, "last")] * 2
    assert listener.logs == listener.logs[:logs] * 2


async def test_after_a_restart_nothing_of_the_call_is_there_and_its_leg_hears_the_new_run(tmp_path: Path) -> None:
    listener, store = Listener(), f"sqlite:///{tmp_path}/tasks.db"
    heard = listener.progress

    async def leg(client: Any, state: str | None = None) -> Any:
        return await client.session.call_tool(
            "talks",
            {"job": "job"},
            request_state=state,
            progress_callback=listener.on_progress,
            allow_input_required=True,
        )

    async with serving(build(store, fallback=SHORT).server) as wire, chat(wire.url, MODERN) as client:
        answer = await leg(client)
        while len(heard) < 2:
            answer = await leg(client, answer.request_state)
    again = build(store, fallback=SHORT)
    again.jobs.open("job")
    async with serving(again.server) as wire, chat(wire.url, MODERN) as client:
        with anyio.fail_after(PATIENCE):
            while isinstance(answer, InputRequiredResult):
                answer = await leg(client, answer.request_state)
        await eventually(lambda: heard[-1] == (3, 3, "last"))
    assert json.loads(answer.content[0].text) == {"attempt": 2, "meta": {}, "trace": None, "client": None}
    assert all(earlier < later for (earlier, *_), (later, *_) in pairwise(heard))


# --- plain calls ----------------------------------------------------------------------------------------------------


async def test_an_internal_error_of_the_tools_own_is_that_of_a_plain_call() -> None:
    served = build()
    details: list[Any] = [{"reason": "quota"}, {"reason": ["quota"]}, {"reason": None}, ["reason"], "reason"]

    @served.tool()
    def breaks(number: int) -> str:
        """Fail with a code that we use as well."""
        raise MCPError(code=INTERNAL_ERROR, message="No more today", data=details[number])

    async with asking(served) as client:
        for number, data in enumerate(details):
            error = (await Call("breaks", {"number": number}).leg(client)).error
            assert error == {"code": INTERNAL_ERROR, "message": "No more today", "data": data}


async def test_a_plain_call_is_no_task_and_one_that_ends_soon_leaves_none() -> None:
    served = build(fallback="inline")
    async with asking(served) as client:
        calling = asyncio.create_task(Call("gated", {"job": "job"}).leg(client))
        await served.jobs.until("start", "job")
        assert await served.all_tasks() == []
        served.jobs.open("job")
        assert text_of((await calling).result) == "job is done"
        # What asks by returning has a state of the SDK's own.
        call = Call("asks_by_returning", {"job": "job"})
        [key] = await call.asked(client)
        assert not call.state.startswith("mcp-tasks.")
        assert text_of(await call.end(client, {key: accept(name="Ada")})) == "Ada: job is done, with 4 characters"
    served = build()
    async with asking(served) as client:
        assert text_of(await client.call("quick", job="job")) == "job is done"
        # It is forgotten after the answer.
        await eventually(lambda: no_tasks(served))


async def no_tasks(served: Served) -> bool:
    return await served.all_tasks() == []


# --- clients that do not listen -------------------------------------------------------------------------------------


async def test_a_client_that_reads_nothing_does_not_hold_up_the_tool() -> None:
    meta = {"progressToken": TOKEN, LOG_LEVEL_META_KEY: "debug"}
    params = {"name": "floods", "arguments": {"job": "flood"}}
    with place() as here:
        server = here.command()
        with running([server.command, *server.args], env=ENVIRONMENT, stdin=PIPE, stdout=PIPE) as process:
            tell(process, json.dumps(request("tools/call", params, capabilities=NOTHING, meta=meta)).encode() + b"\n")
            await here.jobs.until("end", "flood")
