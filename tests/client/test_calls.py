"""Calls stay what they were, over every transport; and `TaskHandle` for who wants to see the task behind one."""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, closing
from datetime import timedelta
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult

from harness.forking import piped
from harness.http import serving
from harness.processes import ENVIRONMENT, ROOT, run
from harness.rpc import MODERN, PATIENCE
from harness.server import CUSTOM_ERROR, QUICK, Desk, build
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.client import (
    Ledger,
    TaskFailed,
    TaskHandle,
    TasksClient,
    TaskStatus,
    WaitTimedOut,
    call_tool,
    pending_tasks,
    reconnecting_http,
    resume_task,
    start_task,
)
from mcp_tasks.errors import InvalidOption, TasksError, TaskWasCancelled, UnknownTask, UsageError
from mcp_tasks.model import Progress
from mcp_tasks.stores import MemoryStore
from tests.client.connecting import ANSWER, SHORT, Person, accepted, begin, connect, seen, text
from tests.client.peer import ACK, OUT_OF_ORDER, TASK_ID, Answer, MemoryPeer, Peer, connected, task
from tests.unit.virtual_time import simulated

WAYS = ["http-sse", "http-json", "http-reconnecting", "stdio", "memory"]


@pytest.fixture(scope="module", params=WAYS)
async def client(request: pytest.FixtureRequest) -> AsyncGenerator[Client]:
    way: str = request.param
    async with AsyncExitStack() as stack:
        target = await _target(way, stack)
        yield await stack.enter_async_context(connect(target, person=Person()))


async def _target(way: str, stack: AsyncExitStack) -> Any:
    if way == "stdio":
        command, *arguments = piped("harness.furnished", "stdio")
        return StdioServerParameters(command=command, args=arguments, cwd=ROOT, env=ENVIRONMENT)
    server = build(Tasks("memory://", settings=QUICK))
    if way == "memory":
        return server
    wire = await stack.enter_async_context(serving(server, json_response=way == "http-json"))
    return reconnecting_http(wire.url) if way == "http-reconnecting" else wire.url


@pytest.mark.requirement("client/either-result", "client/inspects-input-requests")
async def test_a_tool_gives_its_result_whether_it_is_a_task_or_asks_or_answers_inline(client: Client) -> None:
    assert text(await client.call_tool("echo", {"value": "hello"})) == "hello"
    assert text(await client.call_tool("must", {})) == "as a task"
    assert (await client.call_tool("point", {"x": 1})).structured_content == {"x": 1.0, "y": None}
    assert text(await client.call_tool("greet", {"name": "Ada"})) == "Hello, Ada!"
    assert text(await client.call_tool("never", {})) == "task: None"

    assert (await client.call_tool("fails", {})).is_error
    for tool in ("ask_name", "ask_by_returning", "ask_before"):
        assert text(await client.call_tool(tool, {})) == "Hello, Ada!"


async def test_a_handle_is_there_for_who_wants_it_and_does_not_change_the_next_call(client: Client) -> None:
    handle = await begin(client, "echo", value=5)
    assert handle.tool == "echo"
    assert text(await client.call_tool("echo", {"value": 2})) == "2"
    assert text(await call_tool(client, "echo", {"value": 3}, timeout=60)) == "3"
    assert text(await resume_task(client, handle.id).result()) == "5"
    inline = await start_task(client, "greet", {"name": "Ada"})
    assert isinstance(inline, CallToolResult)


# Other servers and other clients


