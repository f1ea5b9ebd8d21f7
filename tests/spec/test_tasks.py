"""A task of 2026-07-28: announced, looked at, answered, cancelled, and told of."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.http import HttpWire, http_client, modern_headers, serving, serving_app
from harness.rpc import (
    EVERYTHING,
    EXTENSION,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    MODERN,
    NOTHING,
    PATIENCE,
    TASKS,
    Tasking,
    accept,
    notification,
    request,
    text_of,
)
from harness.schema import check_notification, check_task_notification
from harness.server import QUICK, Desk, build
from harness.stored import all_tasks
from mcp_tasks import Tasks
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.testing.clock import FakeClock
from tests.unit.running import Held, MeddledStore

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
ALWAYS = {"resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs", "_meta"}
NOON = "2026-01-01T12:00:00.000Z"
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
ADA = accept(name="Ada")


async def asked(client: Tasking, tool: str = "ask_name") -> tuple[str, list[str]]:
    """A task that waits for input, and the keys of its questions."""
    task = await client.until(await client.create(tool), "input_required")
    return task["taskId"], list(task["inputRequests"])


async def said(client: Tasking, task_id: str) -> str:
    return text_of((await client.until(task_id, "completed"))["result"])


@asynccontextmanager
async def timed(**options: Any) -> AsyncGenerator[tuple[Tasking, FakeClock, Desk, Tasks]]:
    """A client of a server whose time the test moves on."""
    clock, desk = FakeClock(), Desk()
    tasks = Tasks("memory://", clock=clock, settings=QUICK, **options)
    async with serving(build(tasks, desk)) as wire:
        yield Tasking(wire, EVERYTHING), clock, desk, tasks


# Announced


@pytest.mark.requirement("results/task-is-marked", "task/fields")
async def test_a_created_task_has_exactly_the_fields_of_a_task(client: Tasking) -> None:
    before = datetime.now().astimezone()
    created = await client.call("echo", value=1)
    assert created.keys() == ALWAYS
    assert (created["resultType"], created["status"]) == ("task", "working")
    assert created["_meta"] == {"io.modelcontextprotocol/serverInfo": {"name": "furnished", "version": "1"}}
    assert created["createdAt"] == created["lastUpdatedAt"]
    done = await client.until(created["taskId"], "completed")
    for field in ("createdAt", "lastUpdatedAt"):
        assert TIMESTAMP.fullmatch(done[field])
        assert before - timedelta(milliseconds=1) <= datetime.fromisoformat(done[field]) <= datetime.now().astimezone()


@pytest.mark.requirement("task/fields")
async def test_durations_and_instants_are_whole_milliseconds() -> None:
    odd = timedelta(microseconds=1234567)
    async with timed(default_ttl=odd) as (client, clock, desk, tasks):
        clock.advance(timedelta(microseconds=123_999))
        tasks.mark("gated", poll_interval=odd)
        created = await client.call("gated")
        desk.gate.set()
        done = await client.until(created["taskId"], "completed")
    for task in (created, done):
        assert (type(task["ttlMs"]), type(task["pollIntervalMs"])) == (int, int)
        assert task["createdAt"] == "2026-01-01T12:00:00.123Z"
    assert (created["ttlMs"], created["pollIntervalMs"]) == (1235, 1235)


@pytest.mark.requirement("creation/durable")
async def test_a_task_can_be_read_as_soon_as_it_is_announced_at_another_server_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    here, there = (build(Tasks(url, settings=QUICK)) for _ in range(2))
    async with serving(here) as near, serving(there) as far:

        async def create_and_read() -> None:
            task_id = await Tasking(near, EVERYTHING).create("ask_name")
            assert (await Tasking(far, EVERYTHING).get(task_id))["taskId"] == task_id

        await asyncio.gather(*(create_and_read() for _ in range(10)))


@pytest.mark.requirement("creation/consistent")
async def test_a_call_is_not_answered_before_the_store_has_kept_its_task() -> None:
    held = Held()
    async with serving(build(Tasks(MeddledStore(create=held), settings=QUICK))) as wire:
        client = Tasking(wire)
        call = asyncio.create_task(client.create("echo", value=1))
        await held.came.wait()
        # Another call goes all the way meanwhile, so this one had the time to be answered too early.
        await client.call("greet", name="Ada")
        assert not call.done()
        held.goes_on.set()
        assert (await client.get(await call))["taskId"] == call.result()


@pytest.mark.requirement("creation/questions-before")
@pytest.mark.parametrize("tool", ["ask_by_returning", "ask_before"])
async def test_a_question_before_the_work_is_asked_on_the_call_itself(
    client: Tasking, store: MemoryStore, tool: str
) -> None:
    question = await client.call(tool)
    assert question["resultType"] == "input_required"
    [key] = question["inputRequests"]
    assert await all_tasks(store) == []
    state = {"requestState": question["requestState"]} if "requestState" in question else {}
    answered = {"name": tool, "arguments": {}, "inputResponses": {key: ADA}, **state}
    created = (await client.ask("tools/call", answered)).result
    assert created["resultType"] == "task"
    assert await said(client, created["taskId"]) == "Hello, Ada!"


# Looked at


@pytest.mark.requirement(
    "get/by-status",
    "get/working",
    "get/input-required",
    "get/completed",
    "get/cancelled",
    "get/failed",
    "get/result-type",
    "task/fields",
)
async def test_a_task_has_exactly_the_fields_of_its_status(client: Tasking) -> None:
    statuses = {
        "working": ("gated", set[str]()),
        "input_required": ("ask_name", {"inputRequests"}),
        "completed": ("must", {"result"}),
        "failed": ("breaks", {"error", "statusMessage"}),
        "cancelled": ("gated", {"statusMessage"}),
    }
    for status, (tool, own_fields) in statuses.items():
        task_id = await client.create(tool)
        if status == "cancelled":
            await client.cancel(task_id)
        task = await client.until(task_id, status)
        assert task.keys() == ALWAYS | own_fields
        assert task["resultType"] == "complete"
        assert task["_meta"].keys() == {"io.modelcontextprotocol/serverInfo"}
        assert None not in [value for key, value in task.items() if key != "ttlMs"]
        assert task.get("result", {"resultType": "complete"})["resultType"] == "complete"


@pytest.mark.requirement("get/input-required", "get/all-outstanding")
async def test_a_question_is_shown_at_each_poll_as_the_request_it_stands_for(client: Tasking) -> None:
    task_id, [key] = await asked(client)
    question = (await client.get(task_id))["inputRequests"][key]
    assert question.keys() == {"method", "params"}
    assert question["method"] == "elicitation/create"
    assert question["params"].keys() == {"mode", "message", "requestedSchema"}
    assert question["params"]["message"] == "What is your name?"
    assert question["params"]["requestedSchema"]["required"] == ["name"]
    assert (await client.get(task_id))["inputRequests"] == {key: question}


@pytest.mark.requirement("get/all-outstanding")
async def test_a_question_that_its_tool_gave_up_is_not_shown_any_more(client: Tasking, desk: Desk) -> None:
    task_id, _ = await asked(client, "ask_until_told")
    desk.started.set()
    assert "inputRequests" not in await client.until(task_id, "working")


@pytest.mark.requirement("task/last-updated")
async def test_the_time_of_the_last_update_moves_only_when_something_changed() -> None:
    async with timed() as (client, clock, desk, _):
        task_id = await client.create("gated")
        await desk.started.wait()
        clock.advance(10 * SECOND)
        await client.update(task_id, unknown=ADA)
        assert (await client.get(task_id))["lastUpdatedAt"] == NOON
        desk.gate.set()
        assert (await client.until(task_id, "completed"))["lastUpdatedAt"] == "2026-01-01T12:00:10.000Z"
        clock.advance(10 * SECOND)
        await client.cancel(task_id)
        await client.update(task_id, unknown=ADA)
        done = await client.get(task_id)
        assert (done["status"], done["lastUpdatedAt"]) == ("completed", "2026-01-01T12:00:10.000Z")


@pytest.mark.requirement("task/last-updated")
async def test_a_task_that_waited_for_its_turn_is_not_updated_by_starting() -> None:
    async with timed(concurrency=1) as (client, clock, desk, _):
        first = await client.create("gated")
        await desk.started.wait()
        desk.started.clear()
        second = await client.create("gated")
        clock.advance(10 * SECOND)
        await client.cancel(first)
        with anyio.fail_after(PATIENCE):
            await desk.started.wait()
        assert (await client.get(second))["lastUpdatedAt"] == NOON


@pytest.mark.requirement("task/last-updated")
async def test_a_clock_that_jumps_back_never_puts_an_update_before_the_creation() -> None:
    async with timed() as (client, clock, desk, _):
        task_id = await client.create("gated")
        await desk.started.wait()
        clock.advance(-HOUR)
        desk.gate.set()
        task = await client.until(task_id, "completed")
    assert task["createdAt"] == task["lastUpdatedAt"] == NOON
    assert task["ttlMs"] > 0


async def test_the_poll_interval_grows_with_the_age_of_a_task_up_to_a_bound_unless_its_author_fixed_it() -> None:
    async with timed() as (client, clock, _, tasks):
        tasks.mark("gated", poll_interval=None)
        created = await client.call("gated")
        intervals = [created["pollIntervalMs"]]
        for step in [10 * SECOND] * 12 + [timedelta(days=365)]:
            clock.advance(step)
            intervals.append((await client.get(created["taskId"]))["pollIntervalMs"])
        assert intervals == sorted(intervals)
        assert intervals[:4] == [200, 1000, 2000, 3000]
        assert intervals[-2:] == [10_000, 10_000]
        tasks.mark("gated", poll_interval=timedelta(milliseconds=1500))
        fixed = await client.call("gated")
        clock.advance(HOUR)
        assert {fixed["pollIntervalMs"], (await client.get(fixed["taskId"]))["pollIntervalMs"]} == {1500}


async def test_the_ttl_of_a_running_task_is_renewed_in_steps_and_counts_from_its_end() -> None:
    async with timed(default_ttl=HOUR) as (client, clock, desk, _):
        created = await client.call("gated")
        await desk.started.wait()
        age, seen = timedelta(0), [created["ttlMs"]]
        for _ in range(30):
            clock.advance(timedelta(minutes=7))
            age += timedelta(minutes=7)
            seen.append((await client.get(created["taskId"]))["ttlMs"])
            # Never overdue: what is promised from the creation on always ends well ahead of now.
            assert timedelta(milliseconds=seen[-1]) - age >= HOUR / 2
        clock.advance(timedelta(days=3650))
        age += timedelta(days=3650)
        assert (await client.get(created["taskId"]))["status"] == "working"
        desk.gate.set()
        done = await client.until(created["taskId"], "completed")
        assert [*seen, done["ttlMs"]] == [*sorted(seen), (HOUR + age) // timedelta(milliseconds=1)]
        # The same over most polls.
        assert seen[0] == seen[2] == 3_600_000
        assert len(set(seen)) < len(seen) / 3
        clock.advance(HOUR - SECOND)
        assert (await client.get(created["taskId"]))["status"] == "completed"
        clock.advance(SECOND)
        assert (await client.ask("tasks/get", {"taskId": created["taskId"]})).code == INVALID_PARAMS


async def test_a_tool_may_have_a_ttl_of_its_own_and_none() -> None:
    async with timed(default_ttl_ms=2**53 - 1) as (client, _, _, tasks):
        assert (await client.finish("echo", value=1))["ttlMs"] is None
        for ttl, shown in ((timedelta(minutes=5), 300_000), (None, None)):
            tasks.mark("gated", ttl=ttl)
            assert (await client.call("gated"))["ttlMs"] == shown


# Answered


@pytest.mark.requirement("update/ack", "update/result-type", "cancel/ack", "cancel/result-type")
async def test_updates_and_cancellations_are_acknowledged_with_nothing_but_their_result_type(client: Tasking) -> None:
    task_id, [key] = await asked(client)
    for ack in (await client.update(task_id, **{key: ADA}), await client.cancel(task_id)):
        assert ack.keys() == {"resultType", "_meta"}
        assert ack["resultType"] == "complete"
        assert ack["_meta"].keys() == {"io.modelcontextprotocol/serverInfo"}


@pytest.mark.requirement(
    "update/keys-are-unique",
    "update/keys-are-not-reused",
    "update/keys-are-not-shared",
    "update/other-keys-are-ignored",
)
async def test_every_question_of_a_task_has_a_key_of_its_own_which_is_answered_once(client: Tasking) -> None:
    task_id, keys = await asked(client, "ask_again")
    for name in ("Ada", "Bob", "Cyd"):
        [key] = (await client.until(task_id, "input_required"))["inputRequests"]
        keys.append(key)
        await client.update(task_id, **{key: accept(name=name)})
        await client.update(task_id, **{key: accept(name="Eve")})
    assert await said(client, task_id) == "Ada, Bob, Cyd"
    assert len(set(keys)) == 3


@pytest.mark.requirement("update/other-keys-are-ignored")
async def test_an_answer_to_a_key_that_was_never_issued_is_ignored_whatever_it_looks_like(client: Tasking) -> None:
    task_id, [key] = await asked(client)
    before = await client.get(task_id)
    answers: list[Any] = [accept(name="Eve"), {}, None, 7, "text", [1]]
    for answer in answers:
        await client.update(task_id, **{"never-issued": answer})
        # The suggested interval is no state: it follows the age of the task.
        assert {**await client.get(task_id), "pollIntervalMs": 0} == {**before, "pollIntervalMs": 0}
    await client.update(task_id, **{"never-issued": 7, key: ADA})
    assert await said(client, task_id) == "Hello, Ada!"


@pytest.mark.requirement("update/other-keys-are-ignored", "cancel/status")
async def test_a_cancelled_task_asks_nothing_more_and_ignores_answers(client: Tasking) -> None:
    task_id, [key] = await asked(client)
    await client.cancel(task_id)
    ended = await client.until(task_id, "cancelled")
    assert "inputRequests" not in ended
    assert (await client.update(task_id, **{key: ADA}))["resultType"] == "complete"
    assert {**await client.get(task_id), "pollIntervalMs": 0} == {**ended, "pollIntervalMs": 0}


@pytest.mark.requirement("update/partial", "update/keys-are-not-shared", "get/all-outstanding")
async def test_a_part_of_the_answers_leaves_the_rest_open(client: Tasking) -> None:
    task_id, _ = await asked(client, "ask_both")
    questions = (await client.get(task_id))["inputRequests"]
    by_message = {question["params"]["message"]: key for key, question in questions.items()}
    name, age = by_message["Your name?"], by_message["Your age?"]
    await client.update(task_id, **{age: accept(age=36)})
    task = await client.get(task_id)
    assert (task["status"], task["inputRequests"]) == ("input_required", {name: questions[name]})
    await client.update(task_id, **{name: ADA})
    assert await said(client, task_id) == "Ada is 36"


MISFITS: list[tuple[str, Any]] = [
    *(("ask_name", accept() | {"content": content}) for content in ({}, {"name": 3}, {"name": None}, "text")),
    *(("ask_name", answer) for answer in ({}, {"action": "shrug"}, {"action": "decline", "content": 7})),
    *(("ask_name", answer) for answer in (7, None, list[Any]())),
    ("ask_model", {"role": "assistant"}),
    ("ask_roots", {"roots": "none"}),
]


@pytest.mark.requirement("update/answers-fit", "errors/informative")
async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(client: Tasking) -> None:
    open_questions = {tool: await asked(client, tool) for tool in ("ask_name", "ask_model", "ask_roots")}
    for tool, answer in MISFITS:
        task_id, [key] = open_questions[tool]
        reply = await client.ask("tasks/update", {"taskId": task_id, "inputResponses": {key: answer}})
        assert (reply.status, reply.code) == (400, INVALID_PARAMS), answer
        assert key in reply.error["message"]
        assert (await client.get(task_id))["status"] == "input_required"
    task_id, [key] = open_questions["ask_name"]
    await client.update(task_id, **{key: ADA})
    assert await said(client, task_id) == "Hello, Ada!"


@pytest.mark.requirement("update/only-declared-kinds")
@pytest.mark.parametrize(
    ("tool", "declared", "missing", "name"),
    [
        ("ask_name", {"sampling": {}, "roots": {}}, {"elicitation": {}}, "elicitation"),
        ("ask_name", {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}, "elicitation.form"),
        ("ask_model", {"elicitation": {}, "roots": {}}, {"sampling": {}}, "sampling"),
        ("ask_roots", {"elicitation": {}, "sampling": {}}, {"roots": {}}, "roots"),
    ],
    ids=["others", "another mode", "no sampling", "no roots"],
)
async def test_a_client_is_never_asked_what_it_did_not_declare(
    client: Tasking, tool: str, declared: dict[str, Any], missing: dict[str, Any], name: str
) -> None:
    careful = client.declaring({**TASKS, **declared})
    task = await careful.until(await careful.create(tool), "failed")
    assert task["error"]["code"] == MISSING_CAPABILITY
    assert task["error"]["data"] == {"requiredCapabilities": missing}
    assert f"did not declare the {name} capability" in task["error"]["message"]


# Not cancelled


@pytest.mark.requirement("cancel/not-by-notification")
async def test_the_cancelled_notification_does_not_cancel_a_task(client: Tasking, wire: HttpWire, desk: Desk) -> None:
    call = request("tools/call", {"name": "gated", "arguments": {}})
    created = (await wire.send(call)).result
    await desk.started.wait()
    for named in (call["id"], created["taskId"]):
        answered = await wire.raw_post(
            json.dumps(notification("notifications/cancelled", {"requestId": named})),
            [("mcp-protocol-version", MODERN), ("mcp-method", "notifications/cancelled")],
        )
        assert answered.status_code == 202
    assert (await client.get(created["taskId"]))["status"] == "working"
    desk.gate.set()
    assert await said(client, created["taskId"]) == "through"


class HangUpWatch:
    """An app that says when a client of another app has hung up."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.hung_up = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watch() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.hung_up.set()
            return message

        await self._app(scope, watch if scope["type"] == "http" else receive, send)


