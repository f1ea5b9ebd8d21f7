"""A store that is away, or takes its time, just as a call needs it: nothing is lost, asked twice, or told too late."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from harness.rpc import PATIENCE, Tasking, accept, text_of
from harness.server import Name
from mcp_tasks import Tasks
from mcp_tasks.fallback.options import Fallback, Host
from mcp_tasks.stores.base import EVERYBODY
from tests.fallback.matrix.legs import Call
from tests.fallback.moods import Jobs, MoodyStore, client_of, quick_tasks, server_of

pytestmark = pytest.mark.anyio

SHORT = Fallback(wait=timedelta(seconds=0.2))
SHORT_OF_LEGS = Fallback(wait=timedelta(seconds=0.2), legs=1)
GIVES_UP = 10.0
"""Seconds after which the host gives up. No wait here is to be nearly as long, also on a busy machine."""


@dataclass
class Scene:
    """A server, its store, and a client of it."""

    store: MoodyStore
    jobs: Jobs
    client: Tasking


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    store, jobs = MoodyStore(), Jobs()
    tasks = quick_tasks(store, fallback=SHORT, hosts={"raw": Host(limit=timedelta(seconds=GIVES_UP))})
    async with client_of(_server(tasks, jobs)) as client:
        yield Scene(store, jobs, client)


def _server(tasks: Tasks, jobs: Jobs) -> MCPServer[Any]:
    server = server_of(tasks)

    @server.tool()
    @tasks.task()
    async def works(job: str) -> str:
        """Wait for the test."""
        return await jobs.work(job)

    @server.tool()
    @tasks.task(fallback=SHORT_OF_LEGS)
    async def works_long(job: str) -> str:
        """Wait for the test, for longer than anybody comes back."""
        return await jobs.work(job)

    @server.tool()
    @tasks.task()
    async def asks(job: str, ctx: Context) -> str:
        """Ask one thing."""
        answer = await ctx.elicit("What is your name?", Name)
        assert answer.action == "accept"
        return f"{answer.data.name}: {await jobs.work(job)}"

    return server


# --- how it ended ---------------------------------------------------------------------------------------------------


async def test_a_result_that_cannot_be_read_is_given_to_the_next_leg(scene: Scene) -> None:
    call = Call("works", {"job": "unread"})
    scene.jobs.gate.set()
    with scene.store.away("outcome"):
        # Its work is done.
        assert (await call.begin(scene.client)).get("inputRequests") is None
    assert text_of(await call.end(scene.client)) == "unread is done"
    assert scene.jobs.happened == {"start unread": 1, "end unread": 1}


async def test_a_result_that_cannot_be_read_is_given_to_who_asks_for_it_later(scene: Scene) -> None:
    call = Call("works_long", {"job": "unread"})
    await call.begin(scene.client)
    scene.jobs.gate.set()
    await scene.jobs.until("end unread")
    with scene.store.away("outcome"):
        word = (await call.leg(scene.client)).result
    assert "its result cannot be read right now" in text_of(word)
    assert 'Do not call "works_long" again' in text_of(word)
    told = await scene.client.call("task_status", task_id=word["structuredContent"]["taskId"])
    assert text_of(told) == "unread is done"
    assert scene.jobs.happened == {"start unread": 1, "end unread": 1}


@pytest.mark.parametrize("may_have_happened", [True, False])
async def test_a_model_is_told_whether_its_cancellation_may_have_been_made(
    scene: Scene, may_have_happened: bool
) -> None:
    call = Call("works_long", {"job": "cancelled"})
    await call.begin(scene.client)
    await scene.jobs.until("start cancelled")
    [task] = (await scene.store.list("moody", EVERYBODY, now=datetime.now(UTC), limit=10)).records
    scene.store.may_have_happened = may_have_happened
    with scene.store.away("save"):
        told = text_of(await scene.client.call("task_cancel", task_id=task.id))
    assert ("may have been made" in told, "Nothing was changed" in told) == (may_have_happened, not may_have_happened)
    assert "again later" in told


# --- a leg arrives --------------------------------------------------------------------------------------------------


async def test_a_leg_that_finds_the_store_away_is_told_to_come_back(scene: Scene) -> None:
    call = Call("works", {"job": "away"})
    await call.begin(scene.client)
    with scene.store.away("get"):
        assert (await call.leg(scene.client)).result["resultType"] == "input_required"
    scene.jobs.gate.set()
    assert text_of(await call.end(scene.client)) == "away is done"
    assert scene.jobs.happened == {"start away": 1, "end away": 1}


async def test_an_answer_that_cannot_be_written_yet_is_not_asked_for_again(scene: Scene) -> None:
    call = Call("asks", {"job": "answered"})
    [key] = (await call.begin(scene.client))["inputRequests"]
    with scene.store.away("save"):
        # The one that brings it, and the next, which finds the question as open as it was.
        for answers in ({key: accept(name="Ada")}, None):
            result = (await call.leg(scene.client, answers)).result
            assert result["resultType"] == "input_required"
            assert "inputRequests" not in result
    scene.jobs.gate.set()
    assert text_of(await call.end(scene.client)) == "Ada: answered is done"
    assert scene.jobs.happened["start answered"] == 1


# --- a store that takes its time ------------------------------------------------------------------------------------


async def test_a_look_that_takes_too_long_holds_up_no_answer(scene: Scene) -> None:
    call = Call("works", {"job": "slow"})
    with anyio.fail_after(GIVES_UP), scene.store.held("get"):
        for _ in range(2):
            assert (await call.leg(scene.client)).result["resultType"] == "input_required"
    scene.jobs.gate.set()
    assert text_of(await call.end(scene.client)) == "slow is done"
    assert scene.jobs.happened["start slow"] == 1


async def test_the_first_call_that_needs_a_key_finds_it_made(scene: Scene) -> None:
    call = Call("works", {"job": "first"})
    with anyio.fail_after(GIVES_UP), scene.store.held("note"):
        await call.begin(scene.client)
    scene.jobs.gate.set()
    with anyio.fail_after(PATIENCE):
        assert text_of(await call.end(scene.client)) == "first is done"
