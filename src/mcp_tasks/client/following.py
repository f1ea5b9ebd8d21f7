"""Following tasks to their ends: many at once, over several servers, for somebody who watches and can be asked.

`Follower` does the waiting. What happens meanwhile it tells its `Hooks`: every state, every question, that a server is
out of reach and that it is back. One question of a task is open at a time; one that the task no longer asks is
withdrawn, and an answer that is recorded and may never have arrived is sent again and not asked for a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from mcp import Client
from mcp.shared.exceptions import MCPError

from mcp_tasks.client.calls import resume_task
from mcp_tasks.client.handle import OnAbandon, TaskHandle
from mcp_tasks.client.ledger import Ledger, LedgerEntry
from mcp_tasks.client.requests import is_transient
from mcp_tasks.client.servers.connecting import Connector, Era, ask_through_the_task, connector
from mcp_tasks.client.servers.grouping import ServerTasks, by_server
from mcp_tasks.client.servers.unreachable import leaves
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import Fate, InvalidResponse, ServerUnreachable, TasksError, UnknownTask, UsageError
from mcp_tasks.wire.parse import TaskSnapshot

TaskKey: TypeAlias = tuple[str, str, str]
"""What tells a task from all others: the `key` of its entry in the ledger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """How a task stood when it was last heard of.

    Attributes:
        entry: The task, as the ledger had it.
        snapshot: Its last state; None if none was seen.
        problem: Why no more is known of it; None if there is no reason.
        left_open: Whether a question of it was left open on purpose.
        fate: What became of it when the wait for it ended early; None if it did not.
    """

    entry: LedgerEntry
    snapshot: TaskSnapshot | None = None
    problem: Exception | None = None
    left_open: bool = False
    fate: Fate | None = None


class Hooks:
    """What somebody does who follows tasks. Every hook does nothing, until a class of yours says otherwise.

    Attributes:
        can_answer: Whether there is somebody to ask. If not, a task that asks something ends the wait for it.
    """

    can_answer: bool = False

    def on_state(self, entry: LedgerEntry, snapshot: TaskSnapshot) -> None:
        """The task has a new state."""

    async def on_question(self, entry: LedgerEntry, key: str, request: JsonObject) -> Mapping[str, Any] | None:
        """The task asks something: `request` has the `method` and `params` of the input request.

        Returns:
            The answer, as `TaskHandle.answer` takes it. None leaves the question open, and ends the wait for this task.
        """
        return None

    def on_withdrawn(self, entry: LedgerEntry, key: str) -> None:
        """The task no longer asks what `on_question` was working on, which has been cancelled."""

    def on_refused(self, entry: LedgerEntry, key: str, problem: Exception) -> None:
        """The server refused the answer. The question is asked again."""

    def on_out_of_reach(self, entry: LedgerEntry, since: datetime) -> None:
        """The task's server cannot be reached, and is tried again. Told after every try."""

    def on_back(self, entry: LedgerEntry, after: timedelta) -> None:
        """The task's server can be reached again."""

    def on_problem(self, entry: LedgerEntry, problem: Exception) -> None:
        """The wait for the task has ended, and no more is known of it."""

    def on_not_cancelled(self, entry: LedgerEntry, problem: Exception) -> None:
        """`Follower.cancel_all` could not cancel the task."""


