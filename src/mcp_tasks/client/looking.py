"""Tasks of a ledger, wherever they are, each for a moment: how they stand right now, and what they ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from datetime import timedelta
from typing import Final, TypeAlias, TypeVar

import anyio
from mcp.shared.exceptions import MCPError

from mcp_tasks.client.calls import resume_task
from mcp_tasks.client.handle import TaskHandle
from mcp_tasks.client.ledger_entry import LedgerEntry
from mcp_tasks.client.questions import Question, questions_of
from mcp_tasks.client.servers.address import ServerAddress
from mcp_tasks.client.servers.connecting import Connector
from mcp_tasks.client.servers.grouping import ServerTasks, by_server
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import InvalidAddress, NoOpenQuestion, QuestionUnseen, TasksError
from mcp_tasks.wire.parse import TaskSnapshot

T = TypeVar("T")

Seen: TypeAlias = dict[tuple[str, str, str], T | Exception]
"""By the key of the ledger's entry: what came of it, or why nothing did."""

_MORE: Final = 0.2
"""Seconds for further questions, which come one after the other."""

_FETCH_LIMIT: Final = timedelta(seconds=15)
"""For a server to send what a task asks."""


async def look_at(
    entries: Iterable[LedgerEntry], connect: Connector, *, headers: Mapping[str, str] | None = None
) -> Seen[TaskSnapshot]:
    """Look at tasks of any number of servers. What is seen goes into the ledger of the connections."""
    return await at_each(entries, connect, TaskHandle.status, headers=headers)


async def at_each(
    entries: Iterable[LedgerEntry],
    connect: Connector,
    act: Callable[[TaskHandle], Awaitable[T]],
    *,
    headers: Mapping[str, str] | None = None,
) -> Seen[T]:
    """Do something with tasks of any number of servers, over a connection to each. One that it cannot be done with does
    not keep the others from it.

    Args:
        headers: What is going to be sent with requests: credentials, for one server.

    Raises:
        CredentialsForOne: There are headers, and several servers.
    """
    seen: Seen[T] = {}
    reachable: list[LedgerEntry] = []
    for entry in entries:
        try:
            ServerAddress.of(entry)
            reachable.append(entry)
        except InvalidAddress as exc:
            seen[entry.key] = exc
    groups = by_server(reachable, headers)
    async with asyncio.TaskGroup() as visits:
        for group in groups:
            visits.create_task(_visit(group, connect, act, seen))
    return seen


async def _visit(
    group: ServerTasks, connect: Connector, act: Callable[[TaskHandle], Awaitable[T]], seen: Seen[T]
) -> None:
    try:
        async with connect(group) as client:
            for entry in group.entries:
                try:
                    seen[entry.key] = await act(resume_task(client, entry.task_id, tool=entry.tool))
                except (TasksError, MCPError) as exc:
                    seen[entry.key] = exc
    except TasksError as exc:
        for entry in group.entries:
            seen.setdefault(entry.key, exc)


async def open_questions(
    handle: TaskHandle, *, server: str = "", fetch: bool = True, within: timedelta = _FETCH_LIMIT
) -> list[Question]:
    """What a task asks right now, for somebody who answers it and does not stay.

    Args:
        server: Where the task is, as it is shown to who is asked.
        fetch: Whether to fetch questions from a server that sends them only to one who waits. To servers of 2025-11-25
            that is a promise to answer.
        within: For how long to wait for them.

    Raises:
        NoOpenQuestion: The task asks nothing.
        QuestionUnseen: It asks something, and its server has not sent what.
    """
    snapshot: TaskSnapshot | None = await handle.status()
    if snapshot.status is TaskStatus.INPUT_REQUIRED and not snapshot.input_requests:
        if not fetch:
            raise QuestionUnseen("the task asks something, and its server shows it only to one who is going to answer")
        snapshot = await fetch_questions(handle, within=within)
    if snapshot is None:
        raise QuestionUnseen(
            f"the task asks something, and its server did not send it within {within.total_seconds():.15g} s",
            "Some servers of 2025-11-25 send a question only once. Is somebody else about to answer it?",
        )
    if not snapshot.input_requests:
        raise NoOpenQuestion(f"the task has no open question; it is {snapshot.status.value}")
    return questions_of(snapshot.input_requests, handle.tool or handle.id, server)


async def still_asked(handle: TaskHandle, answers: Mapping[str, T]) -> dict[str, T]:
    """Those of some answers, by the keys of their questions, that a task still wants: while somebody types, somebody
    else may answer, and a server takes what comes too late without a word.

    Raises:
        NoOpenQuestion: It wants none of them.
    """
    try:
        keys = {question.key for question in await open_questions(handle, fetch=False)}
    except QuestionUnseen:
        # It is ours to answer: a server of 2025-11-25 does not show it to anybody else.
        return dict(answers)
    except NoOpenQuestion:
        keys = set[str]()
    if wanted := {key: answer for key, answer in answers.items() if key in keys}:
        return wanted
    hint = "Somebody else answered it meanwhile, or the task went on. Nothing was sent."
    raise NoOpenQuestion("the task no longer asks this", hint)


async def fetch_questions(handle: TaskHandle, *, within: timedelta) -> TaskSnapshot | None:
    """The task with what it asks, also from a server that sends that only to one who waits, as those of 2025-11-25 do.

    Returns:
        The task as soon as it asks something or has ended; None if neither is so within that time.
    """
    found: TaskSnapshot | None = None
    with anyio.move_on_after(within.total_seconds()) as scope:
        async with aclosing(handle.watch()) as states:
            async for snapshot in states:
                if found is None and (snapshot.is_final or snapshot.input_requests):
                    # Further questions may come right behind the first one.
                    scope.deadline = anyio.current_time() + _MORE
                if snapshot.is_final or snapshot.input_requests:
                    found = snapshot
    return found
