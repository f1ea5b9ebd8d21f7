"""Each limit on callers, on both sides of it, over real HTTP: what is within it is served, and what is beyond it is
refused with an error that names it, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any, cast

import anyio
import pytest
from mcp import Client

from harness.older import http_session
from harness.rpc import EVERYTHING, TASKS, Reply, Tasking, accept, request, text_of
from harness.stored import all_tasks
from mcp_tasks import Limits, Tasks
from mcp_tasks.client import TaskHandle, TasksClient, start_task
from mcp_tasks.client.backend import get_task
from mcp_tasks.model.limits import KIB
from mcp_tasks.protocol.shapes import IDEMPOTENCY_KEY
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, OwnedBy
from mcp_tasks.stores.memory import MemoryStore
from tests.trust.guarded import guarded
from tests.trust.limited import QUICK, UNPACED, build, call, check_refused, limited, settled

pytestmark = pytest.mark.anyio


# Open tasks and bytes


async def test_an_owner_has_so_many_open_tasks_and_another_owner_its_own() -> None:
    store = MemoryStore()
    async with limited(Limits(owner_open_tasks=3, **UNPACED), store=store) as server:
        alice, bob = server.as_user("alice"), server.as_user("bob")
        mine = [await alice.create("gated") for _ in range(3)]
        refused = await call(alice, "gated")
        check_refused(refused, "owner_open_tasks", come_back=True)
        assert (await store.usage("limited", EVERYBODY)).open_tasks == 3, "nothing is half made"
        await bob.create("gated")
        # What ends makes room, as soon as somebody looks.
        await alice.cancel(mine[0])
        with anyio.fail_after(30):
            while "error" in (await call(alice, "gated")).message:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        check_refused(await call(alice, "gated"), "owner_open_tasks", come_back=True)


async def test_who_comes_again_for_a_task_that_is_there_is_given_it_however_many_there_are() -> None:
    async with limited(Limits(owner_open_tasks=2, **UNPACED)) as server:
        alice = server.as_user("alice")

        async def keyed(key: str, note: int) -> Reply:
            params = {"name": "gated", "arguments": {"note": note}}
            return await alice.ask("tools/call", params, meta={IDEMPOTENCY_KEY: key})

        first, second = [(await keyed(key, 1)).result["taskId"] for key in ("one", "two")]
        assert [(await keyed(key, 1)).result["taskId"] for key in ("one", "two")] == [first, second]
        check_refused(await keyed("three", 1), "owner_open_tasks", come_back=True)
        assert (await keyed("one", 2)).error["data"]["reason"] == "key_taken"


async def test_the_open_tasks_of_an_owner_count_for_all_processes_that_share_the_store() -> None:
    store, limits = MemoryStore(), Limits(owner_open_tasks=3, **UNPACED)
    async with limited(limits, store=store) as one, limited(limits, store=store) as other:
        for _ in range(3):
            await one.as_user("alice").create("gated")
        check_refused(await call(other.as_user("alice"), "gated"), "owner_open_tasks", come_back=True)


async def test_many_calls_at_once_do_not_get_past_the_limit() -> None:
    store = MemoryStore()
    async with limited(Limits(owner_open_tasks=5, **UNPACED), store=store) as server:
        alice = server.as_user("alice")
        replies = await asyncio.gather(*(call(alice, "gated") for _ in range(20)))
        made = [reply for reply in replies if "result" in reply.message]
        assert len(made) == (await store.usage("limited", EVERYBODY)).open_tasks == 5


async def test_without_authentication_there_is_a_total() -> None:
    async with limited(Limits(open_tasks=3, owner_open_tasks=1), auth=False) as server:
        for _ in range(3):
            await server.anybody.create("gated")
        check_refused(await call(server.anybody, "gated"), "open_tasks", come_back=True)


async def test_an_owner_stores_so_many_bytes_ended_tasks_included() -> None:
    async with limited(Limits(owner_stored_bytes=100_000, **UNPACED)) as server:
        alice = server.as_user("alice")
        await settled(alice, await alice.create("quick", size=20_000))
        await settled(alice, await alice.create("quick", size=40_000))
        with anyio.fail_after(30):
            # What a task has written since is counted at the next look.
            while "result" in (reply := await call(alice, "quick")).message:  # noqa: ASYNC110
                await anyio.sleep(0.05)
        assert check_refused(reply, "owner_stored_bytes", come_back=True) > 1_000
        await server.as_user("bob").create("quick")


@pytest.mark.parametrize("auth", [True, False], ids=["an owner", "nobody"])
@pytest.mark.parametrize("size", [4_000, 45_000], ids=["of 8 KB", "of 90 KB"])
async def test_results_that_end_at_once_are_kept_only_as_far_as_there_is_room(auth: bool, size: int) -> None:
    store, most = MemoryStore(), 200_000
    named = "owner_stored_bytes" if auth else "stored_bytes"
    async with limited(Limits(**{named: most}, **UNPACED), auth=auth, store=store) as server:
        alice = server.as_user("alice") if auth else server.anybody
        ids = [await alice.create("gated", size=size) for _ in range(60)]
        server.gate.set()
        ends = [await settled(alice, task_id) for task_id in ids]
        whose = OwnedBy((await all_tasks(store, "limited"))[0].owner or "") if auth else UNOWNED
        kept = (await store.usage("limited", whose)).stored_bytes
        failed = [end["error"] for end in ends if end["status"] == "failed"]
        # What says that there was no room is kept, too, and is small.
        assert most / 2 < kept < most + 1_000 * len(ends)
        assert 0 < len(failed) < len(ends)
        for error in failed:
            assert error["data"] == {"reason": "limit", "limit": named}
            assert "is not kept" in error["message"]
        check_refused(await call(alice, "quick"), named, come_back=True)


async def test_small_results_are_kept_however_much_there_is() -> None:
    async with limited(Limits(owner_stored_bytes=10_000, **UNPACED)) as server:
        alice = server.as_user("alice")
        ids = [await alice.create("gated", size=1_000) for _ in range(30)]
        server.gate.set()
        assert {(await settled(alice, task_id))["status"] for task_id in ids} == {"completed"}


async def test_code_of_the_server_is_held_to_the_numbers_and_its_children_to_the_total_alone() -> None:
    async with limited(Limits(owner_open_tasks=2, open_tasks=50, **UNPACED)) as server:
        alice = server.as_user("alice")
        task = await settled(alice, await alice.create("family", children=5))
        assert text_of(task["result"]) == "all"
    async with limited(Limits(open_tasks=3, **UNPACED)) as server:
        alice = server.as_user("alice")
        task = await settled(alice, await alice.create("family", children=5))
        assert task["result"]["isError"], "an error for the tool, and no wait for ever"


# How often


async def test_new_tasks_of_an_owner_come_at_a_pace_with_as_many_at_once() -> None:
    async with limited(Limits(owner_creates=4)) as server:
        alice, bob = server.as_user("alice"), server.as_user("bob")
        replies = await asyncio.gather(*(call(alice, "quick") for _ in range(20)))
        refused = [reply for reply in replies if "error" in reply.message]
        assert 20 - len(refused) >= 4
        wait = max(check_refused(reply, "owner_creates", come_back=True) for reply in refused)
        await bob.create("quick")
        await anyio.sleep(wait / 1000)  # sleep: as long as the server said
        await alice.create("quick")


async def test_without_authentication_new_tasks_have_a_pace_together_if_the_author_says_so() -> None:
    async with limited(Limits(creates=2), auth=False) as server:
        replies = await asyncio.gather(*(call(server.anybody, "quick") for _ in range(20)))
        refused = [reply for reply in replies if "error" in reply.message]
        assert 20 > len(refused) > 0
        check_refused(refused[0], "creates", come_back=True)


@pytest.mark.parametrize("task_id", ["mine", "unknown"])
async def test_who_asks_too_often_is_slowed_and_then_refused(task_id: str) -> None:
    async with limited(Limits(owner_requests=5)) as server:
        alice, bob = server.as_user("alice"), server.as_user("bob")
        asked = {"mine": await alice.create("gated"), "unknown": "task_unknown"}[task_id]
        began = anyio.current_time()
        replies = await asyncio.gather(*(alice.ask("tasks/get", {"taskId": asked}) for _ in range(30)))
        took = anyio.current_time() - began
        refused = [reply for reply in replies if reply.message.get("error", {}).get("code") == -32010]
        served = 30 - len(refused)
        # Five at once and five within the second that they may wait, whichever door refuses an unknown id.
        assert served >= 10
        assert served <= 10 + 5 * took + 1
        check_refused(refused[0], "owner_requests", come_back=True)
        await bob.ask("tasks/get", {"taskId": asked})
        await anyio.sleep(1.5)  # sleep: the pace of its requests comes back with time
        assert "error" not in (await alice.ask("tasks/cancel", {"taskId": await alice.create("gated")})).message


async def test_without_authentication_one_task_is_polled_at_a_pace_if_the_author_says_so() -> None:
    async with limited(Limits(task_polls=5), auth=False) as server:
        often, other = [await server.anybody.create("gated") for _ in range(2)]
        asked = (server.anybody.ask("tasks/get", {"taskId": often}) for _ in range(30))
        refused = [reply for reply in await asyncio.gather(*asked) if "error" in reply.message]
        check_refused(refused[0], "task_polls", come_back=True)
        await server.anybody.get(other)
        unknown = [server.anybody.ask("tasks/get", {"taskId": "unknown"}) for _ in range(30)]
        assert {reply.code for reply in await asyncio.gather(*unknown)} == {-32602}


async def test_a_poll_of_the_older_era_counts_like_any_other() -> None:
    async with limited(Limits(task_polls=5), auth=False) as server, http_session(server.wire) as session:
        task_id = await session.start("gated")
        asked = (session.ask("tasks/get", {"taskId": task_id}) for _ in range(30))
        refused = [reply for reply in await asyncio.gather(*asked) if "error" in reply.message]
        check_refused(refused[0], "task_polls", come_back=True)


# How much


async def test_arguments_have_so_many_bytes() -> None:
    async with limited(Limits(argument_bytes=2_000)) as server:
        alice = server.as_user("alice")
        await alice.create("gated", note="x" * 1_500)
        check_refused(await call(alice, "gated", note="x" * 2_000), "argument_bytes", come_back=False)
        unread = request("tools/call", {"name": "gated"}, meta={"mine": "x" * 2_000})
        check_refused(await server.wire.as_user("alice").send(unread), "argument_bytes", come_back=False)


def nested(depth: int) -> Any:
    """Lists in lists."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


