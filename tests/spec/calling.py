"""A client of either protocol version, for what both say of a task."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness.http import HttpWire
from harness.older import ASKABLE, RELATED, HttpClient, http_session
from harness.rpc import EVERYTHING, INTERNAL_ERROR, INVALID_PARAMS, LEGACY, MODERN, NOTHING, Reply, Tasking

ERAS = (MODERN, LEGACY)
in_both_eras = pytest.mark.parametrize("era", ERAS)

_STATUS = {INVALID_PARAMS: 400, INTERNAL_ERROR: 200}
"""HTTP statuses of errors of 2026-07-28."""


class Caller:
    """The client, and what it does in the words of its protocol version."""

    def __init__(self, client: Tasking | HttpClient) -> None:
        self.client = client
        self.era = MODERN if isinstance(client, Tasking) else LEGACY
        self.methods = ("tasks/get", "tasks/cancel", "tasks/update" if self.era == MODERN else "tasks/result")

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Reply:
        return await self.client.ask(method, params)

    async def about(self, method: str, task_id: Any) -> Reply:
        answers: dict[str, Any] = {"inputResponses": {}} if method == "tasks/update" else {}
        return await self.client.ask(method, {"taskId": task_id, **answers})

    async def refused(self, method: str, task_id: Any, code: int = INVALID_PARAMS) -> dict[str, Any]:
        reply = await self.about(method, task_id)
        assert reply.code == code
        assert self.era == LEGACY or reply.status == _STATUS[code]
        return reply.error

    async def plainly(self, tool: str, **arguments: Any) -> Reply:
        client = self.client.declaring(NOTHING) if isinstance(self.client, Tasking) else self.client
        return await client.ask("tools/call", {"name": tool, "arguments": arguments})

    async def call(self, tool: str, **arguments: Any) -> Reply:
        task: dict[str, Any] = {} if self.era == MODERN else {"task": {}}
        return await self.client.ask("tools/call", {"name": tool, "arguments": arguments, **task})

    async def start(self, tool: str, **arguments: Any) -> str:
        created = (await self.call(tool, **arguments)).result
        return created["taskId"] if self.era == MODERN else created["task"]["taskId"]

    async def get(self, task_id: str) -> dict[str, Any]:
        return await self.client.get(task_id)

    async def cancel(self, task_id: str) -> None:
        await self.client.cancel(task_id)

    async def until(self, task_id: str, *statuses: str) -> dict[str, Any]:
        return await self.client.until(task_id, *statuses)

    async def outcome(self, task_id: str) -> dict[str, Any]:
        """The result or the error of a task that has ended or will, without what names the task."""
        if isinstance(self.client, HttpClient):
            message = (await self.client.result(task_id)).message
            return _without_name(message.get("result") or message["error"], task_id)
        task = await self.client.until(task_id, "completed", "failed")
        return task["result"] if task["status"] == "completed" else task["error"]


def _without_name(outcome: dict[str, Any], task_id: str) -> dict[str, Any]:
    """What `tasks/result` gives, without what ties it to its task, which must be there."""
    if "code" not in outcome:
        return _without_related(outcome, task_id)
    rest = {key: value for key, value in outcome.items() if key != "data"}
    if "mcp-tasks/data" in outcome["data"]:
        # There is no place for `_meta` in lists and text.
        assert outcome["data"]["_meta"] == {RELATED: {"taskId": task_id}}
        return rest | {"data": outcome["data"]["mcp-tasks/data"]}
    data = _without_related(outcome["data"], task_id)
    return rest | ({"data": data} if data else {})


def _without_related(fields: dict[str, Any], task_id: str) -> dict[str, Any]:
    meta = dict(fields["_meta"])
    assert meta.pop(RELATED) == {"taskId": task_id}
    return {key: value for key, value in fields.items() if key != "_meta"} | ({"_meta": meta} if meta else {})


@asynccontextmanager
async def calling(wire: HttpWire, era: str) -> AsyncGenerator[Caller]:
    if era == MODERN:
        yield Caller(Tasking(wire, EVERYTHING))
        return
    async with http_session(wire, ASKABLE) as session:
        yield Caller(session)
