"""Both eras on one endpoint: one owner's tasks, each era in its own words."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from harness.auth import Tokens
from harness.http import HttpWire, serving
from harness.rpc import EVERYTHING, INVALID_PARAMS, MISSING_CAPABILITY, NOTHING, PATIENCE, Tasking, text_of
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from tests.legacy.tasking import ASKABLE, RELATED, OldTasks, over_http

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("auth", [False, True], ids=["nobody", "an owner"])]

MODERN_WORDS = ("resultType", "ttlMs", "pollIntervalMs", "inputRequests", "io.modelcontextprotocol/serverInfo")
OLD_WORDS = (RELATED, '"ttl"', '"pollInterval"', '"execution"', '"task"')


@asynccontextmanager
async def both(auth: bool, desk: Desk | None = None) -> AsyncGenerator[tuple[Tasking, OldTasks, HttpWire]]:
    """A client of each era for the same owner, or for nobody."""
    async with serving(build(Tasks("memory://", settings=QUICK), desk, verifier=Tokens() if auth else None)) as wire:
        modern = Tasking(wire.as_user("alice-1") if auth else wire, EVERYTHING)
        yield modern, await over_http(wire.as_user("alice-2") if auth else wire), wire


async def test_a_task_of_the_new_era_is_seen_and_fetched_in_the_old(auth: bool) -> None:
    async with both(auth) as (modern, old, _):
        for tool, status in (("must", "completed"), ("fails", "failed"), ("breaks", "failed")):
            task_id = await modern.create(tool)
            assert (await old.until(task_id, status))["taskId"] == task_id
            reply = await old.ask("tasks/result", {"taskId": task_id})
            assert not [word for word in MODERN_WORDS if word in json.dumps(reply.message)]
            assert task_id in await old.listed()
            plain = await modern.get(task_id)
            assert plain["status"] == ("failed" if tool == "breaks" else "completed")


async def test_a_task_of_the_old_era_is_seen_in_the_new(auth: bool) -> None:
    async with both(auth) as (modern, old, _):
        for tool, status in (("must", "completed"), ("fails", "completed"), ("breaks", "failed")):
            task_id = (await old.create(tool, ttl=60_000))["taskId"]
            # Each answer is checked against the schema of the extension.
            task = await modern.until(task_id, status)
            assert not [word for word in OLD_WORDS if word in json.dumps(task)]
            assert task["ttlMs"] >= 60_000


async def test_each_era_cancels_the_tasks_of_the_other(auth: bool) -> None:
    async with both(auth) as (modern, old, _):
        made_new, made_old = await modern.create("gated"), (await old.create("gated"))["taskId"]
        assert (await old.cancel(made_new))["status"] == "cancelled"
        await modern.cancel(made_old)
        assert (await modern.get(made_new))["status"] == "cancelled"
        assert (await old.get(made_old))["status"] == "cancelled"


async def test_a_question_of_a_task_of_the_old_era_can_be_answered_in_the_new(auth: bool) -> None:
    async with both(auth) as (modern, old, _):
        task_id = (await old.create("ask_name"))["taskId"]
        await old.until(task_id, "input_required")
        [key] = (await modern.get(task_id))["inputRequests"]
        await modern.update(task_id, **{key: {"action": "accept", "content": {"name": "Ada"}}})
        with anyio.fail_after(PATIENCE):
            assert text_of(await old.result(task_id)) == "Hello, Ada!"


async def test_a_modern_client_without_the_extension_reaches_no_task_not_even_its_own_older_ones(auth: bool) -> None:
    async with both(auth) as (modern, old, _):
        task_id = (await old.create("gated"))["taskId"]
        bare = modern.declaring(NOTHING)
        for method in ("tasks/get", "tasks/cancel"):
            assert (await bare.ask(method, {"taskId": task_id})).code == MISSING_CAPABILITY
        assert (await old.get(task_id))["status"] == "working"


async def test_a_session_lists_a_modern_task_once_it_has_presented_its_id(auth: bool) -> None:
    async with both(auth) as (modern, old, _):
        task_id = await modern.create("gated")
        assert await old.listed() == ([task_id] if auth else [])
        await old.get(task_id)
        assert await old.listed() == [task_id]


async def test_another_owner_reaches_the_task_from_neither_era(auth: bool) -> None:
    async with both(auth) as (modern, old, wire):
        stranger = wire.as_user("mallory") if auth else wire
        task_ids = [await modern.create("gated"), (await old.create("gated"))["taskId"]]
        for task_id in task_ids:
            replies = [
                await (await over_http(stranger, ASKABLE)).ask("tasks/get", {"taskId": task_id}),
                await Tasking(stranger, EVERYTHING).ask("tasks/get", {"taskId": task_id}),
            ]
            # Without authentication there is nobody to tell apart: whoever has the id has the task.
            assert [reply.message.get("error", {}).get("code") for reply in replies] == (
                [INVALID_PARAMS] * 2 if auth else [None] * 2
            )