async def test_arguments_are_nested_so_deep() -> None:
    async with limited(Limits(json_depth=8)) as server:
        alice = server.as_user("alice")
        await alice.create("gated", note=nested(7))
        check_refused(await call(alice, "gated", note=nested(8)), "json_depth", come_back=False)


async def test_a_client_says_so_much_of_itself() -> None:
    async with limited(Limits(client_bytes=1_000)) as server:
        alice = server.as_user("alice")
        told = {"extensions": {**TASKS["extensions"], "x": {"note": "x" * 1_000}}}
        await alice.declaring(TASKS).create("gated")
        check_refused(await call(alice.declaring(told), "gated"), "client_bytes", come_back=False)


async def test_an_answer_has_so_many_bytes_and_is_nested_so_deep_and_its_question_stays_open() -> None:
    async with limited(Limits(answer_bytes=1 * KIB, json_depth=8)) as server:
        alice = server.as_user("alice").declaring({**TASKS, "elicitation": {"form": {}}})
        task = await alice.until(await alice.create("asks", times=1), "input_required")
        [key] = task["inputRequests"]

        async def answer(content: dict[str, Any]) -> Any:
            responses = {key: accept(**content)}
            return await alice.ask("tasks/update", {"taskId": task["taskId"], "inputResponses": responses})

        check_refused(await answer({"name": "x" * 1_024}), "answer_bytes", come_back=False)
        check_refused(await answer({"name": "x", "more": nested(8)}), "json_depth", come_back=False)
        assert (await alice.get(task["taskId"]))["status"] == "input_required"
        assert "result" in (await answer({"name": "x" * 900})).message
        assert (await settled(alice, task["taskId"]))["status"] == "completed"


