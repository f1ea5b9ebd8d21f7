"""One endpoint, two eras: one owner's task from either side, and nothing of one on the other's wire."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from harness.http import HttpWire
from harness.older import RELATED, HttpClient, http_session
from harness.rpc import EVERYTHING, INVALID_PARAMS, MISSING_CAPABILITY, NOTHING, Tasking, text_of
from harness.server import Desk

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def _both(wire: HttpWire) -> AsyncGenerator[tuple[HttpClient, Tasking]]:
    async with http_session(wire) as session:
        yield session, Tasking(wire, EVERYTHING)


@pytest.mark.requirement("older/apart")
async def test_a_task_of_the_older_era_is_read_and_cancelled_from_the_newer(wire: HttpWire, desk: Desk) -> None:
    async with _both(wire) as (older, modern):
        task_id = await older.start("echo", value="from before")
        done = await modern.until(task_id, "completed")
        assert text_of(done["result"]) == "from before"
        assert RELATED not in json.dumps(done)
        running = await older.start("gated")
        await modern.cancel(running)
        assert (await older.get(running))["status"] == "cancelled"


@pytest.mark.requirement("older/apart")
async def test_a_task_of_the_newer_era_is_read_and_cancelled_from_the_older(wire: HttpWire) -> None:
    async with _both(wire) as (older, modern):
        task_id = await modern.create("point", x=1)
        result = (await older.result(task_id)).result
        assert result["structuredContent"] == {"x": 1.0, "y": None}
        assert result["_meta"] == {RELATED: {"taskId": task_id}}
        running = await modern.create("gated")
        assert (await older.cancel(running))["status"] == "cancelled"
        assert (await modern.get(running))["status"] == "cancelled"


@pytest.mark.requirement("older/failed", "status/failed-is-for-protocol-errors")
async def test_a_result_that_is_an_error_is_worded_by_each_era_in_its_own_way(wire: HttpWire) -> None:
    async with _both(wire) as (older, modern):
        for task_id in (await older.start("fails"), await modern.create("fails")):
            assert (await modern.until(task_id, "completed"))["result"]["isError"] is True
            assert (await older.get(task_id))["status"] == "failed"


@pytest.mark.requirement("older/bound-to-its-owner", "older/reject-others")
async def test_an_owner_is_the_same_in_both_eras_and_so_is_a_stranger(guarded: HttpWire) -> None:
    async with http_session(guarded.as_user("alice")) as alice, http_session(guarded.as_user("bob")) as bob:
        of_older = await alice.start("gated")
        of_newer = await Tasking(guarded.as_user("alice"), EVERYTHING).create("gated")
        for task_id in (of_older, of_newer):
            assert (await Tasking(guarded.as_user("alice-2"), EVERYTHING).get(task_id))["status"] == "working"
            assert (await alice.get(task_id))["status"] == "working"
            stranger = await Tasking(guarded.as_user("bob"), EVERYTHING).ask("tasks/get", {"taskId": task_id})
            assert stranger.code == (await bob.ask("tasks/get", {"taskId": task_id})).code == INVALID_PARAMS


@pytest.mark.requirement("eras/legacy-tasks-stay-reachable")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel"])
async def test_a_client_on_the_newer_wire_without_the_extension_is_told_to_declare_it(
    wire: HttpWire, method: str
) -> None:
    async with _both(wire) as (older, modern):
        task_id = await older.start("gated")
        undeclared = modern.declaring(NOTHING)
        assert (await undeclared.ask(method, {"taskId": task_id})).code == MISSING_CAPABILITY
        # Its tasks are not lost to it: the wire that made them still has them, and so has a client that declares.
        assert (await older.get(task_id))["status"] == "working"
        assert (await modern.get(task_id))["status"] == "working"
