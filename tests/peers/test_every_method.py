"""Every method of both eras, spoilt in thousands of ways: a defined error or a right answer, and nothing else.

`python -m tests.peers.soak` goes on for as long as one likes.
"""

import json
import logging
import random
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from harness.rpc import EVERYTHING, NOTHING, Tasking, accept, legacy_request, notification, request, response
from harness.stdio import StdioWire, stdio_process
from harness.thoroughness import examples
from harness.waiting import eventually
from mcp_tasks.model import TaskStatus
from tests.peers.nasty import spoilt
from tests.peers.stage import (
    OLDER,
    Fuzz,
    Stage,
    call,
    messages_of,
    modern_messages,
    older_call,
    older_messages,
    result_of,
    stage,
)
from tests.short.raw import Answer

pytestmark = pytest.mark.timeout(400)


@pytest.mark.requirement("errors/clearly-invalid")
async def test_whatever_is_sent_is_refused_or_answered_and_nothing_is_left_behind() -> None:
    async with stage() as staged:
        fuzz = Fuzz(staged, seed=13)
        faults = [fault for _ in range(examples(400)) if (fault := await fuzz.one()) is not None]
        assert faults == []
        await staged.still_answers()
        # Each call that became a task has one that can be read: none is half there.
        async for task in staged.tasks.list_all(everybody=True):
            seen = await staged.modern(request("tasks/get", {"taskId": task.id}))
            assert result_of(seen)["taskId"] == task.id


def is_refused(answer: Answer) -> bool:
    return answer.status != 200 or any("error" in message for message in messages_of(answer))


async def test_the_messages_that_are_spoilt_were_good() -> None:
    """Otherwise all would be refused at the first look, and nothing behind it be seen."""
    async with stage() as staged:
        refused: list[str] = []
        for good in modern_messages(staged):
            refused += [good["method"]] if is_refused(await staged.modern(good)) else []
        # Unknown tasks, and a question that is none.
        assert sorted(refused) == ["tasks/cancel", "tasks/get"]
        older: list[str] = []
        for good in older_messages(staged):
            answer = await staged.older(good)
            older += [good.get("method", "answer")] if is_refused(answer) and answer.status != 202 else []
        # An unknown task, a task that has ended, a cursor that is none, and the outcome of a call that failed.
        assert sorted(older) == ["tasks/cancel", "tasks/get", "tasks/list", "tasks/result"]


# A request without a valid id is a notification: it asks for no answer, and must do nothing.


async def everything(staged: Stage) -> dict[str, TaskStatus]:
    return {task.id: task.status async for task in staged.tasks.list_all(everybody=True)}


async def test_no_request_without_an_id_makes_or_changes_a_task() -> None:
    async with stage() as staged:
        before = await everything(staged)
        older = [
            older_call("echo", {"value": {"not": 5}}),
            notification("tasks/cancel", {"taskId": staged.ids["older"]}),
            notification("tasks/cancel", {"taskId": 5}),
            notification("tasks/result", {"taskId": staged.ids["older"]}),
            notification("tasks/list", {"cursor": 5}),
        ]
        modern = [
            call("echo", {"value": 1}),
            call("gated", {}, capabilities=NOTHING),
            request("tools/call", {"name": "gated", "arguments": {}, "requestState": "mcp-tasks.x"}),
            request("tasks/cancel", {"taskId": staged.ids["working"]}),
            request("subscriptions/listen", {"notifications": {"taskIds": [staged.ids["working"]]}}),
        ]
        for send, messages in ((staged.older, older), (staged.modern, modern)):
            for message in messages:
                rest = {name: value for name, value in message.items() if name != "id"}
                for each in (rest, *({**rest, "id": identifier} for identifier in ([1], {"x": 1}, None, True))):
                    await send(message, json.dumps(each).encode())
        assert await everything(staged) == before
        assert staged.complaints.lines == []


# Through the pipes of a real process