async def test_a_result_has_so_many_bytes_and_a_task_with_more_fails() -> None:
    async with limited(Limits(result_bytes=4_000)) as server:
        alice = server.as_user("alice")
        assert (await settled(alice, await alice.create("quick", size=1_500)))["status"] == "completed"
        failed = await settled(alice, await alice.create("quick", size=2_500))
        assert failed["status"] == "failed"
        assert "Limits.result_bytes" in failed["error"]["message"]


async def test_a_message_of_progress_is_cut() -> None:
    async with limited(Limits(status_message_bytes=100)) as server:
        alice = server.as_user("alice")
        short, long = await alice.create("says", message="é" * 40), await alice.create("says", message="é" * 60)
        with anyio.fail_after(30):
            while not (whole := (await alice.get(short)).get("statusMessage")):  # noqa: ASYNC110
                await anyio.sleep(0.01)
            while not (cut := (await alice.get(long)).get("statusMessage")):  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert whole == "é" * 40
        assert cut.endswith("…")
        assert cut.rstrip("…") == "é" * 48
        assert len(cut.encode()) <= 100


# What one task may have


async def test_a_tool_asks_so_much_at_a_time() -> None:
    async with limited(Limits(open_questions=2)) as server:
        alice = server.as_user("alice").declaring({**TASKS, "elicitation": {"form": {}}})
        within = await alice.until(await alice.create("asks", times=2), "input_required")
        assert len(within["inputRequests"]) == 2
        beyond = await settled(alice, await alice.create("asks", times=3))
        assert "Limits.open_questions" in str(beyond)


