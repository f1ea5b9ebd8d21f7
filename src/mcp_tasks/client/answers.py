"""Answers what a task asks, through the client's own elicitation, sampling and roots callbacks, once each.

A question comes with every look at the task until it is answered; here it is put to its callback the first time
only. With a ledger that holds over restarts: a recorded answer is sent again instead of being asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, ErrorData

from mcp_tasks._utils import BoundedDict
from mcp_tasks.client.backend import TaskPort, check_answer, is_transient
from mcp_tasks.client.ledger import TaskLedger
from mcp_tasks.client.poller import Patience, Poller, TaskLife
from mcp_tasks.errors import InvalidResponse, UnknownTask
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.values import check_number
from mcp_tasks.protocol.shapes import TaskSnapshot

# ---- callbacks
# How much a server may have a client's callbacks do: it is a stranger, and they ask a person or a model.


AT_ONCE: Final = 4
PER_TASK: Final = 100

MAX_KNOWN: Final = 10_000
"""Tasks whose callbacks are counted. The one that was asked about longest ago is forgotten first."""


class Callbacks:
    """The callbacks of one `TasksClient`, for elicitation, sampling and roots.

    Attributes:
        at_once: How many work at a time, for all tasks together. Others wait for their turn.
        per_task: How many questions one task may ask in all.
    """

    def __init__(self, at_once: int = AT_ONCE, per_task: int = PER_TASK) -> None:
        check_number("max_callbacks", at_once, 1)
        check_number("max_callbacks_per_task", per_task, 1)
        self.at_once: int = at_once
        self.per_task: int = per_task
        # One per event loop: a semaphore belongs to the first that waits in it.
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._asked: BoundedDict[str, int] = BoundedDict(MAX_KNOWN)

    def wait_for_turn(self) -> AbstractAsyncContextManager[None]:
        """Waits for one callback's turn, and has it while it is entered."""
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.at_once))

    def admit(self, task_id: str) -> bool:
        """Count one question more of a task; whether it may ask it."""
        asked = self._asked.get(task_id, 0) + 1
        self._asked[task_id] = asked
        return asked <= self.per_task


class Unanswered(Exception):
    """A question got no answer; the cause says why at length, the message in short."""

    def __init__(self, key: str, why: str) -> None:
        self.key = key
        super().__init__(why)