async def fire(wire: StdioWire, good: Sequence[dict[str, Any]], seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(examples(100)):
        body = spoilt(chance, chance.choice(good))
        if len(body) < 100_000:
            await wire.write(body.replace(b"\n", b" ").replace(b"\r", b" "))


@asynccontextmanager
async def unshaken() -> AsyncGenerator[StdioWire]:
    """A server in a process of its own, which must not log a traceback."""
    with tempfile.NamedTemporaryFile() as log:
        async with stdio_process(stderr=log.file) as wire:
            yield wire
        log.seek(0)
        assert b"Traceback" not in log.read()


async def test_a_server_of_the_newest_wire_goes_on_answering() -> None:
    async with unshaken() as wire:
        client = Tasking(wire, EVERYTHING)
        asking = await client.create("ask_name")
        answers = {"inputResponses": {"q": {"action": "accept", "content": {"name": "a"}}}}
        good = [
            request("tools/call", {"name": "echo", "arguments": {"value": [1]}}),
            request("tools/call", {"name": "echo", "arguments": {"value": [1]}}, capabilities={}),
            request("tasks/get", {"taskId": asking}),
            request("tasks/update", {"taskId": asking, **answers}),
            request("tasks/cancel", {"taskId": "x"}),
            request("subscriptions/listen", {"notifications": {"taskIds": [asking, "x"]}}),
            request("server/discover"),
        ]
        await fire(wire, good, 1)
        assert "completed" in str(await client.finish("echo", value="fine"))


async def test_a_server_of_the_older_wire_goes_on_answering() -> None:
    async with unshaken() as wire:
        await wire.send(legacy_request("initialize", OLDER))
        await wire.notify("notifications/initialized")
        made = (await wire.send(older_call("ask_name", {}))).result["task"]["taskId"]
        named = {"taskId": made}
        good = [
            older_call("echo", {"value": [1]}),
            legacy_request("tasks/get", named),
            legacy_request("tasks/result", named),
            legacy_request("tasks/list", {"cursor": "x"}),
            legacy_request("tasks/cancel", {"taskId": "x"}),
            notification("notifications/cancelled", {"requestId": 1}),
            notification("notifications/tasks/status", named),
            response(1, accept(name="a")),
        ]
        await fire(wire, good, 2)
        assert "task" in (await wire.send(older_call("echo", {"value": "fine"}))).result


# Elicited content is untrusted: it is checked at every way in, cheap to check, and never in a log

EVIL = "a" * 50 + "!"
"""Fifty letters by `^(a+)+$`, and one that does not fit: Python's `re` would try for weeks."""

SECRET = "the answer that no log may show"

Door = Callable[[Stage, Any], Awaitable[str | None]]
"""Answers the task `asking`; gives the text of the refusal, or None if the answer was taken."""


async def asked(staged: Stage) -> tuple[str, str]:
    made = result_of(await staged.modern(call("fill_in", {})))["taskId"]

    async def questions() -> Any:
        return result_of(await staged.modern(request("tasks/get", {"taskId": made}))).get("inputRequests")

    return made, next(iter(await eventually(questions)))


async def by_update(staged: Stage, content: Any) -> str | None:
    task_id, key = await asked(staged)
    answers = {"inputResponses": {key: {"action": "accept", "content": content}}}
    (message,) = messages_of(await staged.modern(request("tasks/update", {"taskId": task_id, **answers})))
    return message["error"]["message"] if "error" in message else None


async def by_companion(staged: Stage, content: Any) -> str | None:
    task_id, _ = await asked(staged)
    arguments = {"task_id": task_id, "action": "accept", "content": content}
    result = result_of(await staged.modern(call("task_answer", arguments, capabilities=NOTHING)))
    return json.dumps(result["content"]) if result.get("isError") else None


async def by_the_server(staged: Stage, content: Any) -> str | None:
    task_id, key = await asked(staged)
    try:
        await staged.tasks.handle(task_id).send_input("accept", content, key=key)
    except MCPError as exc:
        return exc.error.message
    return None


DOORS: list[Door] = [by_update, by_companion, by_the_server]

GOOD = {"name": "aaa", "price": 1.25, "tags": ["x", "y"]}
BAD: list[dict[str, Any]] = [
    *({}, {"name": 5}, {"name": "b"}, {"name": "a", "price": -1}, {"name": "a", "tags": ["x", "x"]}),
    *({"name": "a", "price": 10**400}, {"name": EVIL}),
    *({"name": SECRET}, {"name": SECRET, "price": 10**400}, {SECRET: 1}, {"name": "a", "tags": [SECRET]}),
]


@pytest.mark.requirement("errors/clearly-invalid")
@pytest.mark.parametrize("door", DOORS)
async def test_an_answer_is_checked_against_the_form_it_was_asked_with(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage() as staged:
        caplog.set_level(logging.DEBUG, "mcp_tasks")
        assert await door(staged, GOOD) is None
        # Each is refused at once: no text makes a pattern backtrack.
        assert [content for content in BAD if await door(staged, content) is None] == []
        assert staged.complaints.lines == []
        assert SECRET not in caplog.text
