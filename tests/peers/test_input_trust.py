"""Elicited content is data: checked at every door, cheap to check, and never in a log."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from harness.rpc import NOTHING, request
from harness.waiting import eventually
from tests.peers.stage import Stage, call, messages_of, result_of, stage

pytestmark = pytest.mark.anyio

EVIL = "a" * 50 + "!"
"""Fifty letters by `^(a+)+$`, and one that does not fit: Python's `re` would try for some weeks."""

SECRET = "the answer that nobody may read"

Door = Callable[[Stage, Any], Awaitable[str | None]]
"""Gives the task `asking` an answer; what the refusal says, None if it was taken."""


async def asked(staged: Stage) -> tuple[str, str]:
    """A task that asks, and the key of its question."""
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
        # Each at once: no text makes a pattern backtrack.
        assert [content for content in BAD if await door(staged, content) is None] == []
        assert staged.complaints.lines == []
        assert SECRET not in caplog.text