async def test_a_journal_has_so_many_entries() -> None:
    async with limited(Limits(journal_entries=5, **UNPACED)) as server:
        alice = server.as_user("alice")
        within = await settled(alice, await alice.create("steps", count=5))
        assert text_of(within["result"]) == "done"
        beyond = await settled(alice, await alice.create("steps", count=6))
        assert "Limits.journal_entries" in str(beyond)


async def test_a_question_stays_open_for_so_long() -> None:
    async with limited(Limits(question_wait=timedelta(milliseconds=300))) as server:
        alice = server.as_user("alice").declaring({**TASKS, "elicitation": {"form": {}}})
        failed = await settled(alice, await alice.create("asks", times=1))
        assert failed["error"]["data"] == {"reason": "max_wait"}


# Waiting


async def test_an_owner_has_so_many_requests_that_wait() -> None:
    store = MemoryStore()
    async with (
        limited(Limits(owner_waits=2, **UNPACED), store=store, companions="always") as server,
        http_session(server.wire.as_user("alice")) as alice,
        http_session(server.wire.as_user("bob")) as bob,
    ):
        task_id = await alice.start("gated")
        waiting = [alice.begin("tools/call", {"name": "gated", "arguments": {"note": n}}) for n in range(2)]
        with anyio.fail_after(30):
            while (await store.usage("limited", EVERYBODY)).open_tasks < 3:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        # Refused is whatever would wait, and nothing is started.
        refused = (await alice.call("gated", {"note": 3})).result
        assert refused["isError"]
        assert text_of(refused).startswith(
            'The tool "gated" was not called: You have 2 requests waiting for tasks here'
        )
        assert (await store.usage("limited", EVERYBODY)).open_tasks == 3
        assert (await alice.call("task_status", {"task_id": task_id})).result["isError"]
        check_refused(await alice.result(task_id), "owner_waits", come_back=True)
        assert (await alice.get(task_id))["status"] == "working"
        his = bob.begin("tools/call", {"name": "gated", "arguments": {}})
        server.gate.set()
        for each in (*waiting, his):
            assert text_of((await each.reply()).result) == "through"
        assert text_of((await alice.result(task_id)).result) == "through"


# Streams


@pytest.mark.parametrize("short_way", [True, False])
async def test_an_owner_has_so_many_streams_and_one_that_is_over_makes_room(short_way: bool) -> None:
    async with limited(Limits(owner_streams=2), short_way=short_way) as server:
        alice, bob = server.as_user("alice"), server.as_user("bob")
        task_id = await alice.create("gated")
        listen = {"notifications": {"taskIds": [task_id]}}
        wire = server.wire.as_user("alice")
        async with wire.stream(request("subscriptions/listen", listen)) as first:
            await anext(first)
            async with wire.stream(request("subscriptions/listen", listen)) as second:
                await anext(second)
                check_refused(await alice.ask("subscriptions/listen", listen), "owner_streams", come_back=True)
                async with server.wire.as_user("bob").stream(request("subscriptions/listen", listen)) as other:
                    await anext(other)
            with anyio.fail_after(30):
                while True:
                    async with wire.stream(request("subscriptions/listen", listen)) as again:
                        if "error" not in await anext(again):
                            break
                    await anyio.sleep(0.05)
        assert bob


async def test_streams_about_other_things_than_tasks_count_as_well() -> None:
    async with limited(Limits(owner_streams=1)) as server:
        alice = server.as_user("alice")
        listen = {"notifications": {"toolsListChanged": True}}
        # What is refused takes no place.
        await alice.declaring({}).ask("subscriptions/listen", {"notifications": {"toolsListChanged": 7}})
        async with server.wire.as_user("alice").stream(request("subscriptions/listen", listen)) as first:
            await anext(first)
            check_refused(await alice.ask("subscriptions/listen", listen), "owner_streams", come_back=True)
            named = {"notifications": {"taskIds": ["a"]}}
            check_refused(await alice.ask("subscriptions/listen", named), "owner_streams", come_back=True)
            async with server.wire.as_user("bob").stream(request("subscriptions/listen", listen)) as other:
                await anext(other)
        with anyio.fail_after(30):
            while True:
                async with server.wire.as_user("alice").stream(request("subscriptions/listen", listen)) as again:
                    if "error" not in await anext(again):
                        break
                await anyio.sleep(0.05)