@pytest.mark.parametrize("ours", ["none", "another", "given"])
async def test_verbs_need_a_client_that_was_given_the_extension(url: str, ours: str, path: Path) -> None:
    tasks = TasksClient(ledger=path, server=url)
    extensions = {"none": None, "another": [TasksClient()], "given": [tasks]}[ours]
    async with Client(url, extensions=extensions) as client:
        arguments: Any = ("echo", {"value": 1})
        methods: list[Any] = [tasks.resume, tasks.pending, tasks.start, tasks.call]
        functions: list[Any] = [resume_task, pending_tasks, start_task, call_tool]
        for verb in [] if ours == "given" else [*methods, *(functions if ours == "none" else [])]:
            with pytest.raises(UsageError, match="TasksClient"):
                await verb(client, *(() if verb in (tasks.pending, pending_tasks) else arguments[:1]))
        if ours == "given":
            handle = await tasks.start(client, "gated")
            assert isinstance(handle, TaskHandle)
            assert [(pending.id, pending.tool) for pending in tasks.pending(client)] == [(handle.id, "gated")]
            await handle.cancel()
            assert text(await tasks.call(client, *arguments, timeout=60)) == "1"


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ({"on_abandon": "kill"}, "on_abandon must be 'cancel' or 'leave', got 'kill'"),
        ({"patience": 5}, r"patience must be a Patience, got 5: write patience=Patience\(\.\.\.\)"),
        ({"ledger": 5}, "ledger must be the path of a file, or a Ledger; got 5"),
        ({"push": "no"}, "push must be True or False, got 'no'"),
        ({"on_progress": "x"}, "on_progress must be an async function of the progress, got 'x'"),
        ({"server": ""}, "server must be a non-empty string, got ''"),
        ({"identity": None}, "identity must be a string, got None"),
    ],
    ids=str,
)
def test_a_value_that_a_client_cannot_have_is_refused(mistake: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        TasksClient(**mistake)


async def test_the_client_of_the_readme_is_a_program_that_comes_back_to_its_tasks(path: Path) -> None:
    server_code, client_code = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    store = MemoryStore()
    names: dict[str, Any] = {"__name__": "readme_server", "store": store}
    exec(compile(server_code.replace("Tasks()", "Tasks(store)"), "README.md", "exec"), names)
    program = path.with_name("client.py")

    async def run_program() -> tuple[int, int]:
        command = [sys.executable, program.name]
        said = (await asyncio.to_thread(run, command, cwd=program.parent, env=ENVIRONMENT, check=True)).stdout
        return said.count("published"), said.count("<TaskHandle")

    def left() -> set[str]:
        with closing(Ledger(path)) as ledger:
            return {entry.task_id for entry in ledger.entries()}

    async with serving(names["server"]) as wire:
        assert "http://127.0.0.1:8000/mcp" in client_code
        program.write_text(client_code.replace("http://127.0.0.1:8000/mcp", wire.url))
        assert await run_program() == (2, 1)
        # The task that the first run left in the ledger, and its own call.
        assert await run_program() == (4, 1)
        known = left()
        assert known
        for task_id in known:
            # Once it only waits for its answer: until then its run saves it again and again.
            version = await eventually(partial(version_asking, store, task_id))
            await store.delete(task_id, expected=version)
        # A task that the server has deleted meanwhile is dropped, and the program goes on.
        assert await run_program() == (2, 1)
        assert not known & left()


async def version_asking(store: MemoryStore, task_id: str) -> int:
    record = await store.get(task_id)
    return record.version if record is not None and record.status is TaskStatus.INPUT_REQUIRED else 0


# Handles: look, watch, wait, answer, cancel, give up


@pytest.fixture(params=[True, False], ids=["push", "polls"])
def push(request: pytest.FixtureRequest) -> bool:
    return request.param


# Outcomes


@pytest.mark.parametrize("way", ["handle", "call_tool", "the SDK's call_tool"])
async def test_a_failed_task_is_an_error_of_ours_and_of_the_sdk(url: str, way: str) -> None:
    async with connect(url) as client:
        verbs: dict[str, Any] = {
            "handle": (await begin(client, "breaks")).result,
            "call_tool": partial(call_tool, client, "breaks"),
            "the SDK's call_tool": partial(client.call_tool, "breaks"),
        }
        with pytest.raises(MCPError) as caught:
            await verbs[way]()
    failed = caught.value
    assert isinstance(failed, TaskFailed)
    assert isinstance(failed, TasksError)
    assert (failed.code, failed.data) == (CUSTOM_ERROR, {"hint": "ask again"})
    assert failed.error.message == "the protocol says no"
    assert str(failed) == f"task {failed.task_id} failed: the protocol says no"


async def test_a_task_cancelled_by_somebody_else_says_so_and_names_itself(url: str, desk: Desk, push: bool) -> None:
    async with connect(url, push=push) as client:
        handle = await begin(client, "gated")
        await desk.started.wait()
        cancelling = asyncio.create_task(resume_task(client, handle.id).cancel())
        with pytest.raises(TaskWasCancelled, match="Cancelled by the client") as caught:
            await handle.result(PATIENCE)
        await cancelling
    assert caught.value.task_id == handle.id


async def test_a_task_that_is_not_there_is_unknown_whatever_is_asked_of_it(url: str) -> None:
    async with connect(url) as client:
        handle = resume_task(client, "task_nobody")
        answer = partial(handle.answer, {"key": ANSWER})
        for verb in (handle.status, handle.result, handle.cancel, answer, lambda: anext(handle.watch())):
            with pytest.raises(UnknownTask) as caught:
                await verb()
            assert caught.value.task_id == "task_nobody"


# Looking


async def test_status_is_one_look(url: str, desk: Desk) -> None:
    async with connect(url) as client:
        handle = await begin(client, "progressing", steps=2, total=4, message="half")
        await desk.started.wait()
        working = await seen(handle, lambda snapshot: snapshot.progress and snapshot.progress.progress == 2)
        desk.gate.set()
        await handle.result()
        done = await handle.status()
        assert text(await handle.result()) == "done", "a result can be had again"
    assert (working.status, working.message) == (TaskStatus.WORKING, "half")
    assert working.progress == Progress(progress=2, total=4, message="half")
    assert (done.status, done.is_final) == (TaskStatus.COMPLETED, True)


async def test_one_look_is_not_tried_again(peer: Peer) -> None:
    peer.on("tasks/get", OUT_OF_ORDER)
    async with connect(peer.url) as client:
        with pytest.raises(MCPError):
            await resume_task(client, TASK_ID).status()
    assert len(peer.asked("tasks/get")) == 1


@pytest.mark.requirement("client/polls-to-the-end")
async def test_watch_shows_every_change_of_status_and_ends_with_the_final_one(url: str, push: bool) -> None:
    person = Person()
    async with connect(url, push=push, person=person) as client:
        handle = await begin(client, "ask_name")
        statuses: list[TaskStatus] = []
        async for snapshot in handle.watch():
            statuses.append(snapshot.status)
            if snapshot.status is TaskStatus.INPUT_REQUIRED:
                await handle.answer(dict.fromkeys(snapshot.input_requests, ANSWER))
    distinct = [status for status, _ in groupby(statuses)]
    assert distinct[-1] is TaskStatus.COMPLETED
    assert distinct.count(TaskStatus.INPUT_REQUIRED) == 1
    assert person.asked == [], "a watch shows questions and does not answer them"


# Progress


async def test_progress_goes_to_the_callback_of_the_call_or_of_the_client(url: str, desk: Desk, push: bool) -> None:
    reported: dict[str, list[Progress]] = {"client": [], "call": []}

    async def on_progress(of: str, progress: Progress) -> None:
        reported[of].append(progress)
        if progress.progress == 3:
            desk.gate.set()

    of_client, of_call = partial(on_progress, "client"), partial(on_progress, "call")
    arguments = {"steps": 3, "total": 3, "message": "on it"}
    async with connect(url, on_progress=of_client, push=push) as client:
        calls = (client.call_tool, partial(call_tool, client), partial(call_tool, client, on_progress=of_call))
        for call, whose in zip(calls, ("client", "client", "call"), strict=True):
            desk.gate.clear()
            with anyio.fail_after(PATIENCE):
                await call("progressing", arguments)
            told = reported.pop(whose)
            assert told[-1] == Progress(progress=3, total=3, message="on it")
            assert told == sorted(set(told), key=lambda progress: progress.progress)
            assert not any(reported.values())
            reported[whose] = []


# Questions


async def test_answers_can_be_given_by_hand_one_by_one_and_as_models_of_the_sdk(url: str, ledger: Ledger) -> None:
    async with connect(url, person=Person(), ledger=ledger) as client:
        handle = await begin(client, "ask_both")
        async for snapshot in handle.watch():
            for key in list(snapshot.input_requests)[:1]:
                await handle.answer({key: accepted()})
        assert text(await handle.result()) == "Ada is 36"


async def test_a_question_that_somebody_else_answers_leaves_the_person_alone(url: str) -> None:
    person = Person(ready=asyncio.Event())
    async with connect(url, person=person) as client, connect(url, person=Person()) as other:
        handle = await begin(client, "ask_name")
        async with anyio.create_task_group() as group:
            group.start_soon(handle.result)
            await person.until_asked()
            assert text(await resume_task(other, handle.id).result()) == "Hello, Ada!"
    assert (len(person.asked), person.left_alone) == (1, 1)


# Giving up


async def by_handle(client: Client, timeout: timedelta, on_abandon: Any) -> None:
    await (await begin(client, "gated")).result(timeout, on_abandon=on_abandon)


async def by_call(client: Client, timeout: timedelta, on_abandon: Any) -> None:
    await call_tool(client, "gated", timeout=timeout, on_abandon=on_abandon)


@pytest.mark.requirement("client/cancels-with-tasks-cancel")
@pytest.mark.parametrize("on_abandon", ["cancel", "leave", None])
@pytest.mark.parametrize("wait", [by_handle, by_call])
async def test_a_wait_that_takes_too_long_leaves_or_cancels_its_task_and_says_which(
    url: str, desk: Desk, ledger: Ledger, wait: Any, on_abandon: Any
) -> None:
    # What a call does not say is as the client was made.
    async with connect(url, on_abandon="leave" if on_abandon else "cancel", ledger=ledger) as client:
        await client.list_tools()
        with pytest.raises(WaitTimedOut, match="resume_task" if on_abandon == "leave" else "was cancelled") as caught:
            await wait(client, timedelta(seconds=0.2), on_abandon)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.seconds == 0.2
        handle = resume_task(client, caught.value.task_id)
        if on_abandon == "leave":
            assert caught.value.fate == "left"
            assert [known.id for known in pending_tasks(client)] == [handle.id]
            desk.gate.set()
            assert text(await handle.result()) == "through"
        else:
            assert caught.value.fate == "cancelled"
            # What was cancelled from here is not wanted any more.
            assert pending_tasks(client) == []
            assert (await handle.status()).status is TaskStatus.CANCELLED


@pytest.mark.parametrize("on_abandon", ["cancel", "leave"])
@pytest.mark.parametrize("by", ["scope", "asyncio"])
@pytest.mark.parametrize("way", ["handle", "plain call"])
async def test_a_caller_that_is_cancelled_decides_what_becomes_of_its_task(
    url: str, desk: Desk, by: str, on_abandon: Any, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    scope, ids = anyio.CancelScope(), list[str]()

    async def wait() -> None:
        with scope:
            if way == "plain call":
                await client.call_tool("gated")
            handle = await begin(client, "gated")
            ids.append(handle.id)
            await handle.result()

    async with connect(url, on_abandon=on_abandon) as client:
        waiting = asyncio.create_task(wait())
        await desk.started.wait()
        # By the time of the answer to a later request, that to the call has come: it is known what to cancel.
        await client.list_tools()
        waiting.cancel() if by == "asyncio" else scope.cancel()
        await asyncio.wait([waiting], timeout=PATIENCE)
        assert waiting.cancelled() == (by == "asyncio")
        if on_abandon == "cancel":
            await eventually(desk.stopped.is_set)
        else:
            # A cancellation would have come before any answer to a later request.
            await client.list_tools()
            assert not desk.stopped.is_set()
    assert "the wait for task" in caplog.text
    assert not any(task_id in caplog.text for task_id in ids), "the whole id is not logged"


@simulated
@pytest.mark.parametrize("answer", [OUT_OF_ORDER, None], ids=["refuses", "is silent"])
async def test_a_failed_cancellation_does_not_hide_a_time_out(answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    peer = MemoryPeer(version=MODERN)
    peer.on("tasks/get", task())
    peer.on("tasks/cancel", answer)
    async with connected(peer, patience=SHORT) as client:
        handle = await begin(client, "x")
        with pytest.raises(WaitTimedOut) as caught:
            await handle.result(0.05, on_abandon="cancel")
    assert caught.value.fate == "not cancelled"
    assert answer is None or "could not be cancelled" in caplog.text


async def test_a_ledger_that_keeps_results_keeps_a_task_that_was_cancelled_as_that(peer: Peer, path: Any) -> None:
    ledger = Ledger(path, keep_results=True)
    peer.on("tasks/cancel", ACK)
    peer.on("tasks/get", task())
    async with connect(peer.url, ledger=ledger) as client:
        handle = resume_task(client, TASK_ID)
        handle.remember()
        await handle.cancel()
        assert pending_tasks(client) == []
        [entry] = ledger.entries()
        assert entry.status == "cancelled"
        assert entry.finished_at is not None
        # The server may take its time; what is seen later counts.
        await handle.status()
        assert [known.id for known in pending_tasks(client)] == [TASK_ID]
    ledger.close()


# Arguments that cannot be meant


WRONG_WAITS: list[tuple[dict[str, Any], type[InvalidOption], str]] = [
    ({"on_abandon": "kill"}, InvalidOption, "on_abandon must be 'cancel' or 'leave', got 'kill'"),
    ({"on_progress": 5}, InvalidOption, "on_progress must be an async function of the progress, got 5"),
    ({"timeout": "1s"}, InvalidOption, "timeout must be a timedelta or a number of seconds, got '1s'"),
    ({"timeout": True}, InvalidOption, "timeout must be .*, got True"),
    ({"timeout": float("nan")}, InvalidOption, "timeout must be .*, got nan"),
]


async def test_invalid_arguments_make_no_task_and_leave_an_existing_one(url: str, desk: Desk) -> None:
    async with connect(url, on_abandon="cancel") as client:
        for mistake, kind, says in WRONG_WAITS:
            with pytest.raises(kind, match=says):
                await call_tool(client, "gated", **mistake)
        # The tool would have begun before any answer to a later request.
        await client.list_tools()
        assert not desk.started.is_set()
        handle = await begin(client, "gated")
        for mistake, kind, says in WRONG_WAITS:
            with pytest.raises(kind, match=says):
                await handle.result(**mistake)
        with pytest.raises(InvalidOption, match="on_abandon"):
            await handle.abandon("kill")  # pyright: ignore[reportArgumentType]
        desk.gate.set()
        assert text(await handle.result()) == "through"
