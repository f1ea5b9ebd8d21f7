"""Idempotent creation: a call made again under the same key comes to the same task, by every door."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from harness.http import initialize, serving
from harness.rpc import EVERYTHING, INVALID_PARAMS, PATIENCE, Tasking
from mcp_tasks import Limits
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.model.record import WriteId
from mcp_tasks.stores import MemoryStore
from tests.trust.keyed import DOORS, KEY, LONG_KEY, TASK_DOORS, build, opened, told

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("door", DOORS)
async def test_the_same_call_under_the_same_key_comes_to_the_same_task(door: str) -> None:
    async with opened(door) as (scene, caller):
        first = told(await caller.call("pay", LONG_KEY, amount=7))
        again = [told(await caller.call("pay", LONG_KEY, amount=7)) for _ in range(3)]
        assert again == [first] * 3
        await scene.until_idle()
        assert scene.runs["pay"] == 1
        other = await caller.call("pay", "o" * 22, amount=7)
        await scene.until_idle()
        assert scene.runs["pay"] == 2
        assert door.endswith("without tasks") or told(other) != first


@pytest.mark.parametrize("door", DOORS)
async def test_many_at_once_make_one_task(door: str) -> None:
    async with opened(door) as (scene, caller):
        replies = await asyncio.gather(*(caller.call("pay", LONG_KEY, amount=7) for _ in range(8)))
        assert len({told(reply) for reply in replies}) == 1
        await scene.until_idle()
        assert scene.runs["pay"] == 1


class WatchedStore(MemoryStore):
    """Keeps the newest write id of each creation and change."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[WriteId | None] = []

    async def create(self, record: TaskRecord, *args: Any, **options: Any) -> TaskRecord:
        self.ids.append(next(iter(record.writes), None))
        return await super().create(record, *args, **options)

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        self.ids.append(next(iter(record.writes), None))
        return await super().save(record, **options)


@pytest.mark.parametrize("tool", ["pay", "joined"])
async def test_each_write_of_a_call_has_an_id_of_its_own(tool: str) -> None:
    store = WatchedStore()
    async with opened(TASK_DOORS[0], store=store) as (scene, caller):
        told(await caller.send({"name": tool, "arguments": {"amount": 7}}, LONG_KEY))
        scene.gate.set()
        await scene.until_idle()
    assert None not in store.ids
    assert len(set(store.ids)) == len(store.ids) > 1


@pytest.mark.parametrize("door", DOORS)
async def test_another_call_under_the_key_is_refused(door: str) -> None:
    async with opened(door) as (scene, caller):
        await caller.call("pay", LONG_KEY, amount=7)
        for tool, amount in (("pay", 8), ("refund", 7)):
            reply = await caller.call(tool, LONG_KEY, amount=amount)
            assert reply.code == INVALID_PARAMS
            assert reply.error["data"] == {"reason": "key_taken"}
        await scene.until_idle()
        assert scene.runs.total() == 1


@pytest.mark.parametrize("door", DOORS)
async def test_the_key_of_an_expired_task_is_spent_for_a_day(door: str) -> None:
    async with opened(door) as (scene, caller):
        await caller.call("pay", LONG_KEY, amount=7)
        await scene.until_idle()
        await scene.pass_time(timedelta(hours=2))
        reply = await caller.call("pay", LONG_KEY, amount=7)
        assert reply.code == INVALID_PARAMS
        assert reply.error["data"] == {"reason": "key_spent"}
        assert "has expired" in reply.error["message"]
        assert scene.runs["pay"] == 1
        await scene.pass_time(timedelta(hours=24))
        told(await caller.call("pay", LONG_KEY, amount=7))
        await scene.until_idle()
        assert scene.runs["pay"] == 2


@pytest.mark.parametrize("door", DOORS)
async def test_without_a_name_a_key_that_could_be_guessed_is_refused(door: str) -> None:
    async with opened(door) as (scene, caller):
        reply = await caller.call("pay", "k" * 21, amount=7)
        assert reply.code == INVALID_PARAMS
        assert reply.error["data"] == {"reason": "key_too_short"}
        assert "at least 22 characters" in reply.error["message"]
        assert not await scene.all_tasks()
        told(await caller.call("pay", "1", user="ada", amount=7))
        assert len(await scene.all_tasks()) == 1


@pytest.mark.parametrize("door", DOORS)
async def test_each_owner_has_keys_of_its_own(door: str) -> None:
    async with opened(door) as (scene, caller):
        for user in ("ada", "bob", "ada", None):
            told(await caller.call("pay", LONG_KEY, user=user, amount=7))
        await scene.until_idle()
        assert sorted(str(task.owner) for task in await scene.all_tasks()) == ["None", "ada", "bob"]


