"""The order in which a tool learns of things, the same in every run.

Who wins a race (`asyncio.wait`, a task group that cancels the rest) depends on what came first. So results are handed
to a tool one at a time, with a moment in between for what follows from each; they are recorded in that order; and a
tool that is started again is handed what was recorded in the same order, before anything new begins.

A recorded result that nobody asks for any more holds the others up only while somebody might still ask for it. It may
belong to a branch that the tool itself cancelled, because it lost a race; then it is not missed. If it does not, the
tool did something else than the first time, and is refused: a tool that skips a recorded step and begins another cannot
be trusted with either."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from mcp_tasks.errors import ReplayMismatch
from mcp_tasks.runtime.branches import Branches, this_task
from mcp_tasks.runtime.replay import BRANCH, ResultId, name_of

SETTLE = 30
"""Turns of the event loop given to what follows from a result. A level of nested gathers and groups takes three or
four."""

PATIENCE = 1.0
"""Seconds in which a branch that is busy elsewhere may come for a recorded result before others go past it, and in
which one that was handed something may do what follows from it before the next is handed over. Not longer: a recorded
result that is held back must not run into the tool's own time-out around it."""

_LOOK_AGAIN = 0.05


class Deliveries:
    """Hands the results of one run to its tool.

    Args:
        recorded: What earlier runs were handed, in their order.
        begun: What earlier runs came to, and were not handed the end of.
        context: Where to run what is not part of the tool.
        refuse: Called when the tool is found to do something else than before.
        recorded_with: Of what another version of the tool recorded, which version it was.
        version: The version that the tool is now.
    """

    def __init__(
        self,
        recorded: Mapping[ResultId, Mapping[str, Any]],
        begun: Mapping[ResultId, Mapping[str, Any]],
        branches: Branches,
        context: contextvars.Context,
        refuse: Callable[[ReplayMismatch], None],
        *,
        recorded_with: Mapping[ResultId, str | None] | None = None,
        version: str | None = None,
    ) -> None:
        self._recorded = recorded
        self._ahead = dict(recorded)
        self._begun = dict(begun)
        self._passed: dict[ResultId, Mapping[str, Any]] = {}
        self._branches = branches
        self._context = context
        self._refuse = refuse
        self._recorded_with = recorded_with or {}
        self._version = version
        self._wanted: dict[ResultId, asyncio.Future[None]] = {}
        self._wanted_by: dict[ResultId, asyncio.Task[Any]] = {}
        self._new: dict[asyncio.Future[None], str] = {}
        self._came = asyncio.Event()
        self._turn = asyncio.Lock()
        self._first: set[asyncio.Task[None]] = set()
        self._pump: asyncio.Task[None] | None = None

    def has(self, result: ResultId) -> bool:
        """Whether an earlier run was handed this."""
        return result in self._recorded

    def met(self, result: ResultId) -> None:
        """The tool came to a question or a timer."""
        if self._begun.pop(result, None) is not None:
            self._came.set()

    async def recorded(self, result: ResultId) -> Mapping[str, Any]:
        """What an earlier run was handed, when its turn has come."""
        self._branches.contact(look_around=bool(self._ahead))
        self._passed.pop(result, None)
        if result in self._ahead:
            if next(iter(self._ahead)) == result and not self._branches.several:
                del self._ahead[result]
            else:
                ready = self._wanted[result] = asyncio.get_running_loop().create_future()
                self._wanted_by[result] = this_task()
                await self._wait(ready)
        return self._recorded[result]

    async def caught_up(self, what: str) -> None:
        """Wait until everything recorded has been handed over, before `what` begins or is handed over as new."""
        self._branches.contact(look_around=bool(self._ahead))
        await self._wait_for_first()
        if self._ahead or self._passed or self._begun:
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._new[ready] = what
            await self._wait(ready)

    def begin_after(self, work: asyncio.Task[None]) -> None:
        """Let nothing new begin before this is done."""
        self._first.add(work)
        work.add_done_callback(self._first.discard)

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """While this is entered no other result of the run is recorded or handed over; a moment longer, if the tool has
        several branches, so that what follows from this one happens before the next."""
        await self._turn.acquire()
        try:
            yield
        finally:
            if self._branches.several:
                self._start(self._release_settled())
            else:
                self._turn.release()

    def close(self) -> None:
        """The run is over."""
        if self._pump is not None:
            self._pump.cancel()

    async def _release_settled(self) -> None:
        try:
            await _settle()
        finally:
            self._turn.release()

    async def _wait_for_first(self) -> None:
        resting = self._branches.rest()
        try:
            while self._first:
                await asyncio.wait(self._first)
        finally:
            self._branches.go_on(resting)

    async def _wait(self, ready: asyncio.Future[None]) -> None:
        self._came.set()
        if self._pump is None or self._pump.done():
            self._pump = self._start(self._hand_over())
        resting = self._branches.rest()
        try:
            await ready
        finally:
            self._branches.go_on(resting)
            self._forget(ready)

    def _forget(self, ready: asyncio.Future[None]) -> None:
        """Nobody waits for this any more: it was handed over, or the branch that waited was cancelled."""
        self._new.pop(ready, None)
        for result, waiting in list(self._wanted.items()):
            if waiting is ready:
                # Asked for, so the tool did not skip it; it only did not want to wait.
                del self._wanted[result], self._wanted_by[result]
                self._ahead.pop(result, None)
        self._came.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    async def _hand_over(self) -> None:
        """Hand over what is wanted, as far as the order allows, until nobody waits."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while self._wanted or self._new:
            if await self._advance(since):
                since = loop.time()
            else:
                await self._pause()

    async def _advance(self, since: float) -> bool:
        """Do what is next; False if a branch is busy that may come for it, and has been waited for `since` then."""
        head = next(iter(self._ahead), None)
        if head in self._wanted:
            await self._hand(head)
        elif head is None and not self._passed and not self._begun:
            self._let_new_begin()
        else:
            # Twice: those that wait for a task which ended just now have not been told, and seem to wait for us.
            for _ in range(2):
                if await self._somebody_came():
                    return True
                if self._branches.can_advance() and asyncio.get_running_loop().time() - since <= PATIENCE:
                    return False
            await self._go_past()
        return True

    async def _somebody_came(self) -> bool:
        """Whether somebody new waits here, after all had a moment to come."""
        self._came.clear()
        for _ in range(SETTLE if self._branches.several else 2):
            await asyncio.sleep(0)
            if self._came.is_set():
                return True
        return False

    async def _pause(self) -> None:
        self._came.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN):
                await self._came.wait()

    async def _hand(self, result: ResultId) -> None:
        """Hand over one result, and let what follows from it happen before the next."""
        self._ahead.pop(result, None)
        _let(self._wanted.pop(result))
        branch = self._wanted_by.pop(result)
        if not self._branches.several:
            return
        await _settle()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._branches.until_not_at_work(branch)

    def _let_new_begin(self) -> None:
        for waiting in self._new:
            _let(waiting)
        self._new.clear()

    async def _go_past(self) -> None:
        """Nobody comes for what is next: go on with what is wanted, or else with what is new."""
        while (head := next(iter(self._ahead), None)) is not None and head not in self._wanted:
            self._passed[head] = self._ahead.pop(head)
        if head is not None:
            await self._hand(head)
        else:
            # Whatever is recorded and wanted is still ahead, so those who wait here wait for something new.
            self._go_past_everything({**self._passed, **self._begun})

    def _go_past_everything(self, unmet: Mapping[ResultId, Mapping[str, Any]]) -> None:
        """Let what is new begin, unless the tool missed something that it would have had to come to."""
        missed = next((result for result, value in unmet.items() if not self._is_excused(value)), None)
        if missed is None:
            self._passed.clear()
            self._begun.clear()
            self._let_new_begin()
        else:
            self._refuse(self._mismatch(next(iter(self._new.values())), missed, unmet[missed]))
            self._new.clear()

    def _mismatch(self, new: str, missed: ResultId, value: Mapping[str, Any]) -> ReplayMismatch:
        name = name_of(missed, value)
        if missed not in self._recorded_with:
            return _mismatch(new, name)
        return _mismatch_of_versions(new, name, now=self._version, before=self._recorded_with[missed])

    def _is_excused(self, value: Mapping[str, Any]) -> bool:
        """Whether a recorded result may be of a branch that the tool itself cancelled, or that is busy elsewhere."""
        if not value.get(BRANCH):
            return self._branches.own_can_advance()
        return self._branches.cancelled > 0 or self._branches.can_advance()


def _mismatch(new: str, unmet: str) -> ReplayMismatch:
    return ReplayMismatch(
        f"the tool was started again and came to {new}, which is new, without coming to {unmet}, which an earlier run "
        "recorded. A tool that may run again must do the same things each time; put what varies (the time, chance, a "
        "look at the world) into a step."
    )


def _mismatch_of_versions(new: str, unmet: str, *, now: str | None, before: str | None) -> ReplayMismatch:
    return ReplayMismatch(
        f"the tool was started again as version {now or '(none)'} and came to {new}, which is new, without coming to "
        f"{unmet}, which version {before or '(none)'} of it recorded. A version that cannot go on from what another "
        'recorded says so: on_other_version="restart", or "fail".'
    )


def _let(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


async def _settle() -> None:
    for _ in range(SETTLE):
        await asyncio.sleep(0)
