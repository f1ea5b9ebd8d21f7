"""A request without a valid id is a notification: it asks for no answer, and must do nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from harness.rpc import NOTHING, notification, request
from mcp_tasks.model import TaskStatus
from tests.peers.stage import Stage, call, older_call, stage

pytestmark = pytest.mark.anyio


def without_id(message: Mapping[str, Any], *identifiers: Any) -> list[bytes]:
    """The message without an id, and with what is no id."""
    rest = {name: value for name, value in message.items() if name != "id"}
    return [json.dumps(each).encode() for each in (rest, *({**rest, "id": each} for each in identifiers))]


async def everything(staged: Stage) -> dict[str, TaskStatus]:
    return {task.id: task.status async for task in staged.tasks.list_all(everybody=True)}


async def test_no_older_request_without_an_id_makes_or_changes_a_task() -> None:
    async with stage() as staged:
        before = await everything(staged)
        for message in (
            older_call("echo", {"value": 1}),
            older_call("echo", {"value": {"not": 5}}),
            notification("tasks/cancel", {"taskId": staged.ids["older"]}),
            notification("tasks/cancel", {"taskId": 5}),
            notification("tasks/result", {"taskId": staged.ids["older"]}),
            notification("tasks/list", {"cursor": 5}),
        ):
            for body in without_id(message, [1], {"x": 1}, None, True):
                await staged.older(message, body)
        assert await everything(staged) == before
        assert staged.complaints.lines == []


async def test_no_modern_request_without_an_id_makes_or_changes_a_task() -> None:
    async with stage() as staged:
        before = await everything(staged)
        for message in (
            call("echo", {"value": 1}),
            call("gated", {}, capabilities=NOTHING),
            request("tools/call", {"name": "gated", "arguments": {}, "requestState": "mcp-tasks.x"}),
            request("tasks/cancel", {"taskId": staged.ids["working"]}),
            request("subscriptions/listen", {"notifications": {"taskIds": [staged.ids["working"]]}}),
        ):
            for body in without_id(message, [1], {"x": 1}, None, True):
                await staged.modern(message, body)
        assert await everything(staged) == before
        assert staged.complaints.lines == []
