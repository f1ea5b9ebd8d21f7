"""The rules of the wire, asked directly: no SDK, no transport, only a caller and params."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import anyio
import pytest
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)

from mcp_tasks.engines import LocalEngine
from mcp_tasks.errors import StoreUnavailable, TaskUnreadable, UnknownTask, WiringError
from mcp_tasks.model import InputRequest, Outcome, TaskRecord, TaskRequest
from mcp_tasks.model.limits import Limits
from mcp_tasks.protocol.cache import Texts
from mcp_tasks.protocol.dialect import Dialects, Message, ModernDialect
from mcp_tasks.protocol.errors import RpcError, describe
from mcp_tasks.protocol.limits import Limiting
from mcp_tasks.protocol.listen import Listening
from mcp_tasks.protocol.methods import TasksProtocol
from mcp_tasks.protocol.owners import Caller, Owners
from mcp_tasks.protocol.shapes import ACK, EXTENSION_ID, LIMIT_EXCEEDED
from mcp_tasks.runtime import Ending, Failure, Observer, Run, Success, TaskRuntime, ToolPolicy
from mcp_tasks.runtime.observers import Refusal
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import FakeClock
from tests.unit.watching import Touched, Watching

pytestmark = pytest.mark.anyio

MODERN: Final = "2026-07-28"
TASKS: Final[dict[str, Any]] = {"extensions": {EXTENSION_ID: {}}}
METHODS: Final = ("get", "update", "cancel", "listen")


def caller(principal: str | None = "alice", **fields: Any) -> Caller:
    usual: dict[str, Any] = {"protocol_version": MODERN, "capabilities": TASKS}
    return Caller(principal=principal, **(usual | fields))


class CountingStore(MemoryStore):
    """Counts how often each task is looked up, and may fail or lose an outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_up: list[str] = []
        self.unreadable: set[str] = set()
        self.loses_outcomes = False
        self.is_away = False

    async def get(self, task_id: str) -> TaskRecord | None:
        self.looked_up.append(task_id)
        if self.is_away:
            raise StoreUnavailable("the disk is full")
        if task_id in self.unreadable:
            raise TaskUnreadable(task_id, "its row is damaged", owner="alice")
        return await super().get(task_id)

    async def outcome(self, task_id: str) -> Outcome | None:
        return None if self.loses_outcomes else await super().outcome(task_id)


@dataclass
class House:
    """A protocol over a runtime whose only tool waits for the test, asks, fails or returns what it is given."""

    runtime: TaskRuntime
    store: CountingStore
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    callers: list[Caller] = field(default_factory=list[Caller])

    def protocol(self, *, principal: Callable[[Caller], str | None] | None = None, **options: Any) -> TasksProtocol:
        def usual(caller: Caller) -> str | None:
            self.callers.append(caller)
            return caller.principal

        options = {"dialects": Dialects([ModernDialect()]), **options}
        return TasksProtocol(lambda: self.runtime, owners=Owners(principal or usual), **options)

    async def create(self, name: str, owner: str | None = "alice", **arguments: Any) -> str:
        request = TaskRequest(name=name, arguments=arguments, protocol_version=MODERN)
        return (await self.runtime.launch(request, owner=owner, retention=timedelta(hours=1))).id

    async def until(self, task_id: str, status: str) -> None:
        found = await self.runtime.wait_until(task_id, lambda task: task.status == status, timedelta(seconds=10))
        assert found is not None


async def _tool(house: House, run: Run) -> Ending:
    match run.request.name:
        case "wait":
            await house.gate.wait()
        case "ask":
            form = {"message": "Who?", "requestedSchema": {"type": "object", "required": ["name"]}}
            return Success({"answer": await run.ask(InputRequest(method="elicitation/create", params=form))})
        case "fail":
            return Failure({"code": -1, "message": "no"})
        case _:
            pass
    return Success(run.request.arguments)


@asynccontextmanager
async def furnished(*observers: Observer) -> AsyncGenerator[House]:
    store = CountingStore()

    async def policy(method: str, name: str) -> ToolPolicy:
        return ToolPolicy()

    async def body(run: Run) -> Ending:
        return await _tool(house, run)

    runtime = TaskRuntime(
        store=store,
        engine=LocalEngine(),
        body=body,
        policy=policy,
        describe=describe,
        clock=FakeClock(),
        observers=observers,
    )
    house = House(runtime, store)
    await runtime.start()
    try:
        yield house
    finally:
        await runtime.abandon()


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with furnished() as house:
        yield house


