"""The examination: probes in order, each on its own, so that one that fails does not hide the others."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, cast

from mcp_tasks.cli.forms.arguments import read_arguments
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor.creation import create, probe_created, probe_undeclared_call
from mcp_tasks.doctor.headers import probe_headers
from mcp_tasks.doctor.lifecycle import probe_cancel, probe_end, probe_repeated_get, probe_update
from mcp_tasks.doctor.negotiation import negotiate
from mcp_tasks.doctor.push import probe_push
from mcp_tasks.doctor.refusals import probe_removed_methods, probe_undeclared, probe_unknown_tasks
from mcp_tasks.doctor.report import Report
from mcp_tasks.doctor.subject import Call, Subject
from mcp_tasks.doctor.wire import Silence, Wire

MOST_TRIES = 3
"""Harmless tools that are tried for one that becomes a task."""

PAGE_LIMIT = 100

WITH_A_TASK = ("headers", "lifecycle", "push", "cancel", "outcome")
"""Areas in which there is nothing to look at without a task."""


class Checkup:
    """One examination of one server.

    Args:
        tool: The tool to make tasks with; without one, whatever looks harmless.
        words: Its arguments, as `key=value`.
    """

    def __init__(self, wire: Wire, *, tool: str | None, words: Sequence[str]) -> None:
        self.report: Report = Report()
        self._subject = Subject(wire=wire, report=self.report)
        self._tool = tool
        self._words = words

    async def run(self) -> Report:
        """Examine the server.

        Raises:
            Problem: It has no such tool, or its arguments are not right.
        """
        subject = self._subject
        if not await negotiate(subject):
            if self.report.unexamined:
                self._skip("errors", "creation", "undeclared client", *WITH_A_TASK, why=self.report.unexamined)
            return self.report
        await self._try("errors", probe_unknown_tasks(subject))
        await self._try("errors", probe_removed_methods(subject))
        calls = await self._calls()
        made = await self._try("creation", create(subject, calls)) if calls else None
        task_id = None if made is None else await self._try("creation", probe_created(subject, made[1]))
        await self._try("undeclared client", probe_undeclared(subject, task_id))
        if made is None or task_id is None:
            self._skip(*WITH_A_TASK, why="there is no task to look at")
            return self.report
        await self._with_task(made[0], task_id)
        return self.report

    async def _with_task(self, call: Call, task_id: str) -> None:
        subject = self._subject
        await self._try("headers", probe_headers(subject, task_id))
        await self._try("lifecycle", probe_repeated_get(subject, task_id))
        await self._try("lifecycle", probe_update(subject, task_id))
        await self._try("push", probe_push(subject, task_id))
        await self._try("cancel", probe_cancel(subject, task_id))
        second = (await subject.call(call)).result or {}
        if second.get("resultType") == "task":
            await self._try("outcome", probe_end(subject, str(second.get("taskId"))))
        # Last, because it may take as long as the tool does.
        await self._try("undeclared client", probe_undeclared_call(subject, call))

    async def _try(self, area: str, probe: Awaitable[Any]) -> Any:
        try:
            return await probe
        except Silence as exc:
            self.report.add(area, "answer", "fail", f"the server did not answer: {exc}", "Look at the server's log.")
            return None

    def _skip(self, *areas: str, why: str) -> None:
        for area in areas:
            self.report.add(area, "all of it", "skip", why)

    async def _calls(self) -> list[Call]:
        tools = await self._tools()
        if self._tool is not None:
            return [self._named(self._tool, tools)]
        harmless = [tool for tool in tools if _is_harmless(tool)]
        if not harmless:
            self.report.add(
                "creation",
                "a tool to call",
                "skip",
                "no tool is marked readOnlyHint and takes no arguments, and doctor calls no other by itself",
                "Name one: --tool NAME key=value ...; it is called three times.",
            )
        return [_call(tool, {}) for tool in harmless[:MOST_TRIES]]

    def _named(self, name: str, tools: Sequence[JsonObject]) -> Call:
        for tool in tools:
            if tool.get("name") == name:
                schema = cast("JsonObject", tool.get("inputSchema") or {})
                return _call(tool, read_arguments(schema, self._words, None))
        names = ", ".join(str(tool.get("name")) for tool in tools)
        raise Problem(f"the server has no tool {name!r}", Exit.USAGE, hint=f"It has: {names}")

    async def _tools(self) -> list[JsonObject]:
        tools: list[JsonObject] = []
        cursor: Any = None
        for _ in range(PAGE_LIMIT):
            page = (await self._subject.wire.send("tools/list", {"cursor": cursor} if cursor else {})).result or {}
            tools.extend(cast("list[JsonObject]", page.get("tools") or []))
            cursor = page.get("nextCursor")
            if not cursor:
                break
        return tools


def _call(tool: JsonObject, arguments: JsonObject) -> Call:
    return Call(tool=str(tool["name"]), arguments=arguments, schema=cast("JsonObject", tool.get("inputSchema") or {}))


def _is_harmless(tool: JsonObject) -> bool:
    hints = cast("JsonObject", tool.get("annotations") or {})
    schema = cast("JsonObject", tool.get("inputSchema") or {})
    return bool(hints.get("readOnlyHint")) and not schema.get("required")
