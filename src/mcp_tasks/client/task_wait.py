"""The wait for one task of a `Follower`: its states until it has ended, and its questions, one at a time.

A question that the task no longer asks is withdrawn. An answer that is recorded and may never have arrived is sent
again and not asked for a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError

from mcp_tasks.client.handle import TaskHandle
from mcp_tasks.client.hooks import in_hook
from mcp_tasks.client.ledger_entry import LedgerEntry
from mcp_tasks.client.requests import is_transient
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import UsageError
from mcp_tasks.wire.parse import TaskSnapshot

if TYPE_CHECKING:
    from mcp_tasks.client.following import Follower


class TaskWait:
    """The wait for one task."""

    def __init__(self, follower: Follower, handle: TaskHandle, entry: LedgerEntry) -> None:
        self._follower = follower
        self._hooks = follower.hooks
        self._handle = handle
        self._entry = entry
        self._answered: set[str] = set()
        self._away_since: datetime | None = None
        self._untold: TaskSnapshot | None = None

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

    async def _until(self, reached: Callable[[TaskSnapshot], bool], *, tell_last: bool = True) -> TaskSnapshot:
        """The first state that is as `reached` says. All up to it are told; without `tell_last`, that one next time."""
        if self._untold is not None:
            untold, self._untold = self._untold, None
            self._follower.tell(self._entry, snapshot=untold)
            if reached(untold):
                return untold
        # To a server of 2025-11-25, fetching a question is promising to answer it.
        questions = self._follower.asks and self._hooks.can_answer
        async with aclosing(self._handle.watch(questions=questions, on_outage=self._outage)) as states:
            async for snapshot in states:
                self._outage(None)
                if not tell_last and reached(snapshot):
                    self._follower.note(self._entry, snapshot=snapshot)
                    self._untold = snapshot
                    return snapshot
                self._follower.tell(self._entry, snapshot=snapshot)
                if reached(snapshot):
                    return snapshot
        raise AssertionError("unreachable: a task is watched to its end")

    def _outage(self, lasted: timedelta | None) -> None:
        now = datetime.now(UTC)
        if lasted is not None:
            # The first time counts: an outage may outlast the look that met it.
            self._away_since = self._away_since or now - lasted
            self._follower.tell(self._entry, away_since=self._away_since)
        elif self._away_since is not None:
            after, self._away_since = now - self._away_since, None
            followed = self._follower.note(self._entry, away_since=None)
            with in_hook():
                self._hooks.on_back(followed, after)

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
                with in_hook():
                    self._hooks.on_refused(self._follower.seen[self._entry.key], key, exc)
            # Otherwise it is in the ledger, and goes out again after the next look.
        return True

    async def _ask(self, key: str, request: JsonObject) -> _Asked | None:
        """Ask until answered; None if it is left open."""
        asking = asyncio.ensure_future(self._follower.ask(self._entry, key, request))
        # The state that ends the asking is told after that: until then somebody types.
        gone = asyncio.ensure_future(self._until(lambda state: key not in state.input_requests, tell_last=False))
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
        with in_hook():
            self._hooks.on_withdrawn(self._follower.seen[self._entry.key], key)
        return _Asked(None)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What came of asking: an answer, or None for a question that is no longer asked."""

    answer: Mapping[str, Any] | None
