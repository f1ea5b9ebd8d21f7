"""The examination: probes in order, each on its own, so that one that fails does not hide the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map

from mcp_tasks.client.raw import RawConnection, Silence, connect_raw
from mcp_tasks.client.servers.address import ServerAddress
from mcp_tasks.client.servers.unreachable import leaves
from mcp_tasks.client.tools import PAGE_LIMIT, unknown_tool
from mcp_tasks.core.json import JsonObject, list_in, object_in
from mcp_tasks.doctor import probes, shapes
from mcp_tasks.doctor.report import Exam, Report

MOST_TRIES: Final = 3
"""Harmless tools that are tried for one that becomes a task."""

AREAS: Final = ("errors", "creation", "undeclared client", "headers", "lifecycle", "push", "cancel", "outcome")
"""What there is to look at where a server has tasks."""

Arguments: TypeAlias = Mapping[str, Any] | Callable[[JsonObject], Mapping[str, Any]]


async def examine(
    server: ServerAddress | str,
    *,
    tool: str | None = None,
    arguments: Arguments | None = None,
    headers: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Report:
    """Look at what a server does with tasks, probe by probe, with raw requests: what clients see is what it sees.

    Args:
        server: Its URL or, for a stdio server, its command.
        tool: The tool to make tasks with; it is called three times. Without one only tools are called that are marked
            `readOnlyHint` and need no arguments, and what needs a task is skipped if there is none.
        arguments: Its arguments, or a function that makes them when it is given the tool's input schema.
        headers: What goes with every HTTP request, credentials included.
        environment: The environment variables of a stdio server; without any, what the SDK gives every server.

    Raises:
        InvalidAddress: The text names no server.
        ServerUnreachable: There is nothing to examine; it says why, and what to do.
        UnknownTool: The server has no such tool.
    """
    address = ServerAddress.parse(server) if isinstance(server, str) else server
    try:
        async with connect_raw(address, headers or {}, environment) as connection:
            return await examine_over(connection, tool=tool, arguments=arguments)
    except BaseExceptionGroup as group:
        # The pipes are read by a group of tasks, which wraps whatever is raised meanwhile.
        first, *others = leaves(group)
        raise (group if others else first) from None


async def examine_over(server: RawConnection, *, tool: str | None = None, arguments: Arguments | None = None) -> Report:
    """Examine the server at the other end of a connection."""
    exam = Exam(server)
    await exam.look("negotiation", probes.negotiate(exam))
    why = exam.report.unexamined
    if exam.has_tasks:
        why = "there is no task to look at"
        await exam.look("errors", probes.refuse_unknown_tasks(exam))
        await exam.look("errors", probes.refuse_removed_methods(exam))
        await exam.look("creation", _create(exam, tool, arguments or {}))
        await exam.look("undeclared client", probes.refuse_undeclared(exam))
    if exam.task_id:
        await exam.look("headers", probes.check_headers(exam))
        await exam.look("lifecycle", probes.look_twice(exam))
        await exam.look("lifecycle", probes.update(exam))
        await exam.look("push", probes.listen(exam))
        await exam.look("cancel", probes.cancel(exam))
        await exam.look("outcome", probes.see_the_end(exam))
        # Last, because it may take as long as the tool does.
        await exam.look("undeclared client", probes.answer_undeclared_call(exam))
    elif why:
        seen = {finding.area for finding in exam.report}
        for exam.area in (area for area in AREAS if area not in seen):
            exam.skip("all of it", why)
    for task_id in exam.made:
        # Whatever the server says to that, nothing is left at work.
        with suppress(Silence):
            await exam.send("tasks/cancel", {"taskId": task_id})
    # What an older server says of requests that it cannot read is none of what is examined.
    if server.stray and not (server.over_http and exam.report.unexamined):
        exam.area, probe = ("answers", "ids") if server.over_http else ("stdout", "lines")
        advice = "Write JSON-RPC messages there and nothing else; logs go to stderr."
        exam.fail(probe, server.stray, "Answer with the id of the request." if server.over_http else advice)
    return exam.report


async def _create(exam: Exam, tool: str | None, arguments: Arguments) -> None:
    """Make a task, with this tool or with the first harmless one whose call becomes one, and look at it."""
    tools = await _tools(exam)
    if tool is not None and tool not in tools:
        raise unknown_tool(tool, tools)
    chosen = [name for name in tools if _is_harmless(tools[name])][:MOST_TRIES] if tool is None else [tool]
    if not chosen:
        says = "no tool is marked readOnlyHint and takes no arguments, and doctor calls no other by itself"
        advice = "Name one (--tool NAME key=value ...; tool= and arguments= in Python); it is called three times."
        exam.skip("a tool to call", says, advice)
    for name in chosen:
        exam.call = _call(tools[name], arguments if tool else {})
        probe, reply = f"call {name}", await exam.send("tools/call", **exam.call)
        kind = (reply.result or {}).get("resultType", "complete")
        if reply.result is None:
            exam.warn(probe, f"answered with {reply.summary}", "Give arguments that work, or another tool.")
        elif kind == "task":
            exam.ok(probe, "answered with a task")
            await _look_at_created(exam, reply.result)
            return
        elif kind == "input_required":
            exam.skip(probe, "it asks something before there is a task", "Give a tool that does not.")
        elif kind == "complete":
            advice = "Give a tool that becomes a task to look at the rest."
            exam.skip(probe, "answered directly, which is allowed: the server decides", advice)
        else:
            exam.fail(probe, f"resultType is {kind!r}", 'Use "complete", "input_required" or "task".')


async def _look_at_created(exam: Exam, created: JsonObject) -> None:
    """Judge a new task and look at it at once."""
    task_id, ttl = created.get("taskId"), created.get("ttlMs")
    exam.judge("shape of the new task", shapes.flaws_of_created(created), "flat, with every field it must have")
    if not isinstance(task_id, str) or not task_id:
        return
    kept = f"kept for {ttl / 1000:g} s" if shapes.is_whole(ttl) else "kept without limit"
    exam.judge("times", shapes.flaws_of_time(created, datetime.now(UTC)), f"created just now, {kept}")
    exam.judge("id", shapes.flaws_of_id(task_id), "long enough not to be guessed")
    probe, reply = "tasks/get at once", await exam.send("tasks/get", {"taskId": task_id})
    advice = "Answer a call only when tasks/get finds the task everywhere."
    well = "the task is there as soon as its id is known"
    exam.judge_result(probe, reply, well, advice, shapes.flaws_of_first_look(reply.result or {}, created))
    if reply.result is not None:
        well = "the fields its status asks for, and no others"
        exam.judge("shape in tasks/get", shapes.flaws_of_detailed(reply.result), well)
        exam.task_id = task_id


async def _tools(exam: Exam) -> Mapping[str, JsonObject]:
    """The server's tools, by their names."""
    tools: dict[str, JsonObject] = {}
    cursor: Any = None
    for _ in range(PAGE_LIMIT):
        page = (await exam.send("tools/list", {"cursor": cursor} if cursor else {})).result or {}
        if not isinstance(page.get("tools", []), list):
            exam.fail("tools/list", f"tools is {page['tools']!r}", "It is a list of tools.")
        for tool in list_in(page, "tools"):
            match tool:
                case {"name": str(name)}:
                    tools.setdefault(name, tool)
                case _:
                    exam.fail("tools/list", f"{tool!r} is no tool", "A tool is an object with a name.")
        if not (cursor := page.get("nextCursor")):
            break
    return tools


def _call(tool: JsonObject, arguments: Arguments) -> dict[str, Any]:
    """The params of a call, and its headers, as the tool's schema asks for them."""
    schema = object_in(tool, "inputSchema") or {}
    given = dict(arguments(schema) if callable(arguments) else arguments)
    headers = mcp_param_headers(x_mcp_header_map(dict(schema)), given)
    return {"params": {"name": tool["name"], "arguments": given}, "headers": headers}


def _is_harmless(tool: JsonObject) -> bool:
    hints, schema = object_in(tool, "annotations") or {}, object_in(tool, "inputSchema") or {}
    return bool(hints.get("readOnlyHint")) and not schema.get("required")
