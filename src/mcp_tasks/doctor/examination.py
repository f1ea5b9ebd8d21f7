"""The examination: probes in order, each on its own, so that one that fails does not hide the others."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeAlias, TypeVar, cast

import httpx2
from mcp.client.stdio import StdioServerParameters, stdio_client

from mcp_tasks.client.servers.address import ServerAddress
from mcp_tasks.client.servers.unreachable import check_url, leaves, why_unreachable
from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor import refusals, tasks
from mcp_tasks.doctor.negotiation import negotiate
from mcp_tasks.doctor.report import Call, Report, Subject
from mcp_tasks.doctor.wire import ANSWER_TIMEOUT, HttpWire, PipeWire, Silence, Wire, object_in
from mcp_tasks.errors import UnknownTool

MOST_TRIES: Final = 3
"""Harmless tools that are tried for one that becomes a task."""

PAGE_LIMIT: Final = 100

WITH_A_TASK: Final[Sequence[tuple[str, Callable[[Subject, str], Awaitable[None]]]]] = (
    ("headers", refusals.probe_headers),
    ("lifecycle", tasks.probe_repeated_get),
    ("lifecycle", tasks.probe_update),
    ("push", tasks.probe_push),
    ("cancel", tasks.probe_cancel),
)
"""What is looked at with a task at hand."""

NEED_A_TASK: Final = (*dict.fromkeys(area for area, _ in WITH_A_TASK), "outcome")

Arguments: TypeAlias = Mapping[str, Any] | Callable[[JsonObject], Mapping[str, Any]]
T = TypeVar("T")


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
        async with _way_to(address, headers or {}, environment) as wire:
            return await examine_over(wire, tool=tool, arguments=arguments)
    except BaseExceptionGroup as group:
        # The pipes are read by a group of tasks, which wraps whatever is raised meanwhile.
        first, *others = leaves(group)
        raise (group if others else first) from None


@asynccontextmanager
async def _way_to(
    address: ServerAddress, headers: Mapping[str, str], environment: Mapping[str, str] | None
) -> AsyncGenerator[Wire]:
    async with AsyncExitStack() as stack:
        if address.url is not None:
            if (problem := await check_url(address.url, headers)) is not None:
                raise problem
            timeout = httpx2.Timeout(ANSWER_TIMEOUT, read=None)
            client = httpx2.AsyncClient(timeout=timeout, headers=dict(headers))
            yield HttpWire(address.url, await stack.enter_async_context(client))
            return
        command, *words = address.argv
        env = None if environment is None else dict(environment)
        parameters = StdioServerParameters(command=command, args=words, env=env, cwd=address.folder)
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            try:
                coming, going = await stack.enter_async_context(stdio_client(parameters, errlog=log))
            except OSError as exc:
                raise await why_unreachable(address, exc) from exc
            yield PipeWire(coming, going.send, log)


async def examine_over(wire: Wire, *, tool: str | None = None, arguments: Arguments | None = None) -> Report:
    """Examine the server at the other end of a wire."""
    report = Report()
    await _probe(Subject(wire, report), tool, arguments)
    if wire.stray:
        report.turn_to("stdout")
        advice = "Write JSON-RPC messages there and nothing else; logs go to stderr."
        report.add("fail", "lines", f"one of them is no JSON-RPC message: {wire.stray}", advice)
    return report


async def _probe(subject: Subject, tool: str | None, arguments: Arguments | None) -> None:
    report = subject.report

    async def look(area: str, probe: Awaitable[T]) -> T | None:
        report.turn_to(area)
        try:
            return await probe
        except Silence as exc:
            subject.fail("answer", f"the server did not answer: {exc}", "Look at the server's log.")
            return None

    def skip(*areas: str, why: str) -> None:
        for area in areas:
            report.turn_to(area)
            subject.skip("all of it", why)

    if not await look("negotiation", negotiate(subject)):
        if report.unexamined:
            skip("errors", "creation", "undeclared client", *NEED_A_TASK, why=report.unexamined)
        return
    await look("errors", refusals.probe_unknown_tasks(subject))
    await look("errors", refusals.probe_removed_methods(subject))
    made = await look("creation", _make(subject, tool, arguments))
    task_id = None if made is None else await look("creation", tasks.probe_created(subject, made[1]))
    await look("undeclared client", refusals.probe_undeclared(subject, task_id))
    if made is None or task_id is None:
        skip(*NEED_A_TASK, why="there is no task to look at")
        return
    for area, probe in WITH_A_TASK:
        await look(area, probe(subject, task_id))
    await look("outcome", tasks.probe_end(subject, made[0]))
    # Last, because it may take as long as the tool does.
    await look("undeclared client", refusals.probe_undeclared_call(subject, made[0]))


async def _make(subject: Subject, tool: str | None, arguments: Arguments | None) -> tuple[Call, JsonObject] | None:
    tools = await _tools(subject.wire)
    if tool is None:
        calls = [_call(found, {}) for found in tools if _is_harmless(found)]
        if not calls:
            says = "no tool is marked readOnlyHint and takes no arguments, and doctor calls no other by itself"
            advice = "Name one (--tool NAME key=value ...; tool= and arguments= in Python); it is called three times."
            subject.skip("a tool to call", says, advice)
        return await tasks.create(subject, calls[:MOST_TRIES])
    named = next((found for found in tools if found.get("name") == tool), None)
    if named is None:
        names = ", ".join(str(found.get("name")) for found in tools)
        raise UnknownTool(f"the server has no tool {tool!r}", f"It has: {names}")
    return await tasks.create(subject, [_call(named, arguments or {})])


async def _tools(wire: Wire) -> list[JsonObject]:
    tools: list[JsonObject] = []
    cursor: Any = None
    for _ in range(PAGE_LIMIT):
        page = (await wire.send("tools/list", {"cursor": cursor} if cursor else {})).result or {}
        tools.extend(cast("list[JsonObject]", page.get("tools") or []))
        cursor = page.get("nextCursor")
        if not cursor:
            break
    return tools


def _call(tool: JsonObject, arguments: Arguments) -> Call:
    schema = object_in(tool, "inputSchema") or {}
    given = arguments(schema) if callable(arguments) else arguments
    return Call(tool=str(tool["name"]), arguments=given, schema=schema)


def _is_harmless(tool: JsonObject) -> bool:
    hints, schema = object_in(tool, "annotations") or {}, object_in(tool, "inputSchema") or {}
    return bool(hints.get("readOnlyHint")) and not schema.get("required")
