"""`tasks/list`: pages, cursors, and whose tasks are on them."""

from __future__ import annotations

from typing import Any

import pytest

from harness.http import HttpWire
from harness.older import RELATED, HttpClient, OlderClient, http_session
from harness.rpc import EVERYTHING, INVALID_PARAMS, Tasking

pytestmark = pytest.mark.anyio

MANY = 120


@pytest.mark.requirement("older/pages", "older/next-cursor")
async def test_many_tasks_come_in_pages_each_task_once(client: HttpClient) -> None:
    ids = [await client.start("echo", value=number) for number in range(MANY)]
    first = (await client.ask("tasks/list")).result
    assert 0 < len(first["tasks"]) < MANY
    assert first["nextCursor"]
    assert sorted(task["taskId"] for task in await client.listed()) == sorted(ids)


@pytest.mark.requirement("older/next-cursor")
async def test_the_last_page_has_no_cursor(everywhere: OlderClient) -> None:
    assert (await everywhere.ask("tasks/list")).result.keys() - {"_meta"} == {"tasks"}
    task_id = await everywhere.start("gated")
    only = (await everywhere.ask("tasks/list")).result
    assert [task["taskId"] for task in only["tasks"]] == [task_id]
    assert "nextCursor" not in only


@pytest.mark.requirement("older/bad-cursor")
@pytest.mark.parametrize(
    "cursor",
    ["", "nope", "MTIz", "eyJhIjoxfQ==", "0", "-1", "x" * 10_000, "\u0000", 7, {}, [], True],
    ids=lambda c: repr(c)[:20],
)
async def test_a_cursor_that_is_none_of_ours_is_an_invalid_param(client: HttpClient, cursor: Any) -> None:
    await client.start("gated")
    assert (await client.ask("tasks/list", {"cursor": cursor})).code == INVALID_PARAMS


@pytest.mark.requirement("older/listed-as-got", "older/no-related-task-in-results")
async def test_a_listed_task_is_the_task_that_get_shows(everywhere: OlderClient) -> None:
    running, done = await everywhere.start("gated"), await everywhere.start("fails")
    await everywhere.until(done, "failed")
    listed = {task["taskId"]: task for task in await everywhere.listed()}
    assert listed.keys() == {running, done}
    for task_id, task in listed.items():
        got = await everywhere.get(task_id)
        assert {key: got[key] for key in task if key != "ttl"} == {key: task[key] for key in task if key != "ttl"}
        assert RELATED not in got.get("_meta", {})


@pytest.mark.requirement("older/listed-as-got")
async def test_a_task_of_another_session_is_listed_once_it_was_found(client: HttpClient) -> None:
    task_id = await client.start("gated")
    async with http_session(client.wire) as other:
        assert await other.listed() == []
        for method in ("tasks/get", "tasks/cancel"):
            await other.ask(method, {"taskId": task_id})
            assert [task["taskId"] for task in await other.listed()] == [task_id]
    assert [task["taskId"] for task in await client.listed()] == [task_id]


@pytest.mark.requirement("older/listed-as-got")
async def test_a_task_of_the_other_era_is_listed_once_it_was_found(wire: HttpWire, client: HttpClient) -> None:
    modern = await Tasking(wire, EVERYTHING).create("gated")
    assert await client.listed() == []
    assert (await client.get(modern))["taskId"] == modern
    assert [task["taskId"] for task in await client.listed()] == [modern]


@pytest.mark.requirement("older/listed-as-got")
async def test_adopted_tasks_come_in_pages_too(client: HttpClient) -> None:
    ids = [await client.start("echo", value=number) for number in range(MANY)]
    async with http_session(client.wire) as other:
        own = await other.start("gated")
        for task_id in ids:
            await other.get(task_id)
        pages = await other.listed()
    assert sorted(task["taskId"] for task in pages) == sorted([own, *ids])


@pytest.mark.requirement("older/list-is-own")
async def test_a_list_has_only_the_tasks_of_its_owner(guarded: HttpWire) -> None:
    async with (
        http_session(guarded.as_user("alice")) as alice,
        http_session(guarded.as_user("alice-2")) as again,
        http_session(guarded.as_user("bob")) as bob,
    ):
        assert "list" in alice.capabilities["tasks"]
        mine, theirs = await alice.start("gated"), await bob.start("gated")
        assert [task["taskId"] for task in await alice.listed()] == [mine]
        assert [task["taskId"] for task in await again.listed()] == [mine]
        assert [task["taskId"] for task in await bob.listed()] == [theirs]
        await bob.ask("tasks/get", {"taskId": mine})
        assert [task["taskId"] for task in await bob.listed()] == [theirs]


@pytest.mark.requirement("older/list-is-own", "older/bad-cursor")
async def test_a_cursor_of_somebody_else_shows_nothing_of_theirs(guarded: HttpWire) -> None:
    async with http_session(guarded.as_user("alice")) as alice, http_session(guarded.as_user("bob")) as bob:
        for number in range(MANY):
            await alice.start("echo", value=number)
        mine = await bob.start("gated")
        cursor = (await alice.ask("tasks/list")).result["nextCursor"]
        stolen = (await bob.ask("tasks/list", {"cursor": cursor})).message
        shown: list[dict[str, Any]] = stolen["result"]["tasks"] if "result" in stolen else []
        assert {task["taskId"] for task in shown} <= {mine}