async def ask(protocol: TasksProtocol, method: str, caller: Caller, task_id: str = "x") -> Message | Listening:
    params = {"taskId": task_id, "inputResponses": {}, "notifications": {"taskIds": [task_id]}}
    return await getattr(protocol, method)(caller, params)


def told(message: Message) -> dict[str, Any]:
    """The message as it goes over the wire."""
    return json.loads(message.encode())


# Who calls


@pytest.mark.parametrize("version", ["2025-11-25", "2099-01-01", ""])
@pytest.mark.parametrize("method", METHODS)
async def test_an_era_without_tasks_has_no_such_method(house: House, method: str, version: str) -> None:
    with pytest.raises(RpcError) as refused:
        await ask(house.protocol(), method, caller(protocol_version=version))
    assert refused.value.code == METHOD_NOT_FOUND
    assert refused.value.data in {f"tasks/{method}", "subscriptions/listen"}
    assert (house.store.looked_up, house.callers) == ([], [])


@pytest.mark.parametrize(
    "capabilities",
    [
        {},
        {"extensions": {}},
        {"extensions": [EXTENSION_ID]},
        {"extensions": {EXTENSION_ID: None}},
        {"extensions": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", METHODS)
async def test_a_client_that_declared_no_tasks_is_told_what_is_missing(
    house: House, method: str, capabilities: Mapping[str, Any]
) -> None:
    with pytest.raises(RpcError) as refused:
        await ask(house.protocol(), method, caller(capabilities=capabilities))
    assert refused.value.code == MISSING_REQUIRED_CLIENT_CAPABILITY
    assert refused.value.data == {"requiredCapabilities": TASKS}
    assert (house.store.looked_up, house.callers) == ([], [])


@pytest.mark.parametrize("method", METHODS)
async def test_the_rule_of_who_owns_tasks_is_asked_once_with_the_caller_as_it_came(house: House, method: str) -> None:
    task_id = await house.create("wait", owner="team-7")
    asking = caller(principal=None, headers={"x-team": "team-7", "mcp-name": task_id})
    asked: list[Caller] = []

    def team(caller: Caller) -> str | None:
        asked.append(caller)
        return caller.headers["x-team"]

    await ask(house.protocol(principal=team), method, asking, task_id)
    assert asked == [asking]


@pytest.mark.parametrize("method", ["get", "update", "cancel"])
@pytest.mark.parametrize("principal", ["bob", None])
async def test_a_task_of_another_is_not_there(house: House, method: str, principal: str | None) -> None:
    task_id = await house.create("wait")
    with pytest.raises(RpcError) as refused:
        await ask(house.protocol(), method, caller(principal), task_id)
    with pytest.raises(RpcError) as unknown:
        await ask(house.protocol(), method, caller(principal), "task_unknown")
    assert refused.value.code == INVALID_PARAMS
    assert refused.value.error == unknown.value.error


@pytest.mark.parametrize("method", ["get", "update", "cancel"])
async def test_a_header_must_name_the_task_and_may_be_missing_unless_it_is_required(house: House, method: str) -> None:
    task_id = await house.create("wait")
    over_http = {"host": "example.com"}
    strict = house.protocol(require_name_header=True)
    await ask(house.protocol(), method, caller(headers=over_http), task_id)
    await ask(strict, method, caller(headers={**over_http, "mcp-name": task_id}), task_id)
    # Not over HTTP: there is nowhere to put it.
    await ask(strict, method, caller(), task_id)
    with pytest.raises(RpcError) as missing:
        await ask(strict, method, caller(headers=over_http), task_id)
    with pytest.raises(RpcError) as wrong:
        await ask(house.protocol(), method, caller(headers={"mcp-name": "another"}), task_id)
    assert (missing.value.code, wrong.value.code) == (HEADER_MISMATCH, HEADER_MISMATCH)


# The eras


class NextDialect(ModernDialect):
    """An era that is still to come: it shows tasks in its own way, and has no answers."""

    versions = frozenset({"2099-01-01"})
    methods = frozenset({"tools/call", "tasks/get"})

    def declares_tasks(self, caller: Caller) -> bool:
        return True

    def task(self, record: TaskRecord, outcome: Outcome | None, now: object) -> Message:
        return Message(fields={"state": record.status.value.upper()})


async def test_the_version_of_the_request_chooses_the_dialect(house: House) -> None:
    protocol = house.protocol(dialects=Dialects([ModernDialect(), NextDialect()]))
    task_id = await house.create("wait")
    later = caller(protocol_version="2099-01-01", capabilities={})
    assert told(await protocol.get(later, {"taskId": task_id})) == {"state": "WORKING"}
    assert told(await protocol.get(caller(), {"taskId": task_id}))["status"] == "working"
    with pytest.raises(RpcError) as refused:
        await ask(protocol, "cancel", later, task_id)
    assert refused.value.code == METHOD_NOT_FOUND


# What is answered


async def test_a_finished_task_comes_with_its_result_spliced_in(house: House) -> None:
    task_id = await house.create("return", content=[], isError=True, _meta={"com.example/a": 1})
    await house.until(task_id, "completed")
    shown = told(await house.protocol().get(caller(), {"taskId": task_id}))
    assert (shown["resultType"], shown["status"]) == ("complete", "completed")
    assert shown["result"] == {
        "resultType": "complete",
        "content": [],
        "isError": True,
        "_meta": {"com.example/a": 1},
    }


async def test_a_failed_task_comes_with_its_error(house: House) -> None:
    task_id = await house.create("fail")
    await house.until(task_id, "failed")
    shown = told(await house.protocol().get(caller(), {"taskId": task_id}))
    assert (shown["error"], "result" in shown) == ({"code": -1, "message": "no"}, False)


async def test_a_task_whose_outcome_went_while_it_was_looked_at_is_gone(house: House) -> None:
    task_id = await house.create("return")
    await house.until(task_id, "completed")
    house.store.loses_outcomes = True
    with pytest.raises(RpcError) as refused:
        await house.protocol().get(caller(), {"taskId": task_id})
    assert refused.value.code == INVALID_PARAMS


async def test_a_task_that_cannot_be_read_is_told_to_its_owner_alone(house: House) -> None:
    task_id = await house.create("wait")
    house.store.unreadable = {task_id}
    for principal, code in (("alice", INTERNAL_ERROR), ("bob", INVALID_PARAMS)):
        with pytest.raises(RpcError) as refused:
            await house.protocol().get(caller(principal), {"taskId": task_id})
        assert refused.value.code == code


async def test_an_answer_that_does_not_fit_leaves_its_question_open(house: House) -> None:
    protocol, task_id = house.protocol(), await house.create("ask")
    await house.until(task_id, "input_required")
    [key] = told(await protocol.get(caller(), {"taskId": task_id}))["inputRequests"]
    misfit, fit = ({"action": "accept", "content": content} for content in ({}, {"name": "Ada"}))
    with pytest.raises(RpcError, match="does not fit") as refused:
        await protocol.update(caller(), {"taskId": task_id, "inputResponses": {key: misfit}})
    assert refused.value.code == INVALID_PARAMS
    done = await protocol.update(caller(), {"taskId": task_id, "inputResponses": {key: fit, "other": 1}})
    assert told(done) == {"resultType": "complete"}
    await house.until(task_id, "completed")


class Unwalked(dict[str, Any]):
    """Answers that nobody may go through."""

    def __iter__(self) -> Any:
        raise AssertionError("all of the answers were gone through")

    keys = values = items = __iter__


async def test_answers_that_nobody_asked_for_are_not_gone_through(house: House) -> None:
    protocol, task_id = house.protocol(), await house.create("ask")
    await house.until(task_id, "input_required")
    [key] = told(await protocol.get(caller(), {"taskId": task_id}))["inputRequests"]
    late = Unwalked({"other": 1})
    assert told(await protocol.update(caller(), {"taskId": task_id, "inputResponses": late})) == ACK
    fit = Unwalked({"other": 1, key: {"action": "accept", "content": {"name": "Ada"}}})
    assert told(await protocol.update(caller(), {"taskId": task_id, "inputResponses": fit})) == ACK
    await house.until(task_id, "completed")


async def test_large_answers_count_as_several_requests(house: House) -> None:
    clock = FakeClock()
    protocol = house.protocol(limiting=Limiting(Limits(owner_requests=10), lambda: clock().timestamp()))
    task_id = await house.create("ask")
    await house.until(task_id, "input_required")
    [key] = told(await protocol.get(caller(), {"taskId": task_id}))["inputRequests"]
    large = {"taskId": task_id, "inputResponses": {key: {"action": "accept", "content": {"more": ["x"] * 1_900}}}}
    with pytest.raises(RpcError, match="does not fit"):
        await protocol.update(caller(), large)
    # As many as 39: the next may come in a few seconds.
    with pytest.raises(RpcError) as refused:
        await protocol.update(caller(), large)
    assert (refused.value.code, refused.value.data["limit"]) == (LIMIT_EXCEEDED, "owner_requests")
    await protocol.get(caller("bob"), {"taskId": await house.create("wait", owner="bob")})
    clock.advance(timedelta(seconds=4))
    with pytest.raises(RpcError, match="does not fit"):
        await protocol.update(caller(), large)


async def test_cancelling_is_acknowledged_twice_and_happens_once(house: House) -> None:
    protocol, task_id = house.protocol(), await house.create("wait")
    for _ in range(2):
        assert told(await protocol.cancel(caller(), {"taskId": task_id})) == {"resultType": "complete"}
    shown = told(await protocol.get(caller(), {"taskId": task_id}))
    assert (shown["status"], shown["statusMessage"]) == ("cancelled", "Cancelled by the client")


@pytest.mark.parametrize(
    ("method", "params", "named"),
    [
        ("get", {}, "taskId"),
        ("get", {"taskId": 7}, "taskId"),
        ("cancel", {"taskId": None}, "taskId"),
        ("update", {"taskId": ["x"], "inputResponses": {}}, "taskId"),
        ("update", {"taskId": "x"}, "inputResponses"),
        ("update", {"taskId": "x", "inputResponses": [1]}, "inputResponses"),
        ("listen", {"notifications": {"taskIds": "x"}}, "taskIds"),
        ("listen", {"notifications": {"taskIds": ["x", 1]}}, "taskIds"),
    ],
)
async def test_malformed_params_are_named_and_nothing_is_looked_up(
    house: House, method: str, params: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(RpcError, match=named) as refused:
        await getattr(house.protocol(), method)(caller(), params)
    assert refused.value.code == INVALID_PARAMS
    assert house.store.looked_up == []


# Listening


async def test_a_task_that_is_named_often_is_looked_up_once(house: House) -> None:
    mine, other = await house.create("wait"), await house.create("wait")
    house.store.looked_up.clear()
    ids = [mine, other, mine] * 400
    listening = await house.protocol().listen(caller(), {"notifications": {"taskIds": ids}})
    assert listening.task_ids == [mine, other]
    assert house.store.looked_up == [mine, other]


async def test_only_the_callers_own_tasks_that_can_be_read_are_honoured(house: House) -> None:
    mine, bobs, damaged = [await house.create("wait", owner=owner) for owner in ("alice", "bob", "alice")]
    house.store.unreadable = {damaged}
    ids = ["task_unknown", bobs, damaged, mine]
    listening = await house.protocol().listen(caller(), {"notifications": {"taskIds": ids}})
    assert listening.task_ids == [mine]


async def test_a_listener_is_told_the_state_at_once_and_then_the_newest_change(house: House) -> None:
    task_id = await house.create("ask")
    await house.until(task_id, "input_required")
    protocol = house.protocol()
    listening = await protocol.listen(caller(), {"notifications": {"taskIds": [task_id]}})
    assert listening.method == "notifications/tasks"
    async with aclosing(listening.states()) as states:
        with anyio.fail_after(10):
            asked = told(await anext(states))
            assert asked["status"] == "input_required"
            answers = {key: {"action": "decline"} for key in asked["inputRequests"]}
            await protocol.update(caller(), {"taskId": task_id, "inputResponses": answers})
            await house.until(task_id, "completed")
            # What came between is not told to a reader that was slow.
            ended = told(await anext(states))
    assert (ended["status"], ended["result"]["answer"]) == ("completed", {"action": "decline"})
    assert house.runtime.hints.listened() == []


async def test_what_a_listen_request_is_about_is_known_before_it_is_checked(house: House) -> None:
    protocol = house.protocol()
    for ids in ([], ["x"], "x", 5):
        assert protocol.asks_to_listen(caller(), {"notifications": {"taskIds": ids}})
        assert not protocol.asks_to_listen(caller(protocol_version="2025-11-25"), {"notifications": {"taskIds": ids}})
    for params in ({}, {"notifications": None}, {"notifications": {"toolsListChanged": True}}):
        assert not protocol.asks_to_listen(caller(), params)


# Calls of tools


def test_a_message_is_one_object_whatever_is_spliced_into_it() -> None:
    assert json.loads(Message(fields={"a": 1}, large=("résult", b'{"b":[2]}')).encode()) == {
        "a": 1,
        "résult": {"b": [2]},
    }
    assert Message(fields={"a": None}).encode() == b'{"a":null}'


async def test_a_tool_that_must_be_a_task_is_refused_in_the_words_of_the_era(house: House) -> None:
    protocol = house.protocol()
    assert protocol.takes_tasks(caller())
    undeclared, earlier = caller(capabilities={}), caller(protocol_version="2025-11-25")
    assert not protocol.takes_tasks(undeclared)
    assert not protocol.takes_tasks(earlier)
    assert protocol.cannot_take(undeclared, "render").code == MISSING_REQUIRED_CLIENT_CAPABILITY
    assert protocol.cannot_take(earlier, "render").code == METHOD_NOT_FOUND
    told = protocol.cannot_take(earlier, "render").message
    assert told == "Tool 'render' can only be called as a task: add params.task"
    # In a version that has no tasks there is nothing to add.
    assert "params.task" not in protocol.cannot_take(caller(protocol_version="2025-06-18"), "render").message


async def test_a_call_that_became_a_task_is_answered_in_the_words_of_the_era(house: House) -> None:
    protocol, task_id = house.protocol(), await house.create("wait")
    assert protocol.speaks(MODERN)
    assert not protocol.speaks("2025-11-25")
    created = told(protocol.created(caller(), await protocol.find(caller(), task_id)))
    assert (created["resultType"], created["taskId"]) == ("task", task_id)


async def test_a_task_is_found_for_its_owner_whatever_it_is_of(house: House) -> None:
    request = TaskRequest(method="prompts/get", name="wait", arguments={}, protocol_version="2025-11-25")
    task = await house.runtime.launch(request, owner="alice", retention=None)
    protocol = house.protocol()
    assert (await protocol.find(caller(), task.id)).id == task.id
    with pytest.raises(RpcError):
        await protocol.find(caller("bob"), task.id)
    # To an era that cannot make such tasks they are not there.
    for method in ("get", "cancel"):
        with pytest.raises(RpcError) as refused:
            await ask(protocol, method, caller(), task.id)
        assert refused.value.code == INVALID_PARAMS


# Polls that are answered with a text


async def test_a_task_that_has_not_changed_is_told_with_the_text_of_before(house: House) -> None:
    protocol, texts, task_id = house.protocol(), Texts({}), await house.create("ask")
    await house.until(task_id, "input_required")
    first = json.loads(await protocol.get_text(caller(), {"taskId": task_id}, texts))
    house.store.looked_up.clear()
    assert json.loads(await protocol.get_text(caller(), {"taskId": task_id}, texts)) == first
    assert house.store.looked_up == [], "its version alone is read"
    await protocol.cancel(caller(), {"taskId": task_id})
    assert json.loads(await protocol.get_text(caller(), {"taskId": task_id}, texts))["status"] == "cancelled"
    with pytest.raises(RpcError):
        await protocol.get_text(caller("bob"), {"taskId": task_id}, texts)


# Limits


async def test_who_has_no_name_may_ask_for_one_task_so_often(house: House) -> None:
    limiting = Limiting(Limits(task_polls=1), lambda: 0.0)
    protocol = house.protocol(limiting=limiting)
    mine, nobodys = await house.create("wait"), await house.create("wait", owner=None)
    with anyio.fail_after(10):
        for _ in range(5):
            await protocol.get(caller(), {"taskId": mine})
            await protocol.count_poll(await house.runtime.get(mine, owner="alice"))
        await protocol.get(caller(None), {"taskId": nobodys})
        await protocol.count_poll(await house.runtime.get(nobodys, owner=None))
        with pytest.raises(RpcError, match="once a second") as refused:
            await protocol.get(caller(None), {"taskId": nobodys})
    assert refused.value.code == LIMIT_EXCEEDED


async def test_a_request_that_is_handed_over_counts_at_the_other_door(house: House) -> None:
    protocol = house.protocol(limiting=Limiting(Limits(owner_requests=0.001), lambda: 0.0))
    unknown, undeclared = RpcError(INVALID_PARAMS, "no"), RpcError(METHOD_NOT_FOUND, "no")
    with anyio.fail_after(10):
        for _ in range(3):
            assert await protocol.admit(caller()) == "alice"
            protocol.hands_over(caller(), "tasks/get", unknown)
        # What was refused before it counted is not given back.
        await protocol.admit(caller())
        protocol.hands_over(caller(), "tasks/get", undeclared)
        with pytest.raises(RpcError, match="more often"):
            await protocol.admit(caller())


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel"])
async def test_an_unknown_task_that_is_handed_over_counts_at_the_other_door(house: House, method: str) -> None:
    limits = Limits(connection_unknown=0.001, connection_cancels=0.001)
    protocol = house.protocol(limiting=Limiting(limits, lambda: 0.0))
    nameless, ask = caller(None, connection="192.0.2.1 1"), getattr(protocol, method.removeprefix("tasks/"))
    with anyio.fail_after(10):
        for _ in range(3):
            with pytest.raises(RpcError) as unknown:
                await ask(nameless, {"taskId": "task_none"})
            assert unknown.value.code == INVALID_PARAMS
            protocol.hands_over(nameless, method, unknown.value)
        with pytest.raises(RpcError):
            await ask(nameless, {"taskId": "task_none"})
        with pytest.raises(RpcError, match="On this connection") as refused:
            await ask(nameless, {"taskId": "task_none"})
    assert refused.value.code == LIMIT_EXCEEDED


async def test_a_stream_that_could_not_be_opened_makes_room_for_another(house: House) -> None:
    protocol = house.protocol(limiting=Limiting(Limits(owner_streams=1)))
    task_id = await house.create("wait")
    params = {"notifications": {"taskIds": [task_id]}}
    house.store.is_away = True
    with pytest.raises(RpcError, match="try again later"):
        await protocol.listen(caller(), params)
    house.store.is_away = False
    listening = await protocol.listen(caller(), params)
    with pytest.raises(RpcError) as refused:
        await protocol.listen(caller(), params)
    assert refused.value.code == LIMIT_EXCEEDED
    listening.close()
    await protocol.listen(caller(), params)


# Who watches


async def test_doors_tell_those_who_watch_of_what_they_serve_and_refuse_themselves() -> None:
    watching = Watching()
    async with furnished(watching) as house:
        protocol, task_id = house.protocol(), await house.create("wait")
        record = await house.runtime.get(task_id, owner="alice")
        assert protocol.has_owner(caller())
        assert not protocol.has_owner(caller(None))
        protocol.saw(record, "tasks/result")
        protocol.saw_list("alice", "tasks/list", 3)
        protocol.refused(caller("bob"), "tasks/get", UnknownTask(task_id), task_id=task_id)
        await house.runtime.observers.stop(timedelta(seconds=10))
    assert [(told.method, told.owner, told.refused) for told in watching.told] == [
        ("tasks/result", "alice", None),
        ("tasks/list", "alice", None),
        ("tasks/get", "bob", Refusal.UNKNOWN),
    ]


def test_a_refusal_while_nothing_runs_is_told_to_nobody() -> None:
    def stopped() -> TaskRuntime:
        raise WiringError("the server has stopped")

    protocol = TasksProtocol(stopped, dialects=Dialects([ModernDialect()]), owners=Owners())
    protocol.refused(caller(), "tasks/get", UnknownTask("x"))


async def test_what_is_done_to_a_task_is_a_part_of_its_trace(house: House) -> None:
    task_id = await house.create("wait")
    house.runtime.tracing = touched = Touched()
    for method in ("get", "update", "cancel"):
        await ask(house.protocol(), method, caller(), task_id)
    assert touched.ids == [task_id] * 3