@pytest.mark.parametrize("door", DOORS)
async def test_what_is_no_key_is_refused_and_says_what_it_must_be(door: str) -> None:
    async with opened(door) as (scene, caller):
        for key in (7, "", "k" * 256, ["k" * 30], True, {"key": "k" * 30}):
            reply = await caller.call("pay", key, user="ada", amount=7)
            assert reply.code == INVALID_PARAMS
            assert "must be a string of 1 to 255 characters" in reply.error["message"]
        assert not await scene.all_tasks()


@pytest.mark.parametrize("door", DOORS)
async def test_the_key_is_neither_kept_nor_shown_to_the_tool(door: str) -> None:
    key = "a-key-that-nobody-may-see"
    async with opened(door) as (scene, caller):
        told(await caller.call("pay", key, amount=7))
        await scene.until_idle()
        [task] = await scene.all_tasks()
        request = await scene.store.request(task.id)
        assert request is not None
        assert KEY not in request.meta
        assert key not in repr((task, request))
        assert all(KEY not in meta for meta in scene.meta)
        assert len(scene.meta) == 1


async def test_calls_under_keys_stay_on_the_short_way() -> None:
    async with opened("short") as (scene, caller):
        for _ in range(3):
            await caller.call("pay", LONG_KEY, amount=7)
        assert scene.tasks.short_way.answered["tools/call"] == 3
        await caller.call("pay", LONG_KEY, amount=8)
        assert not scene.tasks.short_way.handed_over


@pytest.mark.parametrize("door", ["short", "sdk"])
async def test_a_call_that_was_answered_at_once_is_answered_in_the_same_way(door: str) -> None:
    async with opened(door) as (scene, caller):
        first = (await caller.call("quick", LONG_KEY, amount=7)).result
        assert first["resultType"] == "complete"
        assert (await caller.call("quick", LONG_KEY, amount=7)).result == first
        assert scene.runs["quick"] == 1
        # Without a key nothing of it is kept, as ever.
        await caller.call("quick", amount=7)
        assert len(await scene.all_tasks()) == 1
        failed = (await caller.call("fails", "f" * 22, amount=7)).result
        assert failed["isError"]
        assert (await caller.call("fails", "f" * 22, amount=7)).result == failed
        assert scene.runs["fails"] == 1


@pytest.mark.parametrize("door", ["short", "sdk", "without tasks"])
async def test_each_request_of_a_call_that_is_asked_something_first_may_be_made_again(door: str) -> None:
    async with opened(door) as (scene, caller):
        first = (await caller.call("asks", LONG_KEY)).result
        again = (await caller.call("asks", LONG_KEY)).result
        assert first["resultType"] == again["resultType"] == "input_required"
        assert again["inputRequests"] == first["inputRequests"]
        assert scene.runs["asks"] == 1
        params: dict[str, Any] = {
            "name": "asks",
            "arguments": {},
            "inputResponses": {"sure": {"action": "accept", "content": {}}},
        }
        if "requestState" in first:
            params["requestState"] = first["requestState"]
        ended = told(await caller.send(params, LONG_KEY))
        assert told(await caller.send(params, LONG_KEY)) == ended
        # The whole call from its beginning, too.
        if "requestState" in again:
            params["requestState"] = again["requestState"]
        assert told(await caller.send(params, LONG_KEY)) == ended
        await scene.until_idle()
        assert scene.runs["asked"] == 1
        params["inputResponses"] = {"sure": {"action": "decline"}}
        assert (await caller.send(params, LONG_KEY)).error["data"] == {"reason": "key_taken"}
        assert scene.runs["asked"] == 1


@pytest.mark.parametrize("door", ["short", "sdk"])
async def test_calls_that_join_are_joined_whatever_their_keys_are_and_made_once_all_the_same(door: str) -> None:
    params = {"name": "joined", "arguments": {"amount": 7}}
    async with opened(door) as (scene, caller):
        first = told(await caller.send(params, LONG_KEY))
        assert told(await caller.send(params, "o" * 22)) == first
        assert told(await caller.send(params, "o" * 22, repeated=True)) == first
        scene.gate.set()
        await scene.until_idle()
        # Each key is of its call, as everywhere else; a third call is another one.
        other = {"name": "joined", "arguments": {"amount": 8}}
        for key in (LONG_KEY, "o" * 22):
            for repeated in (False, True):
                assert told(await caller.send(params, key, repeated=repeated)) == first
            for another in (other, {"name": "pay", "arguments": {"amount": 7}}):
                assert (await caller.send(another, key)).error["data"] == {"reason": "key_taken"}
        assert scene.runs["joined"] == 1
        assert told(await caller.send(params, "t" * 22)) != first
        await scene.until_idle()
        assert scene.runs == {"joined": 2}
        await scene.pass_time(timedelta(hours=2))
        assert (await caller.send(params, LONG_KEY)).error["data"] == {"reason": "key_spent"}