@pytest.mark.requirement("streams/closing-cancels-the-request-only")
async def test_a_client_that_hangs_up_does_not_cancel_the_task_it_made() -> None:
    desk, store = Desk(), MemoryStore()
    # Long enough that the call is still being answered when the client hangs up.
    tasks = Tasks(store, grace=timedelta(seconds=PATIENCE), settings=QUICK)
    app = HangUpWatch(build(tasks, desk).streamable_http_app())
    async with serving_app(app) as base, http_client() as http:
        client = Tasking(HttpWire(f"{base}/mcp", http))
        call = asyncio.create_task(client.call("gated"))
        await desk.started.wait()
        call.cancel()
        with anyio.fail_after(PATIENCE):
            await app.hung_up.wait()
        [record] = await all_tasks(store)
        desk.gate.set()
        assert await said(client, record.id) == "through"


WANTS_LOGS = {"io.modelcontextprotocol/logLevel": "debug", "progressToken": "mine"}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def _listen(**wanted: Any) -> dict[str, Any]:
    """A request to listen, that would take logs and progress as well."""
    return request("subscriptions/listen", {"notifications": wanted}, capabilities=EVERYTHING, meta=WANTS_LOGS)


async def _acknowledged(messages: AsyncGenerator[dict[str, Any]]) -> dict[str, Any]:
    first = await anext(messages)
    check_notification("SubscriptionsAcknowledgedNotification", first)
    return first["params"]["notifications"]


