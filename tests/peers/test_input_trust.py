"""Elicited content is data: checked at every door, cheap to check, and never in a log."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from harness.rpc import NOTHING, PATIENCE, request
from mcp_tasks.model import InputBook, InputRequest
from mcp_tasks.model.limits import Limits
from mcp_tasks.protocol.answers import misfit
from mcp_tasks.testing import make_record
from tests.peers.stage import FORM, Stage, call, messages_of, result_of, stage

pytestmark = pytest.mark.anyio

EVIL = "a" * 50 + "!"
"""Fifty letters by `^(a+)+$`, and one that does not fit: Python's `re` would try for some weeks."""

SECRET = "the answer that nobody may read"

Door = Callable[[Stage, Any], Awaitable[str | None]]
"""Gives the task `asking` an answer; what the refusal says, None if it was taken."""


async def asked(staged: Stage) -> tuple[str, str]:
    """A task that asks, and the key of its question."""
    made = result_of(await staged.modern(call("fill_in", {})))["taskId"]
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        task = result_of(await staged.modern(request("tasks/get", {"taskId": made})))
        if task["status"] == "input_required":
            return made, next(iter(task["inputRequests"]))
    raise AssertionError("nothing was asked")


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


async def on_a_call(_staged: Stage, content: Any) -> str | None:
    """As a client of an older era, or on a call that waits, is heard: its answer cannot be refused to it."""
    question = InputRequest(method="elicitation/create", params={"message": "?", "requestedSchema": FORM})
    record = make_record(inputs=InputBook().ask({"q": question}))
    problem = misfit(record, "q", {"action": "accept", "content": content}, Limits())
    return None if problem is None else str(problem)


DOORS: list[Door] = [by_update, by_companion, by_the_server, on_a_call]


@pytest.mark.requirement("errors/clearly-invalid")
@pytest.mark.parametrize("door", DOORS)
async def test_an_answer_is_checked_against_the_form_it_was_asked_with(door: Door) -> None:
    async with stage() as staged:
        assert await door(staged, {"name": "aaa", "price": 1.25, "tags": ["x", "y"]}) is None
        for content in ({}, {"name": 5}, {"name": "b"}, {"name": "a", "price": -1}, {"name": "a", "tags": ["x", "x"]}):
            assert await door(staged, content) is not None
        assert await door(staged, {"name": "a", "price": 10**400}) is not None
        assert staged.complaints.lines == []


@pytest.mark.parametrize("door", DOORS)
async def test_no_text_makes_a_pattern_backtrack(door: Door) -> None:
    async def spent(content: Any) -> float:
        begun = time.perf_counter()
        await door(staged, content)
        return time.perf_counter() - begun

    async with stage() as staged:
        await spent({"name": "a"})
        good = min([await spent({"name": "a" * 50}) for _ in range(5)])
        evil = min([await spent({"name": EVIL}) for _ in range(5)])
        # With room for a busy machine: the other engine would take longer than the test may.
        assert evil < 50 * good


@pytest.mark.parametrize("door", DOORS)
async def test_what_a_person_answers_is_in_no_log(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    async with stage() as staged:
        caplog.set_level(logging.DEBUG, "mcp_tasks")
        for content in (
            {"name": SECRET},
            {"name": SECRET, "price": 10**400},
            {SECRET: 1},
            {"name": "a", "tags": [SECRET]},
        ):
            await door(staged, content)
        assert SECRET not in caplog.text
