"""`tasks/list` of 2025-11-25: pages, cursors, and whose tasks are on them. And one owner's tasks in both versions."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from harness.http import HttpWire, serving
from harness.older import RELATED, HttpClient, http_session
from harness.rpc import EVERYTHING, INVALID_PARAMS, MISSING_CAPABILITY, NOTHING, PATIENCE, Tasking, accept, text_of
from harness.server import QUICK, UNPACED, Desk
from mcp_tasks import Tasks
from mcp_tasks.testing import FakeClock
from tests.spec.calling import Caller
from tests.spec.furnished import furnished

pytestmark = pytest.mark.anyio

PAGE = 50
MODERN_WORDS = ("resultType", "ttlMs", "pollIntervalMs", "inputRequests", "io.modelcontextprotocol/serverInfo")
OLD_WORDS = (RELATED, '"ttl"', '"pollInterval"', '"execution"', '"task"')


async def ids(client: HttpClient) -> list[str]:
    return [task["taskId"] for task in await client.listed()]


@pytest.mark.requirement("older/pages", "older/next-cursor", "older/listed-as-got")
async def test_many_tasks_come_in_pages_each_task_once_adopted_ones_after_the_own(older: HttpClient) -> None:
    assert (await older.ask("tasks/list")).result.keys() - {"_meta"} == {"tasks"}
    made = [await older.start("echo", value=number) for number in range(PAGE)]
    # As many as just fit.
    assert "nextCursor" not in (await older.ask("tasks/list")).result
    made += [await older.start("echo", value=number) for number in range(3)]
    first = (await older.ask("tasks/list")).result
    second = (await older.ask("tasks/list", {"cursor": first["nextCursor"]})).result
    assert (len(first["tasks"]), len(second["tasks"]), "nextCursor" in second) == (PAGE, 3, False)
    assert await ids(older) == made
    async with http_session(older.wire) as other:
        own = await other.start("gated")
        for task_id in made:
            await other.get(task_id)
        assert len((await other.ask("tasks/list")).result["tasks"]) == PAGE
        assert await ids(other) == [own, *made]


@pytest.mark.requirement("older/listed-as-got", "older/no-related-task-in-results")
async def test_a_listed_task_is_the_task_that_get_shows(older: HttpClient) -> None:
    running, failed = await older.start("gated"), await older.start("fails")
    await older.until(failed, "failed")
    listed = {task["taskId"]: task for task in await older.listed()}
    assert listed.keys() == {running, failed}
    for task_id, task in listed.items():
        assert {**await older.get(task_id), "ttl": 0, "pollInterval": 0} == {**task, "ttl": 0, "pollInterval": 0}
        assert "_meta" not in task


@pytest.mark.requirement("older/listed-as-got")
async def test_a_task_of_another_session_or_era_is_listed_once_it_was_found(older: HttpClient, wire: HttpWire) -> None:
    modern = Tasking(wire, EVERYTHING)
    for method, tool in (("tasks/get", "gated"), ("tasks/result", "must"), ("tasks/cancel", "gated")):
        async with http_session(wire) as other:
            own = await other.start("gated")
            found = [await older.start(tool), await modern.create(tool)]
            for task_id in found:
                assert task_id not in await ids(other)
                assert (await other.ask(method, {"taskId": task_id})).result
            assert (await other.ask(method, {"taskId": "unknown"})).code == INVALID_PARAMS
            # Again, and they are still there once.
            await other.get(found[0])
            assert await ids(other) == [own, *found]


@pytest.mark.parametrize("gone", [PAGE - 1, PAGE], ids=["last shown", "next"])
async def test_a_task_that_expires_between_two_pages_takes_no_other_with_it(gone: int) -> None:
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    server = furnished(Tasks("memory://", clock=clock, settings=QUICK, limits=UNPACED))
    async with serving(server) as wire, http_session(wire) as one, http_session(wire) as other:
        made: list[str] = []
        for n in range(PAGE + 3):
            made.append(await one.start("echo", value=n, task={"ttl": 1_000 if n in (3, gone) else 3_600_000}))
            await one.until(made[-1], "completed")
            await other.get(made[-1])
        first = (await other.ask("tasks/list")).result
        assert [task["taskId"] for task in first["tasks"]] == made[:PAGE]
        clock.advance(timedelta(minutes=1))
        second = (await other.ask("tasks/list", {"cursor": first["nextCursor"]})).result
        expected = [task_id for n, task_id in enumerate(made) if n >= PAGE and n != gone]
        assert [task["taskId"] for task in second["tasks"]] == expected
        assert "nextCursor" not in second
        # Once more, now that the session has forgotten what is gone.
        assert (await other.ask("tasks/list", {"cursor": first["nextCursor"]})).result == second


NO_CURSORS: list[Any] = [
    *(7, {}, [], True, "", "nope", "0", "-1", "\u0000", "☃", "eyJhIjoxfQ==", "A" * 100_000),
    *(
        base64.urlsafe_b64encode(text).decode()
        for text in (b"", b"x1", b"s", b"snope", b"a", b"a-1", b"a1", b"a" + b"9" * 5000, b"a\xff")
    ),
]


@pytest.mark.requirement("older/bad-cursor")
async def test_a_cursor_that_is_none_of_ours_is_an_invalid_param(older: HttpClient, guarded: HttpWire) -> None:
    await older.start("gated")
    async with http_session(guarded.as_user("alice")) as alice:
        await alice.start("gated")
        for cursor in NO_CURSORS:
            for client in (older, alice):
                assert (await client.ask("tasks/list", {"cursor": cursor})).code == INVALID_PARAMS, cursor


@pytest.mark.requirement("older/list-is-own", "older/bad-cursor", "older/list-capability")
async def test_a_list_has_only_the_tasks_of_its_owner_in_each_session(guarded: HttpWire) -> None:
    async with (
        http_session(guarded.as_user("alice")) as alice,
        http_session(guarded.as_user("alice-2")) as again,
        http_session(guarded.as_user("bob")) as bob,
    ):
        assert "list" in alice.capabilities["tasks"]
        made = [await client.start("gated") for client in (alice, again)]
        modern = Tasking(guarded.as_user("alice-3"), EVERYTHING)
        made.append(await modern.create("gated"))
        bobs = await bob.start("gated")
        assert await ids(alice) == await ids(again) == made
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert (await bob.ask(method, {"taskId": made[0]})).code == INVALID_PARAMS
        assert await ids(bob) == [bobs]
        for number in range(PAGE):
            await alice.start("echo", value=number)
        cursor = (await alice.ask("tasks/list")).result["nextCursor"]
        stolen = (await bob.ask("tasks/list", {"cursor": cursor})).message
        shown: list[dict[str, Any]] = stolen["result"]["tasks"] if "result" in stolen else []
        assert {task["taskId"] for task in shown} <= {bobs}


async def test_a_task_of_which_nobody_was_told_yet_is_not_listed(desk: Desk) -> None:
    tasks = Tasks("memory://", grace=timedelta(seconds=PATIENCE), settings=QUICK)
    async with serving(furnished(tasks, desk, guarded=True)) as wire, http_session(wire.as_user("alice")) as older:
        call = asyncio.create_task(Tasking(wire.as_user("alice"), EVERYTHING).call("gated"))
        await desk.started.wait()
        assert await older.listed() == []
        desk.gate.set()
        assert text_of(await call) == "through"


# Both versions on one endpoint


@asynccontextmanager
async def _both(*, guarded: bool) -> AsyncGenerator[tuple[HttpClient, Tasking, HttpWire]]:
    """A client of each version for the same owner, or for nobody."""
    async with serving(furnished(Tasks("memory://", settings=QUICK), guarded=guarded)) as wire:
        one, other = (wire.as_user("alice"), wire.as_user("alice-2")) if guarded else (wire, wire)
        async with http_session(one) as session:
            yield session, Tasking(other, EVERYTHING), wire


@pytest.mark.requirement("older/apart", "older/failed", "status/failed-is-for-protocol-errors")
@pytest.mark.parametrize("guarded", [False, True], ids=["nobody", "an owner"])
async def test_a_task_of_one_era_is_seen_fetched_and_cancelled_in_the_other_in_its_own_words(*, guarded: bool) -> None:
    async with _both(guarded=guarded) as (older, modern, _):
        ends = {"must": ("completed", "completed"), "fails": ("failed", "completed"), "breaks": ("failed", "failed")}
        for tool, (in_older, in_modern) in ends.items():
            for task_id in (await modern.create(tool), await older.start(tool, task={"ttl": 60_000})):
                shown = await modern.until(task_id, in_modern)
                assert not [word for word in OLD_WORDS if word in json.dumps(shown)]
                assert shown["ttlMs"] >= 60_000
                assert (await older.get(task_id))["status"] == in_older
                reply = await older.result(task_id)
                assert not [word for word in MODERN_WORDS if word in json.dumps(reply.message)]
                assert await Caller(older).outcome(task_id)
        of_modern, of_older = await modern.create("gated"), await older.start("gated")
        assert (await older.cancel(of_modern))["status"] == "cancelled"
        await modern.cancel(of_older)
        assert (await modern.get(of_modern))["status"] == "cancelled"
        assert (await older.get(of_older))["status"] == "cancelled"
        asking = await older.start("ask_name")
        [key] = (await modern.until(asking, "input_required"))["inputRequests"]
        await modern.update(asking, **{key: accept(name="Ada")})
        assert text_of((await older.result(asking)).result) == "Hello, Ada!"


@pytest.mark.requirement("older/bound-to-its-owner", "older/reject-others")
@pytest.mark.parametrize("guarded", [False, True], ids=["nobody", "an owner"])
async def test_a_stranger_reaches_the_task_from_neither_era_unless_there_are_no_owners(*, guarded: bool) -> None:
    async with _both(guarded=guarded) as (older, modern, wire):
        stranger = wire.as_user("bob") if guarded else wire
        async with http_session(stranger) as other:
            for task_id in (await modern.create("gated"), await older.start("gated")):
                for client in (other, Tasking(stranger, EVERYTHING)):
                    reply = await client.ask("tasks/get", {"taskId": task_id})
                    assert reply.message.get("error", {}).get("code") == (INVALID_PARAMS if guarded else None)


@pytest.mark.requirement("eras/legacy-tasks-stay-reachable")
async def test_a_client_on_the_newer_wire_without_the_extension_is_told_to_declare_it(
    client: Tasking, older: HttpClient
) -> None:
    task_id = await older.start("gated")
    for method in ("tasks/get", "tasks/cancel"):
        assert (await client.declaring(NOTHING).ask(method, {"taskId": task_id})).code == MISSING_CAPABILITY
    # Its tasks are not lost to it: the wire that made them still has them, and so has a client that declares.
    assert (await older.get(task_id))["status"] == "working"
    assert (await client.get(task_id))["status"] == "working"