async def _next_task(messages: AsyncGenerator[dict[str, Any]], *statuses: str) -> dict[str, Any]:
    """The next notification with one of the statuses; on the way everything must be a task."""
    while True:
        message = await anext(messages)
        check_task_notification(message)
        if message["params"]["status"] in statuses:
            return message


@pytest.mark.requirement("notifications/missing-capability", "errors/listen-missing-capability")
async def test_listening_for_tasks_needs_the_extension(client: Tasking) -> None:
    wanted = {"notifications": {"taskIds": [await client.create("gated")], "toolsListChanged": True}}
    reply = await client.declaring(NOTHING).ask("subscriptions/listen", wanted)
    assert (reply.status, reply.code) == (400, MISSING_CAPABILITY)
    assert reply.error["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


@pytest.mark.requirement("notifications/acknowledged")
async def test_the_acknowledgement_names_the_tasks_that_will_be_reported(client: Tasking, wire: HttpWire) -> None:
    first, second = await client.create("gated"), await client.create("gated")
    listen = _listen(taskIds=[first, "nope", second, "x" * 1000], toolsListChanged=True)
    with anyio.fail_after(PATIENCE):
        async with wire.stream(listen) as messages:
            honoured = await _acknowledged(messages)
        async with wire.stream(_listen(taskIds=["nope"])) as messages:
            assert await _acknowledged(messages) == {"taskIds": []}
    assert sorted(honoured["taskIds"]) == sorted([first, second])
    assert honoured["toolsListChanged"] is True


@pytest.mark.requirement("notifications/acknowledged")
async def test_task_ids_that_are_no_list_of_strings_are_refused(client: Tasking) -> None:
    wrong: list[Any] = ["nope", 7, {"nope": True}, [7], [None], [["nope"]]]
    for task_ids in wrong:
        reply = await client.ask("subscriptions/listen", {"notifications": {"taskIds": task_ids}})
        assert (reply.status, reply.code) == (400, INVALID_PARAMS)


@pytest.mark.requirement("notifications/complete")
async def test_a_notification_is_what_tasks_get_would_have_answered(client: Tasking, wire: HttpWire) -> None:
    asking, breaking = await client.create("ask_name"), await client.create("breaks")
    cancelled = await client.create("gated")
    await client.until(asking, "input_required")
    listen = _listen(taskIds=[asking])
    with anyio.fail_after(PATIENCE):
        async with wire.stream(listen) as messages:
            await _acknowledged(messages)
            seen = [await _next_task(messages, "input_required")]
            assert _state(seen[0]["params"]) == _state(await client.get(asking))
            await client.update(asking, **{"elicitation-1": accept(name="Ada")})
            seen.append(await _next_task(messages, "completed"))
            assert _state(seen[1]["params"]) == _state(await client.get(asking))
        for task_id, status in ((breaking, "failed"), (cancelled, "cancelled")):
            async with wire.stream(_listen(taskIds=[task_id])) as messages:
                await _acknowledged(messages)
                if status == "cancelled":
                    await client.cancel(task_id)
                last = await _next_task(messages, status)
                assert _state(last["params"]) == _state(await client.get(task_id))
    for message in seen:
        assert "resultType" not in message["params"]
        assert message["params"]["_meta"][SUBSCRIPTION] == listen["id"]


def _state(task: dict[str, Any]) -> dict[str, Any]:
    """The task without what belongs to the message it came in, or moves with time alone."""
    return {key: value for key, value in task.items() if key not in ("resultType", "pollIntervalMs", "_meta")}


@pytest.mark.requirement("notifications/no-progress-no-log")
async def test_progress_on_a_stream_for_a_task_is_a_state_of_the_task(
    client: Tasking, wire: HttpWire, desk: Desk
) -> None:
    task_id = await client.create("progressing", steps=1, total=2, message="half of it")
    await desk.started.wait()
    with anyio.fail_after(PATIENCE):
        async with wire.stream(_listen(taskIds=[task_id])) as messages:
            await _acknowledged(messages)
            while (await _next_task(messages, "working"))["params"].get("statusMessage") != "half of it":
                pass
            desk.gate.set()
            await _next_task(messages, "completed")


@pytest.mark.requirement("notifications/no-progress-no-log")
async def test_progress_and_logs_of_a_task_reach_no_listen_stream(client: Tasking, wire: HttpWire) -> None:
    seen: list[dict[str, Any]] = []
    with anyio.fail_after(PATIENCE):
        async with wire.stream(_listen(toolsListChanged=True)) as messages:
            await _acknowledged(messages)
            await client.finish("logs")
            # What comes last on the stream is known, so everything before it has been seen.
            await client.finish("grow")
            while not seen or seen[-1]["method"] != "notifications/tools/list_changed":
                seen.append(await anext(messages))
    check_notification("ToolListChangedNotification", seen[-1])
    assert [message["method"] for message in seen] == ["notifications/tools/list_changed"]


@pytest.mark.requirement("notifications/no-progress-no-log")
async def test_progress_and_logs_of_a_task_do_not_reach_the_call_that_made_it(client: Tasking, wire: HttpWire) -> None:
    call = request("tools/call", {"name": "logs", "arguments": {}}, capabilities=EVERYTHING, meta=WANTS_LOGS)
    reply = await wire.post(json.dumps(call), modern_headers(call))
    assert reply.result["resultType"] == "task"
    assert reply.notifications == ()
    await client.until(reply.result["taskId"], "completed")