class Follower:
    """Follows tasks of any number of servers to their ends.

    Args:
        hooks: Told what happens.
        asks: Whether a question is something to do: ask it, or end the wait if nobody is there. Without, tasks are
            only watched, and nothing becomes of them when the watching ends.
        on_abandon: What becomes of a task whose wait ends before the task has: it is cancelled, or nobody is there to
            be asked.

    Attributes:
        seen: How each task stood when it was last heard of, by the key of its entry.
    """

    def __init__(self, hooks: Hooks | None = None, *, asks: bool = True, on_abandon: OnAbandon = "leave") -> None:
        self.hooks: Hooks = hooks or Hooks()
        self.asks: bool = asks
        self.seen: dict[TaskKey, Followed] = {}
        self._on_abandon: OnAbandon = on_abandon
        self._handles: dict[TaskKey, tuple[LedgerEntry, TaskHandle]] = {}

    async def follow_servers(self, groups: Iterable[ServerTasks], connect: Connector) -> None:
        """Follow tasks of several servers, each over a connection of its own."""
        async with asyncio.TaskGroup() as waits:
            for group in groups:
                waits.create_task(self._follow_server(group, connect))

    async def follow_all(self, client: Client, entries: Iterable[LedgerEntry]) -> None:
        """Follow tasks of one server over a connection to it."""
        async with asyncio.TaskGroup() as waits:
            for entry in entries:
                waits.create_task(self._follow(client, entry))

    async def cancel_all(self) -> None:
        """Ask for every task that is still waited for to be cancelled. The waits go on until they have ended."""
        for entry, handle in list(self._handles.values()):
            try:
                await handle.cancel()
            except (TasksError, MCPError, OSError) as exc:
                self.hooks.on_not_cancelled(entry, exc)

    def leave_all(self) -> None:
        """Somebody has decided that the tasks go on, whatever `on_abandon` says."""
        self._on_abandon = "leave"

    def note(self, entry: LedgerEntry, **fields: Any) -> None:
        """Keep what has become known of a task."""
        self.seen[entry.key] = replace(self.seen.get(entry.key) or Followed(entry=entry), **fields)

    async def _follow_server(self, group: ServerTasks, connect: Connector) -> None:
        try:
            async with connect(group) as client:
                await self.follow_all(client, group.entries)
        except TasksError as exc:
            self._give_up(group.entries, exc)
        except BaseExceptionGroup as exceptions:
            # A connection that goes down takes whoever waits on it along, wrapped.
            found = list(leaves(exceptions))
            if not all(isinstance(exc, Exception) and is_transient(exc) for exc in found):
                raise
            what = f"the connection broke: {found[0]}"
            self._give_up(group.entries, ServerUnreachable(what, reason="connection"))

    async def _follow(self, client: Client, entry: LedgerEntry) -> None:
        handle = resume_task(client, entry.task_id, tool=entry.tool)
        self._handles[entry.key] = entry, handle
        try:
            if entry.is_final:
                await self._look_again(handle, entry)
            elif not await _Wait(self, handle, entry).run():
                await self._abandon(handle, entry)
        except asyncio.CancelledError:
            await self._abandon(handle, entry)
            raise
        except (UnknownTask, InvalidResponse, MCPError, OSError) as exc:
            self._give_up([entry], exc)
        finally:
            del self._handles[entry.key]

    async def _look_again(self, handle: TaskHandle, entry: LedgerEntry) -> None:
        """A task that is known to have ended: see how, as long as its server can tell."""
        try:
            snapshot = await handle.status()
        except UnknownTask:
            return
        self.note(entry, snapshot=snapshot)
        self.hooks.on_state(entry, snapshot)

    async def _abandon(self, handle: TaskHandle, entry: LedgerEntry) -> None:
        if self.asks:
            self.note(entry, fate=await handle.abandon(self._on_abandon))

    def _give_up(self, entries: Sequence[LedgerEntry], problem: Exception) -> None:
        for entry in entries:
            self.note(entry, problem=problem)
            self.hooks.on_problem(entry, problem)


async def follow(
    entries: Sequence[LedgerEntry],
    hooks: Hooks | None = None,
    *,
    ledger: Ledger | None = None,
    headers: Mapping[str, str] | None = None,
    era: Era = "auto",
    on_abandon: OnAbandon = "leave",
) -> list[Followed]:
    """Follow tasks of a ledger to their ends, wherever they are; how each stood then, in the order given.

    Args:
        hooks: Told what happens, and asked what the tasks ask.
        ledger: Where their states and the answers given are kept.
        headers: What goes with every HTTP request; for tasks of one server only.
        era: Which protocol is spoken.
        on_abandon: What becomes of a task whose wait ends before the task has.

    Raises:
        InvalidAddress: The ledger does not say how to reach a server.
        CredentialsForOne: There are headers, and several servers.
    """
    follower = Follower(hooks, on_abandon=on_abandon)
    connect = connector(ledger=ledger, headers=headers, era=era, elicit=ask_through_the_task)
    await follower.follow_servers(by_server(entries, headers), connect)
    return [follower.seen.get(entry.key) or Followed(entry=entry) for entry in entries]


