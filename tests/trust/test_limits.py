"""Each limit on callers, on both sides of it, over real HTTP: what is within it is served, and what is beyond it is
refused with an error that names it, and leaves nothing behind.

Rules of paces and of counting, without a wire: `tests/unit/protocol/test_paces_and_room.py`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, cast

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from harness.http import HttpWire, http_client
from harness.older import http_session
from harness.rpc import EVERYTHING, NOTHING, PATIENCE, TASKS, Reply, Tasking, accept, request, text_of
from harness.stdio import stdio_process
from harness.stored import all_tasks
from harness.waiting import eventually
from mcp_tasks import Limits, Tasks
from mcp_tasks.client import TaskHandle, TasksClient, start_task
from mcp_tasks.client.backend import ModernTask, is_transient, retry_after
from mcp_tasks.model.limits import KIB
from mcp_tasks.protocol.shapes import IDEMPOTENCY_KEY, LIMIT_EXCEEDED
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, OwnedBy
from mcp_tasks.stores.memory import MemoryStore
from tests.legacy.tasking import OldTasks, over_http
from tests.trust.guarded import NAMELESS, build, call, check_refused, guarded, limited, settled

UNPACED: Final[dict[str, Any]] = {"owner_creates": None, "owner_requests": None}
"""For a test of another limit: it may be as quick as it likes."""

FORMS: Final[dict[str, Any]] = {**TASKS, "elicitation": {"form": {}}}


def turned_away(replies: list[Reply]) -> list[Reply]:
    return [reply for reply in replies if reply.message.get("error", {}).get("code") == LIMIT_EXCEEDED]


async def many(ask: Callable[[], Awaitable[Reply]], count: int = 30) -> list[Reply]:
    return list(await asyncio.gather(*(ask() for _ in range(count))))


# Open tasks and bytes


async def test_an_owner_has_so_many_open_tasks_and_another_owner_its_own() -> None:
    store = MemoryStore()
    async with (
        limited(owner_open_tasks=5, **UNPACED, store=store) as server,
        limited(owner_open_tasks=5, **UNPACED, store=store) as other,
    ):
        alice, bob = server.as_user("alice"), server.as_user("bob")
        replies = await many(lambda: call(alice, "gated"), 20)
        made = [reply.result["taskId"] for reply in replies if "result" in reply.message]
        assert len(made) == (await store.usage("guarded", EVERYBODY)).open_tasks == 5, "nothing is half made"
        # In every process that shares the store.
        check_refused(await call(other.as_user("alice"), "gated"), "owner_open_tasks")
        await bob.create("gated")
        # What ends makes room, as soon as somebody looks.
        await alice.cancel(made[0])

        async def served() -> bool:
            return "result" in (await call(alice, "gated")).message

        await eventually(served)
        check_refused(await call(alice, "gated"), "owner_open_tasks")


async def test_who_comes_again_for_a_task_that_is_there_is_given_it_however_many_there_are() -> None:
    async with limited(owner_open_tasks=2, **UNPACED) as server:
        alice = server.as_user("alice")

        async def keyed(key: str, note: int) -> Reply:
            params = {"name": "gated", "arguments": {"note": note}}
            return await alice.ask("tools/call", params, meta={IDEMPOTENCY_KEY: key})

        first, second = [(await keyed(key, 1)).result["taskId"] for key in ("one", "two")]
        assert [(await keyed(key, 1)).result["taskId"] for key in ("one", "two")] == [first, second]
        check_refused(await keyed("three", 1), "owner_open_tasks")
        assert (await keyed("one", 2)).error["data"]["reason"] == "key_taken"


async def test_without_authentication_there_is_a_total() -> None:
    async with limited(open_tasks=3, owner_open_tasks=1, auth=False) as server:
        for _ in range(3):
            await server.anybody.create("gated")
        check_refused(await call(server.anybody, "gated"), "open_tasks")


@pytest.mark.parametrize("auth", [True, False], ids=["an owner", "nobody"])
@pytest.mark.parametrize("size", [4_000, 45_000], ids=["of 8 KB", "of 90 KB"])
async def test_results_that_end_at_once_are_kept_only_as_far_as_there_is_room(auth: bool, size: int) -> None:
    most, named = 200_000, "owner_stored_bytes" if auth else "stored_bytes"
    async with limited(**{named: most}, **UNPACED, auth=auth) as server:
        alice = server.as_user("alice") if auth else server.anybody
        ids = [await alice.create("gated", size=size) for _ in range(60)]
        server.gate.set()
        ends = [await settled(alice, task_id) for task_id in ids]
        whose = OwnedBy((await all_tasks(server.store, "guarded"))[0].owner or "") if auth else UNOWNED
        kept = (await server.store.usage("guarded", whose)).stored_bytes
        failed = [end["error"] for end in ends if end["status"] == "failed"]
        # What says that there was no room is kept, too, and is small.
        assert most / 2 < kept < most + 1_000 * len(ends)
        assert 0 < len(failed) < len(ends)
        for error in failed:
            assert error["data"] == {"reason": "limit", "limit": named}
            assert "is not kept" in error["message"]
        assert check_refused(await call(alice, "echo"), named) > 1
        if auth:
            await server.as_user("bob").create("echo")


async def test_children_are_held_to_the_total_alone() -> None:
    for limits, is_error in (({"owner_open_tasks": 2, "open_tasks": 50}, False), ({"open_tasks": 3}, True)):
        async with limited(**limits, **UNPACED) as server:
            alice = server.as_user("alice")
            if not is_error:
                server.gate.set()
            task = await settled(alice, await alice.create("family", children=5))
            # An error for the tool, and no wait for ever.
            assert task["result"].get("isError", False) is is_error


# How often


async def test_new_tasks_of_an_owner_come_at_a_pace_with_as_many_at_once() -> None:
    async with limited(owner_creates=4) as server:
        alice, bob = server.as_user("alice"), server.as_user("bob")
        refused = turned_away(await many(lambda: call(alice, "echo"), 40))
        assert 0 < len(refused) <= 36
        wait = max(check_refused(reply, "owner_creates") for reply in refused)
        await bob.create("echo")
        await anyio.sleep(wait)  # sleep: as long as the server said
        await alice.create("echo")


@pytest.mark.parametrize("task_id", ["mine", "unknown"])
async def test_who_asks_too_often_is_slowed_and_then_refused(task_id: str) -> None:
    async with limited(owner_requests=5) as server:
        alice, bob = server.as_user("alice"), server.as_user("bob")
        asked = {"mine": await alice.create("gated"), "unknown": "task_unknown"}[task_id]
        began = anyio.current_time()
        replies = await many(lambda: alice.ask("tasks/get", {"taskId": asked}))
        took = anyio.current_time() - began
        refused = turned_away(replies)
        # Five at once and five within the second that they may wait, whichever door refuses an unknown id.
        assert 10 <= 30 - len(refused) <= 10 + 5 * took + 1
        wait = max(check_refused(reply, "owner_requests") for reply in refused)
        await bob.ask("tasks/get", {"taskId": asked})
        await anyio.sleep(wait)  # sleep: as long as the server said
        assert not turned_away([await alice.ask("tasks/get", {"taskId": asked})])


async def test_one_task_is_polled_at_a_pace_in_both_eras_if_the_author_says_so() -> None:
    async with limited(task_polls=5, auth=False) as server, http_session(server.wire) as session:
        often, other = [await server.anybody.create("gated") for _ in range(2)]
        older = await session.start("gated")
        for ask, task_id in ((server.anybody.ask, often), (session.ask, older)):
            replies = await many(lambda ask=ask, task_id=task_id: ask("tasks/get", {"taskId": task_id}))
            check_refused(turned_away(replies)[0], "task_polls")
        await server.anybody.get(other)
        assert not turned_away(await many(lambda: server.anybody.ask("tasks/get", {"taskId": "unknown"})))


async def test_a_call_that_comes_back_counts_as_a_request_about_a_task() -> None:
    async with limited(owner_requests=2) as server:
        alice = server.as_user("alice").declaring({"elicitation": {"form": {}}})
        asked = (await call(alice, "asks", times=1)).result
        again = {"name": "asks", "arguments": {"times": 1}, "requestState": asked["requestState"]}
        refused = turned_away(await many(lambda: alice.ask("tools/call", again), 12))
        assert 0 < len(refused) < 12
        check_refused(refused[0], "owner_requests")
        assert "result" in (await call(server.as_user("bob"), "echo")).message


@pytest.mark.parametrize("way", ["tasks/sendInput", "task_answer", "tasks/update"])
async def test_the_values_of_an_answer_count_whichever_way_it_comes(way: str) -> None:
    wanted = Limits(owner_requests=50, owner_creates=None)
    async with guarded(limits=wanted, send_input=True) as (wire, _), http_session(wire.as_user("ada")) as session:
        ada = Tasking(wire.as_user("ada"), EVERYTHING)
        task_id = await ada.create("ask")
        [key] = (await ada.until(task_id, "input_required"))["inputRequests"]
        # It does not fit, and the question stays open.
        content = {"name": 7, "more": [0] * 1_000}

        async def answer() -> Reply:
            if way == "task_answer":
                return await session.call(way, {"task_id": task_id, "action": "accept", "content": content})
            if way == "tasks/sendInput":
                return await session.ask(way, {"taskId": task_id, "content": content})
            responses = {key: {"action": "accept", "content": content}}
            return await ada.ask(way, {"taskId": task_id, "inputResponses": responses})

        said = [json.dumps(reply.message) for reply in await many(answer, 8)]
        assert any("does not fit" in each for each in said)
        assert any("You ask about tasks more often" in each for each in said)


# How much


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


async def test_what_a_call_brings_along_has_so_many_bytes_and_is_nested_so_deep() -> None:
    async with limited(argument_bytes=2_000, json_depth=8, client_bytes=1_000) as server:
        alice = server.as_user("alice")
        told = {"extensions": {**TASKS["extensions"], "x": {"note": "x" * 1_000}}}
        await alice.create("gated", note="x" * 1_500)
        await alice.create("gated", note=nested(7))
        check_refused(await call(alice, "gated", note="x" * 2_000), "argument_bytes", come_back=False)
        unread = request("tools/call", {"name": "gated"}, meta={"mine": "x" * 2_000})
        check_refused(await server.wire.as_user("alice").send(unread), "argument_bytes", come_back=False)
        check_refused(await call(alice, "gated", note=nested(8)), "json_depth", come_back=False)
        check_refused(await call(alice.declaring(told), "gated"), "client_bytes", come_back=False)


async def test_an_answer_has_so_many_bytes_and_is_nested_so_deep_and_its_question_stays_open() -> None:
    async with limited(answer_bytes=1 * KIB, json_depth=8) as server:
        alice = server.as_user("alice").declaring(FORMS)
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


@pytest.mark.parametrize(
    ("limits", "tool", "within", "beyond", "says"),
    [
        ({"result_bytes": 4_000}, "echo", {"size": 1_500}, {"size": 2_500}, "Limits.result_bytes"),
        ({"journal_entries": 5}, "steps", {"count": 5}, {"count": 6}, "Limits.journal_entries"),
        ({"open_questions": 2}, "asks", {"times": 0}, {"times": 3}, "Limits.open_questions"),
        ({"question_wait": timedelta(milliseconds=300)}, "asks", {"times": 0}, {"times": 1}, "max_wait"),
    ],
)
async def test_a_task_has_so_much_and_with_more_it_fails(
    limits: dict[str, Any], tool: str, within: dict[str, Any], beyond: dict[str, Any], says: str
) -> None:
    async with limited(**limits, **UNPACED) as server:
        alice = server.as_user("alice").declaring(FORMS)
        assert says not in str(await settled(alice, await alice.create(tool, **within)))
        assert says in str(await settled(alice, await alice.create(tool, **beyond)))


# Waiting and listening


async def test_an_owner_has_so_many_requests_that_wait() -> None:
    async with (
        limited(owner_waits=2, **UNPACED, options={"companions": "always"}) as server,
        http_session(server.wire.as_user("alice")) as alice,
        http_session(server.wire.as_user("bob")) as bob,
    ):

        async def made(count: int) -> bool:
            return (await server.store.usage("guarded", EVERYBODY)).open_tasks == count

        task_id = await alice.start("gated")
        waiting = [alice.begin("tools/call", {"name": "gated", "arguments": {"note": n}}) for n in range(2)]
        await eventually(lambda: made(3))
        # Refused is whatever would wait, and nothing is started.
        refused = (await alice.call("gated", {"note": 3})).result
        assert refused["isError"]
        assert 'The tool "gated" was not called: You have 2 requests waiting for tasks here' in text_of(refused)
        assert await made(3)
        assert (await alice.call("task_status", {"task_id": task_id})).result["isError"]
        check_refused(await alice.result(task_id), "owner_waits")
        assert (await alice.get(task_id))["status"] == "working"
        his = bob.begin("tools/call", {"name": "gated", "arguments": {}})
        server.gate.set()
        for each in (*waiting, his):
            assert text_of((await each.reply()).result) == "through"
        assert text_of((await alice.result(task_id)).result) == "through"


async def opened(wire: HttpWire, message: dict[str, Any]) -> bool:
    """Whether a stream may be opened, and left again."""
    async with wire.stream(message) as stream:
        return "error" not in await anext(stream)


@pytest.mark.parametrize("short_way", [True, False])
@pytest.mark.parametrize("wanted", [{"taskIds": ["a", "b"]}, {"toolsListChanged": True}], ids=["tasks", "others"])
async def test_an_owner_has_so_many_streams_of_so_many_tasks(short_way: bool, wanted: dict[str, Any]) -> None:
    limits = {"owner_streams": 2, "stream_tasks": 2, "connection_unknown": None, "unknown": None}
    async with limited(**limits, options={"short_way": short_way}) as server:
        alice, wire, listen = server.as_user("alice"), server.wire.as_user("alice"), {"notifications": wanted}
        message = request("subscriptions/listen", listen)
        # What is refused takes no place.
        await alice.declaring({}).ask("subscriptions/listen", {"notifications": {"toolsListChanged": 7}})
        beyond = await alice.ask("subscriptions/listen", {"notifications": {"taskIds": ["a", "b", "c"]}})
        check_refused(beyond, "stream_tasks", come_back=False)
        async with wire.stream(message) as first:
            await anext(first)
            async with wire.stream(message) as second:
                await anext(second)
                check_refused(await alice.ask("subscriptions/listen", listen), "owner_streams")
                assert await opened(server.wire.as_user("bob"), message)
            await eventually(lambda: opened(wire, message))


# Other doors


async def test_a_caller_of_the_older_era_is_held_to_the_same() -> None:
    limits = {"owner_creates": 1, "owner_open_tasks": 1, "argument_bytes": 1_000}
    async with limited(**limits) as server, http_session(server.wire.as_user("alice")) as session:
        large = {"name": "gated", "arguments": {"note": "x" * 1_000}, "task": {}}
        check_refused(await session.ask("tools/call", large), "argument_bytes", come_back=False)
        called: dict[str, Any] = {"name": "gated", "arguments": {}, "task": {}}
        wait = check_refused(await session.ask("tools/call", called), "owner_creates")
        await anyio.sleep(wait)  # sleep: as long as the server said
        assert "task" in (await session.ask("tools/call", called)).result

        async def limit() -> bool:
            # The pace comes first, and comes back with time.
            return (await session.ask("tools/call", called)).error["data"]["limit"] == "owner_open_tasks"

        await eventually(limit)


@pytest.mark.parametrize("auth", [False, True], ids=["open", "authenticated elsewhere"])
async def test_a_single_user_meets_no_limit_with_the_defaults(auth: bool) -> None:
    server = build(Tasks(MemoryStore()), auth=auth)
    async with Client(server, extensions=[TasksClient()]) as client:
        started = [cast(TaskHandle, await start_task(client, "echo")).id for _ in range(150)]
        for number in range(400):
            assert (await ModernTask(client.session, started[number % 150]).get()).id == started[number % 150]


# Callers without a name

SELDOM: Final = 0.2
"""A second: of many requests the first passes, however busy this machine is."""


@asynccontextmanager
async def forwarded(wire: HttpWire, address: str) -> AsyncGenerator[HttpWire]:
    """Requests as a proxy on this machine sends them for one client, over as many connections as it likes."""
    # uvicorn trusts a proxy on its own machine, if nothing else is said.
    async with http_client() as client:
        client.headers["x-forwarded-for"] = address
        yield HttpWire(wire.url, client)


def asking(kind: str, client: Tasking | OldTasks) -> Callable[[], Awaitable[Reply]]:
    if kind == "creates":
        return lambda: call(client, "echo") if isinstance(client, Tasking) else client.try_create("echo")
    method = {"cancels": "tasks/cancel", "unknown": "tasks/get"}[kind]
    return lambda: client.ask(method, {"taskId": "task_unknown"})


@pytest.mark.parametrize("era", ["modern", "older"])
@pytest.mark.parametrize("kind", NAMELESS)
async def test_a_connection_that_asks_far_too_often_is_refused_and_others_are_not(kind: str, era: str) -> None:
    async with (
        limited(auth=False, **{f"connection_{kind}": SELDOM}) as server,
        forwarded(server.wire, "192.0.2.1") as loud,
        forwarded(server.wire, "192.0.2.2") as quiet,
    ):
        flood, honest = [
            asking(kind, Tasking(way) if era == "modern" else await over_http(way)) for way in (loud, quiet)
        ]
        replies, one = await asyncio.gather(many(flood), honest())
    refused = turned_away(replies)
    assert 1 <= 30 - len(refused) < 30
    check_refused(refused[0], f"connection_{kind}")
    assert not turned_away([one])
    assert getattr(Limits(), f"connection_{kind}") is not None, "it has a limit without a word of the author's"


@pytest.mark.parametrize("kind", NAMELESS)
async def test_all_connections_have_a_total(kind: str) -> None:
    async with limited(auth=False, **{kind: SELDOM}) as server:
        replies: list[Reply] = []

        async def come_from(address: str) -> None:
            async with forwarded(server.wire, address) as way:
                replies.extend([await asking(kind, Tasking(way))() for _ in range(3)])

        await asyncio.gather(*(come_from(f"192.0.2.{number}") for number in range(6)))
        check_refused(turned_away(replies)[0], kind)


async def test_companion_tools_and_streams_that_name_unknown_tasks_count_too() -> None:
    limits = {"connection_cancels": SELDOM, "connection_unknown": SELDOM}
    options = {"companions": "always"}
    async with limited(auth=False, options=options, **limits) as server:
        for number, tool in enumerate(("task_cancel", "task_status")):
            async with forwarded(server.wire, f"192.0.2.{number}") as way:
                ask = Tasking(way, NOTHING).call
                said = await asyncio.gather(*(ask(tool, task_id="task_unknown") for _ in range(30)))
            assert 0 < len([each for each in said if "callers without a name" in text_of(each)]) < 30
        named = request("subscriptions/listen", {"notifications": {"taskIds": ["task_unknown"]}})
        async with forwarded(server.wire, "192.0.2.9") as way:
            assert await opened(way, named)

            async def refusal() -> Reply | None:
                reply = await way.send(named)
                return reply if "error" in reply.message else None

            found = await eventually(refusal)
            assert found is not None
            check_refused(found, "connection_unknown")


async def test_polls_of_a_task_that_is_there_pass_while_others_on_the_connection_guess() -> None:
    limits = {"connection_unknown": SELDOM, "unknown": SELDOM}
    async with limited(auth=False, **limits) as server, forwarded(server.wire, "192.0.2.1") as way:
        client = Tasking(way)
        task_id = await client.create("gated")
        guesses, polls = await asyncio.gather(
            many(asking("unknown", client)), many(lambda: client.ask("tasks/get", {"taskId": task_id}))
        )
    assert turned_away(guesses)
    assert [reply.result["status"] for reply in polls] == ["working"] * 30


async def test_an_address_is_read_only_from_a_proxy_that_the_operator_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "192.0.2.99")
    transport = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=1))
    async with (
        limited(auth=False, connection_unknown=SELDOM) as server,
        httpx2.AsyncClient(transport=transport, timeout=PATIENCE) as one,
    ):
        replies: list[Reply] = []
        for number in range(3):
            one.headers["x-forwarded-for"] = f"192.0.2.{number}"
            replies.append(await asking("unknown", Tasking(HttpWire(server.wire.url, one)))())
        check_refused(turned_away(replies)[0], "connection_unknown")


@pytest.mark.parametrize("who", ["switched off", "with a name", "a pipe"])
async def test_who_is_not_counted_among_callers_without_a_name(who: str) -> None:
    paces: dict[str, Any] = {f"{prefix}{kind}": SELDOM for prefix in ("", "connection_") for kind in NAMELESS}

    async def ask_often(client: Tasking | OldTasks) -> None:
        for kind in NAMELESS:
            assert not turned_away(await many(asking(kind, client)))

    if who == "a pipe":
        async with stdio_process("--seldom", module="tests.trust.guarded") as pipe:
            await ask_often(Tasking(pipe))
    elif who == "with a name":
        async with limited(**paces, **UNPACED) as server:
            await ask_often(server.as_user("alice"))
    else:
        async with limited(auth=False, anonymous=False, **paces) as server:
            await ask_often(server.anybody)
            await ask_often(await over_http(server.wire))


# Our client, at a server that says when to come back


async def test_a_client_that_asks_too_often_is_put_off_and_gets_its_answers() -> None:
    async with limited(owner_requests=5, owner_creates=None) as server, http_client() as http:
        http.headers["authorization"] = "Bearer alice"
        transport = streamable_http_client(server.wire.url, http_client=http)
        async with Client(transport, extensions=[TasksClient()]) as client:
            task = await start_task(client, "gated")
            assert isinstance(task, TaskHandle)
            # Twenty at once: five are answered, five a little later, and ten are told to come back.
            with anyio.fail_after(60):
                seen = await asyncio.gather(*(ModernTask(client.session, task.id).get() for _ in range(20)))
            assert {each.id for each in seen} == {task.id}
            server.gate.set()
            assert not (await task.result(timeout=60)).is_error


@pytest.mark.parametrize(
    ("code", "data", "seconds"),
    [
        (LIMIT_EXCEEDED, {"retryAfterMs": 1_500}, 1.5),
        (LIMIT_EXCEEDED, {"retryAfterMs": -5}, 0.0),
        *((LIMIT_EXCEEDED, data, None) for data in ({"retryAfterMs": "soon"}, {"retryAfterMs": True}, {}, None)),
        (-32602, {"retryAfterMs": 1_500}, None),
    ],
)
def test_when_to_come_back_is_said_by_a_number_and_with_one_code(code: int, data: Any, seconds: float | None) -> None:
    error = MCPError(code, "no", data)
    assert retry_after(error) == seconds
    assert is_transient(error) is (seconds is not None)