@pytest.mark.parametrize("short_way", [True, False])
async def test_a_stream_names_so_many_tasks(short_way: bool) -> None:
    async with limited(Limits(stream_tasks=2), short_way=short_way) as server:
        alice = server.as_user("alice")
        within = request("subscriptions/listen", {"notifications": {"taskIds": ["a", "b"]}})
        async with server.wire.as_user("alice").stream(within) as stream:
            assert "error" not in await anext(stream)
        beyond = await alice.ask("subscriptions/listen", {"notifications": {"taskIds": ["a", "b", "c"]}})
        check_refused(beyond, "stream_tasks", come_back=False)


# Other doors


async def test_a_caller_of_the_older_era_is_held_to_the_same() -> None:
    limits = Limits(owner_creates=1, owner_open_tasks=1, argument_bytes=1_000)
    async with limited(limits) as server, http_session(server.wire.as_user("alice")) as session:
        large = {"name": "gated", "arguments": {"note": "x" * 1_000}, "task": {}}
        check_refused(await session.ask("tools/call", large), "argument_bytes", come_back=False)
        called: dict[str, Any] = {"name": "gated", "arguments": {}, "task": {}}
        wait = check_refused(await session.ask("tools/call", called), "owner_creates", come_back=True)
        await anyio.sleep(wait / 1000)  # sleep: as long as the server said
        assert "task" in (await session.ask("tools/call", called)).result
        await anyio.sleep(1.1)  # sleep: until another may be made, but for the limit on those that are open
        check_refused(await session.ask("tools/call", called), "owner_open_tasks", come_back=True)


async def test_a_model_without_tasks_reads_in_words_what_it_may_not() -> None:
    async with limited(Limits(owner_creates=1, argument_bytes=1_000)) as server:
        alice = server.as_user("alice").declaring({})
        first, second = [(await call(alice, "quick")).result for _ in range(2)]
        assert not first.get("isError")
        assert second["isError"]
        assert text_of(second).startswith('The tool "quick" was not called: You start tasks more often than once')
        assert text_of(second).endswith('Call "quick" again, but not before 1 s have passed.')


async def test_a_call_that_comes_back_counts_as_a_request_about_a_task() -> None:
    async with limited(Limits(owner_requests=2)) as server:
        alice = server.as_user("alice").declaring({"elicitation": {"form": {}}})
        asked = (await call(alice, "asks", times=1)).result
        again = {"name": "asks", "arguments": {"times": 1}, "requestState": asked["requestState"]}
        replies = await asyncio.gather(*(alice.ask("tools/call", again) for _ in range(12)))
        refused = [reply for reply in replies if "error" in reply.message]
        assert 0 < len(refused) < 12
        check_refused(refused[0], "owner_requests", come_back=True)
        bob = server.as_user("bob")
        assert "result" in (await call(bob, "quick")).message


# One user over a pipe, or in this process


@pytest.mark.parametrize("way", ["tasks/sendInput", "task_answer"])
async def test_the_values_of_an_answer_count_whichever_way_it_comes(way: str) -> None:
    wanted = Limits(owner_requests=50, owner_creates=None)
    async with guarded(limits=wanted, send_input=True) as (wire, _), http_session(wire.as_user("ada")) as session:
        task_id = await Tasking(wire.as_user("ada"), EVERYTHING).create("ask")
        await Tasking(wire.as_user("ada"), EVERYTHING).until(task_id, "input_required")
        # It does not fit, and the question stays open.
        content = {"name": 7, "more": [0] * 1_000}

        async def answer() -> str:
            if way == "task_answer":
                given = {"task_id": task_id, "action": "accept", "content": content}
                return json.dumps((await session.call(way, given)).message)
            return json.dumps((await session.ask(way, {"taskId": task_id, "content": content})).message)

        said = await asyncio.gather(*(answer() for _ in range(8)))
        assert any("does not fit" in each for each in said)
        assert any("You ask about tasks more often" in each for each in said)


@pytest.mark.parametrize("auth", [False, True], ids=["open", "authenticated elsewhere"])
async def test_a_single_user_meets_no_limit_with_the_defaults(auth: bool) -> None:
    server = build(Tasks(MemoryStore(), settings=QUICK), asyncio.Event(), auth=auth)
    async with Client(server, extensions=[TasksClient()]) as client:
        started = [cast(TaskHandle, await start_task(client, "quick")).id for _ in range(200)]
        for number in range(500 if auth else 2_000):
            assert (await get_task(client.session, started[number % 200])).id == started[number % 200]
