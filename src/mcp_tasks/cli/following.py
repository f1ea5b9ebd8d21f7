"""Waiting for tasks to end: shows how they stand, puts their questions to the desk, and sends the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, REQUEST_TIMEOUT, ElicitRequestParams, ErrorData

from mcp_tasks.cli.connection import connect
from mcp_tasks.cli.forms.form import Later
from mcp_tasks.cli.options import Access
from mcp_tasks.cli.remembered import Group
from mcp_tasks.cli.running import leaves
from mcp_tasks.cli.target import Target, label_of
from mcp_tasks.cli.terminal.desk import Desk
from mcp_tasks.cli.terminal.exits import Exit, Problem, task_not_known
from mcp_tasks.cli.terminal.outcomes import Outcome, kept_outcome, outcome_of, say
from mcp_tasks.cli.terminal.rows import row_key, row_of
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.cli.terminal.views import Board
from mcp_tasks.client import Ledger, LedgerEntry, TaskHandle, TaskSnapshot, resume_task
from mcp_tasks.client.handle import OnAbandon
from mcp_tasks.client.questions import Question, questions_of
from mcp_tasks.client.requests import is_transient
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import Fate, InvalidResponse, TasksError, UnknownTask, UsageError

Key = tuple[str, str, str]
"""What tells a task from all others, as in the ledger."""


class Follower:
    """Follows tasks of any number of servers to their ends.

    Attributes:
        asks: Whether a question is something to do: ask it, or end the wait if nobody is there.
        outcomes: How each task stood when it was last heard of.
        fates: What became of the tasks that were given up before they ended.
    """

    def __init__(
        self, board: Board, desk: Desk, ledger: Ledger, *, asks: bool = True, on_abandon: OnAbandon = "leave"
    ) -> None:
        self.desk = desk
        self.asks = asks
        self._board = board
        self._ledger = ledger
        self._on_abandon: OnAbandon = on_abandon
        self._handles: dict[Key, TaskHandle] = {}
        self.outcomes: dict[Key, Outcome] = {}
        self.fates: dict[Key, Fate] = {}

    async def follow_servers(self, groups: Sequence[Group]) -> None:
        """Follow tasks of several servers, each over a connection of its own."""
        async with asyncio.TaskGroup() as waits:
            for target, access, entries in groups:
                waits.create_task(self._follow_server(target, entries, access))

    async def follow_all(self, client: Client, entries: Sequence[LedgerEntry]) -> None:
        """Follow tasks of one server."""
        async with asyncio.TaskGroup() as waits:
            for entry in entries:
                waits.create_task(self._follow(client, entry))

    async def cancel_all(self) -> None:
        """Ask for every task that is still waited for to be cancelled."""
        for handle in list(self._handles.values()):
            try:
                await handle.cancel()
            except (TasksError, MCPError, OSError) as exc:
                say(one_line(f"{handle.id} could not be cancelled: {exc}"), "red")

    async def _follow_server(self, target: Target, entries: Sequence[LedgerEntry], access: Access) -> None:
        try:
            async with connect(target, access, ledger=self._ledger, elicit=nobody) as client:
                await self.follow_all(client, entries)
        except Problem as exc:
            for entry in entries:
                self._note(entry, problem=exc.message, code=exc.code)
        except BaseExceptionGroup as group:
            # A connection that goes down takes whoever waits on it along, wrapped.
            broken = [exc for exc in leaves(group) if isinstance(exc, Exception) and is_transient(exc)]
            if len(broken) < len(list(leaves(group))):
                raise
            for entry in entries:
                self._note(entry, problem=f"the connection broke: {broken[0]}", code=Exit.UNREACHABLE)

    async def _follow(self, client: Client, entry: LedgerEntry) -> None:
        handle = resume_task(client, entry.task_id, tool=entry.tool)
        self._handles[entry.key] = handle
        try:
            if entry.is_final:
                await self._look_again(handle, entry)
            elif not await _Wait(self, handle, entry).run():
                await self._abandon(handle, entry)
        except asyncio.CancelledError:
            await self._abandon(handle, entry)
            raise
        except UnknownTask as exc:
            self._note(entry, problem=task_not_known(exc), code=Exit.UNKNOWN_TASK)
        except MCPError as exc:
            gone = exc.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT)
            self._note(entry, problem=f"the server answers: {exc}", code=Exit.UNREACHABLE if gone else Exit.FAILED)
        except (InvalidResponse, OSError) as exc:
            self._note(entry, problem=str(exc), code=Exit.UNREACHABLE)
        finally:
            del self._handles[entry.key]

    async def _abandon(self, handle: TaskHandle, entry: LedgerEntry) -> None:
        """The wait ended early, and nobody at the prompt decided what becomes of the task."""
        if not self.asks or self.desk.was_left_on_purpose:
            return
        fate = self.fates[entry.key] = await handle.abandon(self._on_abandon)
        known = self.outcomes.get(entry.key)
        if fate != "left" and known is not None and known.status == "input_required":
            became = "was cancelled" if fate == "cancelled" else "could not be cancelled"
            problem = f"the task asks something and there is no terminal to ask at; it {became}"
            self.outcomes[entry.key] = replace(known, problem=problem, code=Exit.INPUT_REQUIRED)

    async def _look_again(self, handle: TaskHandle, entry: LedgerEntry) -> None:
        """A task that is known to have ended: see how, as long as its server can tell."""
        try:
            self.saw(entry, await handle.status())
        except UnknownTask:
            self.outcomes[entry.key] = kept_outcome(entry)

    def _note(self, entry: LedgerEntry, *, problem: str, code: Exit) -> None:
        known = self.outcomes.get(entry.key)
        status = "unknown" if known is None else known.status
        outcome = Outcome(server=entry.server, tool=entry.tool, task_id=entry.task_id, status=status)
        self.outcomes[entry.key] = replace(outcome, problem=problem, code=code)
        self._board.drop(row_key(entry), problem)

    # For `_Wait`

    def saw(self, entry: LedgerEntry, snapshot: TaskSnapshot) -> None:
        """Show a state, and keep it."""
        self.outcomes[entry.key] = outcome_of(entry, snapshot)
        self._board.show(row_of(entry, snapshot))


class _Wait:
    """The wait for one task."""

    def __init__(self, follower: Follower, handle: TaskHandle, entry: LedgerEntry) -> None:
        self._follower = follower
        self._handle = handle
        self._entry = entry
        self._answered: set[str] = set()

    async def run(self) -> bool:
        """Wait until the task has ended, was left with an open question (True), or has nobody to ask (False)."""
        follower = self._follower
        while True:
            snapshot = await self._until(lambda state: state.is_final or (follower.asks and self._is_stuck(state)))
            if snapshot.is_final:
                return True
            if not follower.desk.is_staffed:
                return False
            try:
                question = self._open(snapshot)[0]
                await self._answer(question, snapshot.input_requests[question.key])
            except Later:
                return True

    async def _until(self, reached: Callable[[TaskSnapshot], bool]) -> TaskSnapshot:
        follower = self._follower
        # To a server of 2025-11-25, fetching a question is promising to answer it.
        async with aclosing(self._handle.watch(questions=follower.asks and follower.desk.is_staffed)) as states:
            async for snapshot in states:
                self._follower.saw(self._entry, snapshot)
                if reached(snapshot):
                    return snapshot
        raise AssertionError("unreachable: a task is watched to its end")

    def _is_stuck(self, snapshot: TaskSnapshot) -> bool:
        """Whether the task goes no further without us."""
        if self._follower.desk.is_staffed:
            return bool(self._open(snapshot))
        # With nobody to answer, what is asked makes no difference.
        return snapshot.status is TaskStatus.INPUT_REQUIRED

    def _open(self, snapshot: TaskSnapshot) -> list[Question]:
        asked = questions_of(snapshot.input_requests, self._entry.tool or self._handle.id, label_of(self._entry))
        return [question for question in asked if question.key not in self._answered]

    async def _answer(self, question: Question, asked: JsonObject) -> None:
        response = self._handle.recorded_answer(question.key, asked)
        if response is None:
            if not question.is_elicitation:
                say(f"The task sends a {one_line(question.method)} request, which cannot be answered here.", "yellow")
                raise Later
            response = await self._ask(question)
        self._answered.add(question.key)
        if response is None:
            return
        try:
            await self._handle.answer({question.key: response})
        except (MCPError, OSError, UsageError) as exc:
            self._answered.discard(question.key)
            if is_transient(exc):
                # It is in the ledger, and goes out again after the next look.
                return
            say(f"The server refused the answer, and the question is asked again: {one_line(str(exc))}", "red")

    async def _ask(self, question: Question) -> dict[str, object] | None:
        """Ask until answered; None if it is no longer asked."""
        asking = asyncio.ensure_future(self._follower.desk.ask(question))
        gone = asyncio.ensure_future(self._until(lambda state: question.key not in state.input_requests))
        try:
            await asyncio.wait({asking, gone}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return await asking
            await gone
        finally:
            for future in (asking, gone):
                future.cancel()
            await asyncio.gather(asking, gone, return_exceptions=True)
        say("The question was withdrawn.", "yellow")
        return None


async def nobody(context: ClientRequestContext, params: ElicitRequestParams) -> ErrorData:
    """Answers for a person who is asked in another way: through the task, not on the connection."""
    return ErrorData(code=INVALID_REQUEST, message="Ask through the task")