async def test_a_call_that_joins_and_is_refused_leaves_its_key_free() -> None:
    async with opened("sdk", limits=Limits(open_tasks=1)) as (scene, caller):
        first = told(await caller.send({"name": "joined", "arguments": {"amount": 1}}, LONG_KEY))
        params = {"name": "joined", "arguments": {"amount": 2}}
        assert (await caller.send(params, "o" * 22)).error["data"]["limit"] == "open_tasks"
        assert [task.id for task in await scene.all_tasks() if not task.is_final] == [first]
        scene.gate.set()
        await scene.until_idle()
        with anyio.fail_after(PATIENCE):
            while "error" in (await caller.send(params, "o" * 22)).message:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        await scene.until_idle()
        assert scene.runs["joined"] == 2


async def test_a_crash_between_a_key_and_its_task_starts_nothing_twice() -> None:
    params = {"name": "joined", "arguments": {"amount": 7}}
    async with opened("sdk") as (scene, caller):
        first = told(await caller.send(params, LONG_KEY))
        [place] = [task for task in await scene.all_tasks() if task.id != first]
        # As if the process had died before it could write down which task it was.
        await scene.store.save(replace(place, version=place.version + 1, status_message=None), expected=place.version)
        assert told(await caller.send(params, LONG_KEY)) == first
        scene.gate.set()
        await scene.until_idle()
        [place] = [task for task in await scene.all_tasks() if task.id != first]
        await scene.store.save(replace(place, version=place.version + 1, status_message=None), expected=place.version)
        assert (await caller.send(params, LONG_KEY)).error["data"] == {"reason": "call_not_kept"}
        assert scene.runs["joined"] == 1


async def test_a_call_that_joins_is_answered_although_its_key_could_not_be_kept() -> None:
    class Away(MemoryStore):
        async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
            if record.status is TaskStatus.CANCELLED:
                raise StoreUnavailable("away")
            return await super().save(record, **options)

    params = {"name": "joined", "arguments": {"amount": 7}}
    async with opened("sdk", store=Away()) as (scene, caller):
        first = told(await caller.send(params, LONG_KEY))
        assert told(await caller.send(params, LONG_KEY, repeated=True)) == first
        scene.gate.set()
        await scene.until_idle()
        assert scene.runs["joined"] == 1


@pytest.mark.parametrize("door", ["short", "sdk", "older tasks"])
async def test_a_key_is_of_one_call_whether_its_tool_asks_first_or_not(door: str) -> None:
    async with opened(door) as (scene, caller):
        await caller.call("pay", LONG_KEY, amount=7)
        assert (await caller.call("asks", LONG_KEY)).error["data"] == {"reason": "key_taken"}
        await caller.call("asks", "o" * 22)
        assert (await caller.call("pay", "o" * 22, amount=7)).error["data"] == {"reason": "key_taken"}
        assert len(await scene.all_tasks()) == 2


@pytest.mark.parametrize("door", DOORS)
async def test_a_plain_call_takes_no_notice_of_its_key_but_is_not_made_again(door: str) -> None:
    async with opened(door) as (scene, caller):
        if door == "older tasks":
            pytest.skip("a plain tool is not offered as a task")
        assert told(await caller.call("plain", "short", amount=7)) == "paid 7 plainly"
        assert scene.runs["plain"] == 1
        if not door.startswith("older"):
            reply = await caller.send({"name": "plain", "arguments": {"amount": 7}}, "short", repeated=True)
            assert reply.error["data"] == {"reason": "call_not_kept"}
            assert scene.runs["plain"] == 1


@pytest.mark.parametrize("door", TASK_DOORS)
async def test_keys_of_clients_never_meet_those_of_the_servers_own_code(door: str) -> None:
    async with opened(door) as (scene, caller):
        own = await scene.tasks.start("pay", {"amount": 7}, key=LONG_KEY)
        assert told(await caller.call("pay", LONG_KEY, amount=7)) != own.id
        again = await scene.tasks.start("pay", {"amount": 7}, key=LONG_KEY)
        assert again.id == own.id


async def test_the_server_says_that_it_honours_keys() -> None:
    async with serving(build().server) as wire:
        discovered = (await Tasking(wire, EVERYTHING).ask("server/discover")).result
        assert discovered["capabilities"]["experimental"] == {"mcp-tasks/idempotencyKeys": {}}
        # The schema of the extension has no settings.
        assert discovered["capabilities"]["extensions"] == {"io.modelcontextprotocol/tasks": {}}
        for version in ("2025-11-25", "2025-06-18"):
            _, introduced = await initialize(wire, {}, version)
            assert introduced["capabilities"]["experimental"]["mcp-tasks/idempotencyKeys"] == {}


async def test_the_order_of_arguments_makes_no_other_call() -> None:
    async with opened("short") as (_, caller):
        params: dict[str, Any] = json.loads('{"name": "pay", "arguments": {"amount": 7, "more": {"a": 1, "b": 2}}}')
        turned: dict[str, Any] = json.loads('{"name": "pay", "arguments": {"more": {"b": 2, "a": 1}, "amount": 7}}')
        assert told(await caller.send(params, LONG_KEY)) == told(await caller.send(turned, LONG_KEY))