class _Wait:
    """The wait for one task."""

    def __init__(self, follower: Follower, handle: TaskHandle, entry: LedgerEntry) -> None:
        self._follower = follower
        self._hooks = follower.hooks
        self._handle = handle
        self._entry = entry
        self._answered: set[str] = set()
        self._away_since: datetime | None = None

    async def run(self) -> bool:
        """Wait until the task has ended, was left with an open question (True), or has nobody to ask (False)."""
        asks = self._follower.asks
        while True:
            snapshot = await self._until(lambda state: state.is_final or (asks and self._is_stuck(state)))
            if snapshot.is_final:
                return True
            if not self._hooks.can_answer:
                return False
            key = self._open(snapshot)[0]
            if not await self._answer(key, snapshot.input_requests[key]):
                self._follower.note(self._entry, left_open=True)
                return True

    async def _until(self, reached: Callable[[TaskSnapshot], bool]) -> TaskSnapshot:
        # To a server of 2025-11-25, fetching a question is promising to answer it.
        questions = self._follower.asks and self._hooks.can_answer
        async with aclosing(self._handle.watch(questions=questions, on_outage=self._outage)) as states:
            async for snapshot in states:
                self._outage(None)
                self._follower.note(self._entry, snapshot=snapshot)
                self._hooks.on_state(self._entry, snapshot)
                if reached(snapshot):
                    return snapshot
        raise AssertionError("unreachable: a task is watched to its end")

    def _outage(self, lasted: timedelta | None) -> None:
        now = datetime.now(UTC)
        if lasted is not None:
            # The first time counts: an outage may outlast the look that met it.
            self._away_since = self._away_since or now - lasted
            self._hooks.on_out_of_reach(self._entry, self._away_since)
        elif self._away_since is not None:
            after, self._away_since = now - self._away_since, None
            self._hooks.on_back(self._entry, after)

    def _is_stuck(self, snapshot: TaskSnapshot) -> bool:
        """Whether the task goes no further without us."""
        if self._hooks.can_answer:
            return bool(self._open(snapshot))
        # With nobody to answer, what is asked makes no difference.
        return snapshot.status is TaskStatus.INPUT_REQUIRED

    def _open(self, snapshot: TaskSnapshot) -> list[str]:
        return [key for key in snapshot.input_requests if key not in self._answered]

    async def _answer(self, key: str, request: JsonObject) -> bool:
        """Have a question answered, and send the answer; False if it is left open."""
        response = self._handle.recorded_answer(key, request)
        if response is None:
            asked = await self._ask(key, request)
            if asked is None:
                return False
            response = asked.answer
        self._answered.add(key)
        if response is None:
            return True
        try:
            await self._handle.answer({key: response})
        except (MCPError, OSError, UsageError) as exc:
            self._answered.discard(key)
            if not is_transient(exc):
                self._hooks.on_refused(self._entry, key, exc)
            # Otherwise it is in the ledger, and goes out again after the next look.
        return True

    async def _ask(self, key: str, request: JsonObject) -> _Asked | None:
        """Ask until answered; None if it is left open."""
        asking = asyncio.ensure_future(self._hooks.on_question(self._entry, key, request))
        gone = asyncio.ensure_future(self._until(lambda state: key not in state.input_requests))
        try:
            await asyncio.wait({asking, gone}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                answer = await asking
                return None if answer is None else _Asked(answer)
            await gone
        finally:
            for future in (asking, gone):
                future.cancel()
            await asyncio.gather(asking, gone, return_exceptions=True)
        self._hooks.on_withdrawn(self._entry, key)
        return _Asked(None)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What came of asking: an answer, or None for a question that is no longer asked."""

    answer: Mapping[str, Any] | None
