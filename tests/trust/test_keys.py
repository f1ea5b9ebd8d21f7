"""Idempotent creation: a call made again under the same key comes to the same task, by every door."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from harness.http import initialize, serving
from harness.rpc import EVERYTHING, INTERNAL_ERROR, INVALID_PARAMS, Tasking
from harness.waiting import eventually
from mcp_tasks import Limits
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.stores import MemoryStore
from tests.trust.keyed import DOORS, KEY, LONG_KEY, build, opened, told

BOTH_ORDERS = ({"a": 1, "b": 2}, {"b": 2, "a": 1})


@pytest.mark.parametrize("door", DOORS)
async def test_a_call_made_again_under_its_key_comes_to_the_same_task_and_another_is_refused(door: str) -> None:
    key = "a-key-that-nobody-may-see"
    async with opened(door) as (scene, caller):
        replies = await asyncio.gather(*(caller.call("pay", key, amount=7) for _ in range(8)))
        [first] = {told(reply) for reply in replies}
        await scene.until_idle()
        assert told(await caller.call("pay", key, amount=7)) == first
        assert scene.runs["pay"] == 1
        for tool, amount in (("pay", 8), ("refund", 7)):
            reply = await caller.call(tool, key, amount=amount)
            assert (reply.code, reply.error["data"]) == (INVALID_PARAMS, {"reason": "key_taken"})
        # The key is neither kept nor shown to the tool.
        [task] = await scene.all_tasks()
        request = await scene.store.request(task.id)
        assert request is not None
        assert KEY not in request.meta
        assert key not in repr((task, request))
        assert [KEY in meta for meta in scene.meta] == [False]
        other = told(await caller.call("pay", "o" * 22, amount=7))
        await scene.until_idle()
        assert scene.runs["pay"] == 2
        assert door.endswith("without tasks") or other != first
        # The order of arguments makes no other call.
        turned = [await caller.call("pay", "m" * 22, amount=7, more=each) for each in BOTH_ORDERS]
        assert told(turned[0]) == told(turned[1])
        if door == "short":
            assert scene.tasks.short_way.answered["tools/call"] == 14
            assert not scene.tasks.short_way.handed_over


@pytest.mark.parametrize("door", DOORS)
async def test_what_is_no_key_or_could_be_guessed_is_refused(door: str) -> None:
    async with opened(door) as (scene, caller):
        for key in (7, "", "k" * 256, ["k" * 30], True, {"key": "k" * 30}):
            reply = await caller.call("pay", key, user="ada", amount=7)
            assert reply.code == INVALID_PARAMS
            assert "must be a string of 1 to 255 characters" in reply.error["message"]
        reply = await caller.call("pay", "k" * 21, amount=7)
        assert (reply.code, reply.error["data"]) == (INVALID_PARAMS, {"reason": "key_too_short"})
        assert "at least 22 characters" in reply.error["message"]
        assert not await scene.all_tasks()
        # Who has a name guesses only among its own.
        told(await caller.call("pay", "1", user="ada", amount=7))
        assert len(await scene.all_tasks()) == 1


@pytest.mark.parametrize("door", DOORS)
async def test_each_owner_has_keys_of_its_own_and_so_has_the_servers_own_code(door: str) -> None:
    async with opened(door) as (scene, caller):
        for user in ("ada", "bob", "ada", None):
            told(await caller.call("pay", LONG_KEY, user=user, amount=7))
        await scene.until_idle()
        assert sorted(str(task.owner) for task in await scene.all_tasks()) == ["None", "ada", "bob"]
        own = [(await scene.tasks.start("pay", {"amount": 7}, key=LONG_KEY)).id for _ in range(2)]
        assert own[0] == own[1]
        assert len(await scene.all_tasks()) == 4


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

        async def taken() -> bool:
            return "result" in (await caller.send(params, "o" * 22)).message

        await eventually(taken)
        await scene.until_idle()
        assert scene.runs["joined"] == 2


async def test_a_crash_between_a_key_and_its_task_starts_nothing_twice() -> None:
    params = {"name": "joined", "arguments": {"amount": 7}}
    async with opened("sdk") as (scene, caller):
        first = told(await caller.send(params, LONG_KEY))

        async def crash() -> None:
            """As if the process had died before it could write down which task the key led to."""
            [place] = [task for task in await scene.all_tasks() if task.id != first]
            lost = replace(place, version=place.version + 1, status_message=None)
            await scene.store.save(lost, expected=place.version)

        await crash()
        assert told(await caller.send(params, LONG_KEY)) == first
        scene.gate.set()
        await scene.until_idle()
        await crash()
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


async def test_the_server_says_that_it_honours_keys() -> None:
    async with serving(build().server) as wire:
        discovered = (await Tasking(wire, EVERYTHING).ask("server/discover")).result
        assert discovered["capabilities"]["experimental"] == {"mcp-tasks/idempotencyKeys": {}}
        # The schema of the extension has no settings.
        assert discovered["capabilities"]["extensions"] == {"io.modelcontextprotocol/tasks": {}}
        for version in ("2025-11-25", "2025-06-18"):
            _, introduced = await initialize(wire, {}, version)
            assert introduced["capabilities"]["experimental"]["mcp-tasks/idempotencyKeys"] == {}


class AwayStore(MemoryStore):
    """A store that for a while keeps no new task, or keeps it and does not say so."""

    is_away, keeps = True, False

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        if not self.is_away:
            return await super().create(record, request, **options)
        if self.keeps:
            await super().create(record, request, **options)
        raise StoreUnavailable("secret-host:5432", may_have_happened=self.keeps)


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("door", DOORS)
async def test_every_caller_is_told_whether_the_call_may_have_been_made_and_can_make_it_again(
    door: str, keeps: bool
) -> None:
    store = AwayStore()
    store.keeps = keeps
    async with opened(door, store=store) as (scene, way):
        error = (await way.call("pay", LONG_KEY, amount=7)).error
        store.is_away = False
        first = told(await way.call("pay", LONG_KEY, amount=7))
        assert told(await way.call("pay", LONG_KEY, amount=7)) == first
        assert len(await scene.all_tasks()) == 1
        await scene.until_idle()
        assert scene.runs["pay"] == 1
    assert error["code"] == INTERNAL_ERROR
    assert error["data"] == {"reason": "may_have_happened" if keeps else "unavailable"}
    assert ("may have been carried out" in error["message"]) is keeps
    assert "secret" not in error["message"]