class Answerer:
    """Answers the questions of one task.

    Args:
        busy_changed: Called with True when a callback begins to work on an answer and none did before, with False
            when the last one is done: between the two the wait is somebody else's.
        answered: Called with the key of a question when the server has its answer, and with what went wrong if it could
            not be given.
    """

    def __init__(
        self,
        port: TaskPort,
        task_id: str,
        *,
        ledger: TaskLedger,
        life: TaskLife,
        callbacks: Callbacks,
        patience: Patience | None = None,
        busy_changed: Callable[[bool], None],
        answered: Callable[[str, Unanswered | None], None],
    ) -> None:
        self._port = port
        self._task_id = task_id
        self._life = life
        self._callbacks = callbacks
        self._ledger = ledger
        self._patience = patience
        self._busy_changed = busy_changed
        self._answered = answered
        self._seen: set[str] = set()
        self._working: dict[asyncio.Task[None], str] = {}
        self._closed = False

    def look(self, snapshot: TaskSnapshot) -> None:
        """Begin to answer what is asked for the first time."""
        for key, request in snapshot.input_requests.items():
            if key in self._seen:
                continue
            self._seen.add(key)
            if not self._callbacks.admit(self._task_id):
                most = self._callbacks.per_task
                self._answered(
                    key, Unanswered(key, f"a task may ask at most {most} questions (max_callbacks_per_task)")
                )
                return
            if not self._working:
                self._busy_changed(True)
            work = asyncio.create_task(self._answer(key, request))
            self._working[work] = key
            work.add_done_callback(self._done)

    def close(self) -> None:
        """Stop asking: the task has ended, or nobody waits for it."""
        self._closed = True
        for work in self._working:
            work.cancel()

    def _done(self, work: asyncio.Task[None]) -> None:
        key = self._working.pop(work)
        if not self._working:
            self._busy_changed(False)
        if work.cancelled():
            # By itself, if not by us: a callback may cancel the task it runs in. Nobody would ever answer then.
            if not self._closed:
                self._answered(key, Unanswered(key, "the callback that answers it was cancelled"))
            return
        exc = work.exception()
        unanswered = _unanswered(key, exc) if isinstance(exc, Exception) else None
        if unanswered is not None:
            self._life.unanswered(unanswered)
        self._answered(key, unanswered)

    async def _answer(self, key: str, request: JsonObject) -> None:
        answer = self._ledger.recorded_answer(key, request)
        if answer is None:
            answer = await self._ask(key, request)
            if answer is None:
                return
            self._ledger.record_answer(key, request, answer)
        try:
            await self._deliver(key, answer)
        except (MCPError, OSError) as exc:
            raise Unanswered(key, f"the answer could not be delivered: {exc}") from exc
        self._ledger.answer_sent(key)
        self._life.answered()

    async def _ask(self, key: str, request: JsonObject) -> Mapping[str, Any] | None:
        """The callback's answer; None if it failed, and the server was told so in the question's response."""
        async with self._callbacks.wait_for_turn():
            self._life.asked(request)
            try:
                answer = await self._port.ask(key, request)
                check_answer({key: answer})
            except Exception as exc:
                if await self._refused(key, exc):
                    return None
                raise Unanswered(key, _why(exc)) from exc
            return answer

    async def _refused(self, key: str, exc: Exception) -> bool:
        error = exc.error if isinstance(exc, MCPError) else ErrorData(code=INTERNAL_ERROR, message=_why(exc))
        try:
            refused = await self._port.refuse(key, error)
        except MCPError:
            # The connection has ended; the failure of the callback says that as well, or says more.
            return False
        if refused:
            self._life.refused(exc)
        return refused

    async def _deliver(self, key: str, answer: Mapping[str, Any]) -> None:
        retries = Poller(self._patience)
        while True:
            try:
                await self._port.answer({key: answer})
                return
            except UnknownTask:
                # The wait's own look says so, to whoever waits.
                return
            except (MCPError, OSError) as exc:
                now = anyio.current_time()
                if not is_transient(exc):
                    self._ledger.answer_refused(key)
                    raise Unanswered(key, f"the server refused the answer: {exc}") from exc
                if not retries.failed(now):
                    raise
                await anyio.sleep(retries.next_look - now)


def _unanswered(key: str, exc: Exception) -> Unanswered:
    if isinstance(exc, Unanswered):
        return exc
    # The ledger did not take it, most likely; an answer that is not on disk is not sent.
    failure = Unanswered(key, f"the answer was not sent: {exc}")
    failure.__cause__ = exc
    return failure


def _why(exc: Exception) -> str:
    if isinstance(exc, InvalidResponse):
        return str(exc)
    if isinstance(exc, MCPError):
        return f"the callback that answers it refused: {exc}"
    return f"the callback that answers it failed: {exc!r}"


# ---- waiting
# What a wait for a task is made of: what wakes it, and how long it may take.


class Wake:
    """Ends a wait for a task when a question of the task could not be answered."""

    def __init__(self) -> None:
        self.event: asyncio.Event = asyncio.Event()
        self._failure: Unanswered | None = None

    def fail(self, failure: Unanswered) -> None:
        """A question could not be answered."""
        self._failure = self._failure or failure
        self.event.set()

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self._failure is not None:
            raise self._failure


class Budget:
    """A time limit that is paused while somebody works on an answer.

    Args:
        seconds: How long; None for no limit.
        move: Told when the time is up, by the event loop's clock, whenever that changes; None for never.
    """

    def __init__(self, seconds: float | None, move: Callable[[float | None], None]) -> None:
        self._move = move
        # The loop's own clock, which is anyio's too: anyio has none in a callback of the loop, and answers end in one.
        self._now = asyncio.get_running_loop().time
        self._end = None if seconds is None else self._now() + seconds
        self._left = 0.0
        self._pauses = 0
        move(self._end)

    def pause(self, busy: bool) -> None:
        """Pause the limit, or let it run on."""
        if self._end is None:
            return
        if busy:
            self._left = self._end - self._now()
            self._move(None)
        else:
            self._end = self._now() + self._left
            self._move(self._end)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Pause the limit while this is entered, by however many at once."""
        if not self._pauses:
            self.pause(True)
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self.pause(False)


async def first_of(*events: asyncio.Event, until: float) -> None:
    """Wait for the first of these, until a time of the event loop's clock at most."""
    loop = asyncio.get_running_loop()
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=max(until - loop.time(), 0), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
