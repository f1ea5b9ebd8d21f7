"""What comes on a stream that names tasks: the acknowledgement, the states, and nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

from harness.http import HttpWire, serving
from harness.rpc import EVERYTHING, PATIENCE, Tasking, accept, text_of
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from mcp_tasks.protocol.shapes import PROGRESS_META_KEY
from mcp_tasks.stores.memory import MemoryStore
from tests.push.listening import TASKS, Stream, as_pushed, listen, listening, timeless

pytestmark = pytest.mark.anyio

WANTS_LOGS = {"io.modelcontextprotocol/logLevel": "debug", "progressToken": "mine"}


async def test_the_acknowledgement_names_the_tasks_that_are_there_in_the_order_asked(
    client: Tasking, wire: HttpWire
) -> None:
    first, second = await client.create("gated"), await client.create("gated")
    async with listening(wire, [second, "task_unknown", first, ""]) as stream:
        assert await stream.acknowledged() == {"taskIds": [second, first]}


async def test_an_id_named_twice_is_told_of_once(client: Tasking, wire: HttpWire, desk: Desk) -> None:
    task_id = await client.create("gated")
    await client.until(task_id, "working")
    await desk.started.wait()
    async with listening(wire, [task_id, task_id]) as stream:
        assert await stream.acknowledged() == {"taskIds": [task_id]}
        assert (await stream.task())["status"] == "working"
        desk.gate.set()
        assert (await stream.task())["status"] == "completed"


@pytest.mark.parametrize("ids", [[], ["task_unknown"], ["x" * 100_000]])
async def test_a_stream_without_any_task_that_is_there_is_honest_about_it(wire: HttpWire, ids: list[str]) -> None:
    async with listening(wire, ids) as stream:
        assert await stream.acknowledged() == {"taskIds": []}


async def test_the_present_state_comes_right_after_the_acknowledgement(
    client: Tasking, wire: HttpWire, desk: Desk
) -> None:
    task_id = await client.create("gated")
    await desk.started.wait()
    got = await client.get(task_id)
    async with listening(wire, [task_id]) as stream:
        await stream.acknowledged()
        assert timeless(await stream.task()) == timeless(as_pushed(got))


async def test_a_finished_task_is_told_with_its_outcome_at_once(client: Tasking, wire: HttpWire) -> None:
    done = await client.finish("point", x=2)
    broken = await client.until(await client.create("breaks"), "failed")
    gone = await client.create("gated")
    await client.cancel(gone)
    async with listening(wire, [done["taskId"], broken["taskId"], gone]) as stream:
        await stream.acknowledged()
        states = [await stream.task() for _ in range(3)]
        assert [state["status"] for state in states] == ["completed", "failed", "cancelled"]
        assert states == [as_pushed(await client.get(state["taskId"])) for state in states]
    assert states[0]["result"]["structuredContent"] == {"x": 2.0, "y": None}
    assert states[1]["error"]["data"] == {"hint": "ask again"}


async def test_every_change_is_told_with_all_that_a_look_would_show(client: Tasking, wire: HttpWire) -> None:
    task_id = await client.create("ask_name")
    async with listening(wire, [task_id]) as stream:
        await stream.acknowledged()
        *_, asking = await stream.until("input_required")
        assert timeless(asking) == timeless(as_pushed(await client.get(task_id)))
        [key] = asking["inputRequests"]
        await client.update(task_id, **{key: accept(name="Ada")})
        *between, done = await stream.until("completed")
        assert done == as_pushed(await client.get(task_id))
    assert {state["status"] for state in between} <= {"working"}
    assert text_of(done["result"]) == "Hello, Ada!"


async def test_progress_is_told_as_a_state_of_the_task(client: Tasking, wire: HttpWire, desk: Desk) -> None:
    task_id = await client.create("progressing", steps=3, total=3, message="on it")
    await desk.started.wait()
    async with listening(wire, [task_id]) as stream:
        await stream.acknowledged()
        state = await stream.task()
        while state.get("_meta", {}).get(PROGRESS_META_KEY) != {"progress": 3, "total": 3}:
            state = await stream.task()
        assert state["statusMessage"] == "on it"
        assert timeless(state) == timeless(as_pushed(await client.get(task_id)))


async def test_a_cancellation_is_told(client: Tasking, wire: HttpWire, desk: Desk) -> None:
    task_id = await client.create("gated")
    await desk.started.wait()
    async with listening(wire, [task_id]) as stream:
        await stream.acknowledged()
        await client.cancel(task_id)
        *_, last = await stream.until("cancelled")
    assert last["statusMessage"] == "Cancelled by the client"


async def test_after_the_end_nothing_more_is_told(client: Tasking, wire: HttpWire, desk: Desk) -> None:
    ended, other = await client.create("stubborn"), await client.create("gated")
    await desk.started.wait()
    async with listening(wire, [ended, other]) as stream:
        await stream.acknowledged()
        await client.cancel(ended)
        states = [await stream.task()]
        while states[-1]["taskId"] != ended or states[-1]["status"] != "cancelled":
            states.append(await stream.task())
        await desk.stopped.wait()
        desk.gate.set()
        rest = [await stream.task()]
        while rest[-1]["status"] != "completed":
            rest.append(await stream.task())
    assert {state["taskId"] for state in rest} == {other}


async def test_each_stream_is_told_of_its_own_tasks_under_its_own_id(
    client: Tasking, wire: HttpWire, desk: Desk
) -> None:
    mine, yours, shared = [await client.create("gated") for _ in range(3)]
    async with listening(wire, [mine, shared]) as first, listening(wire, [yours, shared]) as second:
        for stream, ids in ((first, [mine, shared]), (second, [yours, shared])):
            assert (await stream.acknowledged())["taskIds"] == ids
        desk.gate.set()
        assert await _finished(first) == {mine, shared}
        assert await _finished(second) == {yours, shared}
    assert first.id != second.id


async def _finished(stream: Stream) -> set[str]:
    """The tasks of the stream as they finish: two of them."""
    done: set[str] = set()
    while len(done) < 2:
        state = await stream.task()
        if state["status"] == "completed":
            done.add(state["taskId"])
    return done


@pytest.mark.parametrize("request_id", ["a-string", 0, -7, "☃"])
async def test_the_subscription_id_is_the_id_of_the_request_as_it_was(
    client: Tasking, wire: HttpWire, request_id: Any
) -> None:
    done = await client.finish("echo", value=1)
    message = {**listen([done["taskId"]]), "id": request_id}
    async with wire.stream(message) as frames:
        stream = Stream(request_id, frames)
        await stream.acknowledged()
        assert (await stream.task())["status"] == "completed"


@pytest.mark.parametrize(("ttl", "expected"), [(None, type(None)), (timedelta(hours=1), int)])
async def test_the_time_to_live_is_there_whether_or_not_there_is_one(
    desk: Desk, ttl: timedelta | None, expected: type
) -> None:
    async with serving(build(Tasks(MemoryStore(), default_ttl=ttl, settings=QUICK), desk)) as wire:
        client = Tasking(wire, EVERYTHING)
        task_id = await client.create("gated")
        async with listening(wire, [task_id]) as stream:
            await stream.acknowledged()
            working = await stream.task()
            desk.gate.set()
            *_, done = await stream.until("completed")
    for state in (working, done):
        assert "ttlMs" in state
        assert isinstance(state["ttlMs"], expected)


async def test_nothing_but_states_comes_for_a_tool_that_logs_and_reports(client: Tasking, wire: HttpWire) -> None:
    task_id = await client.create("ask_name")
    other = await client.create("ask_name")
    async with listening(wire, [task_id, other], meta=WANTS_LOGS) as stream:
        await stream.acknowledged()
        noisy = await client.ask("tools/call", {"name": "logs", "arguments": {}}, meta=WANTS_LOGS)
        await client.until(noisy.result["taskId"], "completed")
        await client.cancel(task_id)
        frames = [await stream.frame()]
        while frames[-1]["params"]["status"] != "cancelled":
            frames.append(await stream.frame())
    assert {frame["method"] for frame in frames} == {TASKS}


async def test_a_tool_that_reports_and_logs_on_its_own_stream_is_told_by_states_only(wire: HttpWire) -> None:
    client = Tasking(wire, EVERYTHING)
    reply = await client.ask("tools/call", {"name": "logs", "arguments": {}}, meta=WANTS_LOGS)
    async with listening(wire, [reply.result["taskId"]], meta=WANTS_LOGS) as stream:
        await stream.acknowledged()
        states = await stream.until("completed")
    assert text_of(states[-1]["result"]) == "Good day."


async def test_leaving_a_stream_leaves_its_task_alone_and_nothing_behind(
    client: Tasking, wire: HttpWire, desk: Desk
) -> None:
    task_id = await client.create("gated")
    for _ in range(3):
        async with listening(wire, [task_id]) as stream:
            await stream.acknowledged()
            await stream.task()
    assert (await client.get(task_id))["status"] == "working"
    desk.gate.set()
    assert (await client.until(task_id, "completed"))["status"] == "completed"


async def test_a_hundred_tasks_fit_on_one_stream(client: Tasking, wire: HttpWire, store: MemoryStore) -> None:
    ids = [(await client.finish("echo", value=number))["taskId"] for number in range(20)]
    asked = [*ids, *(f"task_unknown_{number}" for number in range(80))]
    async with listening(wire, asked) as stream:
        assert await stream.acknowledged() == {"taskIds": ids}
        with anyio.fail_after(PATIENCE):
            assert [(await stream.task())["taskId"] for _ in ids] == ids
