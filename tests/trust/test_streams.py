"""Streams end with the token that opened them, or after so long, on every door; whoever listens loses nothing by it."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from typing import Any

import anyio
import pytest

from harness.http import HttpWire, http_client, serving_app
from harness.older import RELATED, http_session
from harness.rpc import EVERYTHING, PATIENCE, Tasking, legacy_request, request
from mcp_tasks import Limits
from mcp_tasks.errors import TaskWasCancelled
from mcp_tasks.legacy.shapes import REQUEST_CANCELLED, RESULT_INTERRUPTED
from tests.client.connecting import begin, connect
from tests.conformance.everything_server import MemoryEvents
from tests.trust.guarded import build, guarded, new_tasks

pytestmark = pytest.mark.anyio


def soon() -> int:
    """A second in which a token expires that is still valid when it is first used, on a busy machine as well."""
    return int(time.time()) + 2


async def until_end(wire: HttpWire, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything that comes on a stream, once it has ended by itself."""
    message = request("subscriptions/listen", {"notifications": wanted})
    with anyio.fail_after(PATIENCE):
        async with wire.stream(message) as messages:
            return [each async for each in messages]


@pytest.mark.requirement("security/every-request-is-checked")
@pytest.mark.parametrize("short_way", [True, False])
async def test_a_stream_ends_with_the_token_that_opened_it(short_way: bool) -> None:
    async with guarded(short_way=short_way) as (wire, tasks):
        task_id = await Tasking(wire.as_user("ada"), EVERYTHING).create("hold")
        expires = soon()
        mine = wire.as_user(f"ada!{expires}")
        named = request("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})
        async with mine.stream(named) as left:
            # One that leaves before the end does not keep the others, nor does one about something else.
            await anext(left)
            ends = asyncio.create_task(until_end(mine, {"taskIds": [task_id]}))
            others = asyncio.create_task(until_end(mine, {"toolsListChanged": True}))
        (first, state, last), about_tools = await ends, await others
        assert time.time() >= expires
        assert [each.get("method") for each in about_tools] == ["notifications/subscriptions/acknowledged", None]
        assert first["params"]["notifications"]["taskIds"] == [task_id]
        assert state["params"]["status"] == "working"
        # A result is how a stream ends gracefully: the client may come back.
        assert last["result"]["resultType"] == "complete"
        assert tasks.short_way.answered["subscriptions/listen"] == 2 * int(short_way)
        # The SDK lets in no token that has expired.
        assert (await wire.as_user(f"ada!{expires - 1}").send(request("tasks/get", {"taskId": "x"}))).status == 401


@pytest.mark.parametrize("short_way", [True, False])
async def test_a_stream_lasts_no_longer_than_any_may(short_way: bool) -> None:
    limits = Limits(stream_life=timedelta(seconds=1))
    async with guarded(short_way=short_way, limits=limits) as (wire, _):
        task_id = await Tasking(wire.as_user("ada"), EVERYTHING).create("hold")
        *_, last = await until_end(wire.as_user("ada"), {"taskIds": [task_id]})
        assert last["result"]["resultType"] == "complete"


async def test_a_wait_for_a_result_of_the_older_era_ends_with_its_token() -> None:
    async with guarded() as (wire, _), http_session(wire.as_user("ada")) as ada:
        task_id = await ada.start("hold")
        ada.wire = wire.as_user(f"ada!{soon()}")
        with anyio.fail_after(PATIENCE):
            reply = await ada.result(task_id)
        assert reply.code == RESULT_INTERRUPTED
        assert reply.error["data"] == {"reason": "token_expired", "_meta": {RELATED: {"taskId": task_id}}}
        ada.wire = wire.as_user("ada")
        assert (await ada.get(task_id))["status"] == "working"


async def test_a_sessions_own_stream_ends_with_its_token() -> None:
    async with guarded() as (wire, _), http_session(wire.as_user("ada")) as ada:
        ada.wire = wire.as_user(f"ada!{soon()}")
        headers = [*ada.headers(), ("accept", "text/event-stream")]
        with anyio.fail_after(PATIENCE):
            async with wire.client.stream("GET", wire.url, headers=headers, timeout=PATIENCE) as response:
                assert response.status_code == 200
                await response.aread()
        # And may be opened anew with a token that is valid.
        ada.wire = wire.as_user("ada")
        async with ada.listening():
            task_id = await ada.start("ask")
            await ada.question(task_id)


async def test_in_the_older_era_a_sessions_stream_lasts_no_longer_than_one_may_and_a_result_is_waited_for() -> None:
    limits = Limits(stream_life=timedelta(seconds=1))
    async with guarded(limits=limits) as (wire, _), http_session(wire.as_user("ada")) as ada:
        task_id = await ada.start("hold")
        waiting = ada.begin_result(task_id)
        headers = [*ada.headers(), ("accept", "text/event-stream")]
        with anyio.fail_after(PATIENCE):
            async with wire.client.stream("GET", wire.url, headers=headers, timeout=PATIENCE) as response:
                assert response.status_code == 200
                await response.aread()
        # That stream began later, and is over.
        assert not waiting.answered
        await ada.cancel(task_id)
        assert (await waiting.reply()).code == REQUEST_CANCELLED


async def test_a_result_on_a_stream_that_can_be_resumed_outlasts_the_token_that_it_was_asked_for_with() -> None:
    tasks = new_tasks()
    app = build(tasks, auth=True).streamable_http_app(event_store=MemoryEvents())
    async with serving_app(app) as base, http_client() as http:
        wire = HttpWire(f"{base}/mcp", http)
        async with http_session(wire.as_user("ada")) as ada:
            task_id = await ada.start("hold")
            short = wire.as_user(f"ada!{soon()}")
            message = legacy_request("tasks/result", {"taskId": task_id})
            ada.wire = short
            headers = [*ada.headers(), ("accept", "application/json, text/event-stream")]
            with anyio.fail_after(PATIENCE):
                async with http.stream("POST", wire.url, json=message, headers=headers, timeout=PATIENCE) as cut:
                    text = (await cut.aread()).decode()
            # The event that a client resumes from, and no answer.
            (last,) = [line.split(":")[1].strip() for line in text.splitlines() if line.startswith("id:")]
            assert "result" not in text
            assert "error" not in text
            ada.wire = wire.as_user("ada")
            headers = [*ada.headers(), ("accept", "text/event-stream"), ("last-event-id", last)]
            with anyio.fail_after(PATIENCE):
                async with http.stream("GET", wire.url, headers=headers, timeout=PATIENCE) as resumed:
                    await ada.cancel(task_id)
                    said = (line[5:] async for line in resumed.aiter_lines() if line.startswith("data:"))
                    answer = json.loads(await anext(data async for data in said if data.strip()))
            assert answer["id"] == message["id"]
            assert answer["error"]["code"] == REQUEST_CANCELLED


# Our client


async def test_our_client_comes_back_when_its_stream_ends_and_misses_nothing() -> None:
    limits = Limits(stream_life=timedelta(seconds=1))
    async with guarded(auth=False, limits=limits) as (wire, tasks), connect(wire.url) as client:
        handle = await begin(client, "hold")
        waiting = asyncio.create_task(handle.result())
        with anyio.fail_after(PATIENCE):
            while tasks.short_way.answered["subscriptions/listen"] < 2:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.05)
            await tasks.handle(handle.id).cancel("enough")
            with pytest.raises(TaskWasCancelled, match="enough"):
                await waiting
