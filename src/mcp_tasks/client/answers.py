"""Answers the questions of a task through the client's elicitation, sampling and roots callbacks, once each.

A question comes with every look at the task until it is answered; it goes to its callback the first time only. With a
ledger that holds over restarts: a recorded answer is sent again, and the person is not asked again.
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

from mcp_tasks._utils import BoundedDict, short_id
from mcp_tasks.client.backend import TaskBackend, check_answer, is_transient, logger
from mcp_tasks.client.ledger import TaskLedger
from mcp_tasks.client.poller import Patience, Poller
from mcp_tasks.errors import InvalidResponse, UnknownTask
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.values import check_number
from mcp_tasks.protocol.shapes import TaskSnapshot

AT_ONCE: Final = 4
PER_TASK: Final = 100

MAX_KNOWN: Final = 10_000
"""Tasks whose questions are counted; the least recently asked is forgotten first."""

_KINDS: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


class TaskLog:
    """Log lines about one task, on the logger `mcp_tasks.client`: without its id, and without content."""

    def __init__(self, task_id: str, tool: str) -> None:
        self._task = f"{short_id(task_id)} of {tool!r}" if tool else short_id(task_id)
        self._is_away = False
        self._has_ended = False

    def info(self, text: str, *values: object) -> None:
        logger.info(f"task %s {text}", self._task, *values)

    def warning(self, text: str, exc: BaseException | None = None) -> None:
        """Log a warning; of an exception only its code or type."""
        why = f"error {exc.code}" if isinstance(exc, MCPError) else type(exc).__name__
        logger.warning(f"task %s {text}%s", self._task, "" if exc is None else f": {why}")

    def out_of_reach(self, exc: Exception) -> None:
        """Say once per outage that looks fail."""
        if not self._is_away:
            self._is_away = True
            self.warning("cannot be looked at, trying again", exc)

    def reached(self) -> None:
        if self._is_away:
            self._is_away = False
            self.info("can be looked at again")

    def seen(self, snapshot: TaskSnapshot) -> None:
        if snapshot.is_final and not self._has_ended:
            self._has_ended = True
            self.info("is %s", snapshot.status.value)


class Callbacks:
    """The callbacks of one `TasksClient`. Bounds how much a server may have them do: they ask a person or a model.

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
        """Holds one callback's turn while it is entered."""
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.at_once))

    def admit(self, task_id: str) -> bool:
        """Count one more question of a task; returns whether the task may ask it."""
        asked = self._asked.get(task_id, 0) + 1
        self._asked[task_id] = asked
        return asked <= self.per_task


class Unanswered(Exception):
    """A question got no answer. The message says why in short, the cause at length."""

    def __init__(self, key: str, why: str) -> None:
        self.key = key
        super().__init__(why)


class Answerer:
    """Answers the questions of one task during one wait.

    Args:
        answered: Called with the key of a question when the server has its answer.

    Attributes:
        failed: Set when a question could not be answered; `check` raises the reason.
    """

    def __init__(
        self,
        backend: TaskBackend,
        task_id: str,
        *,
        ledger: TaskLedger,
        log: TaskLog,
        callbacks: Callbacks,
        patience: Patience | None,
        budget: Budget,
        answered: Callable[[str], None],
    ) -> None:
        self.failed: asyncio.Event = asyncio.Event()
        self._backend = backend
        self._task_id = task_id
        self._log = log
        self._callbacks = callbacks
        self._ledger = ledger
        self._patience = patience
        self._budget = budget
        self._answered = answered
        self._failure: Unanswered | None = None
        self._seen: set[str] = set()
        self._working: dict[asyncio.Task[None], str] = {}
        self._closed = False

    def look(self, snapshot: TaskSnapshot) -> None:
        """Begin to answer the questions that are new."""
        for key, request in snapshot.input_requests.items():
            if key in self._seen:
                continue
            self._seen.add(key)
            if not self._callbacks.admit(self._task_id):
                most = self._callbacks.per_task
                self._fail(Unanswered(key, f"a task may ask at most {most} questions (max_callbacks_per_task)"))
                return
            if not self._working:
                # Until the last callback is done, the wait is for a person or a model.
                self._budget.pause(True)
            work = asyncio.create_task(self._answer(key, request))
            self._working[work] = key
            work.add_done_callback(self._done)

    def check(self) -> None:
        """Raise the first failure, if there is one."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop asking: the task has ended, or the wait has."""
        self._closed = True
        for work in self._working:
            work.cancel()

    def _fail(self, failure: Unanswered) -> None:
        self._failure = self._failure or failure
        self.failed.set()

    def _done(self, work: asyncio.Task[None]) -> None:
        key = self._working.pop(work)
        if not self._working:
            self._budget.pause(False)
        if work.cancelled():
            # A callback may cancel the asyncio task it runs in; without this the question would stay open for ever.
            if not self._closed:
                self._fail(Unanswered(key, "the callback that answers it was cancelled"))
            return
        exc = work.exception()
        if not isinstance(exc, Exception):
            self._answered(key)
            return
        failure = exc
        if not isinstance(failure, Unanswered):
            # The ledger did not take it, most likely; an answer that is not on disk is not sent.
            failure = Unanswered(key, f"the answer was not sent: {exc}")
            failure.__cause__ = exc
        self._log.warning("asks, and got no answer", failure.__cause__ or failure)
        self._fail(failure)

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
        self._log.info("has its answer")

    async def _ask(self, key: str, request: JsonObject) -> Mapping[str, Any] | None:
        """The callback's answer; None if it failed, and the server was told so in the question's response."""
        async with self._callbacks.wait_for_turn():
            # A server may send anything in place of a request.
            method = request.get("method") if isinstance(request, Mapping) else None
            self._log.info("asks (%s)", _KINDS.get(str(method), "unknown"))
            try:
                answer = await self._backend.ask(key, request)
                check_answer({key: answer})
            except Exception as exc:
                if await self._refuse(key, exc):
                    self._log.warning("asks, and is answered with an error", exc)
                    return None
                raise Unanswered(key, _why(exc)) from exc
            return answer

    async def _refuse(self, key: str, exc: Exception) -> bool:
        error = exc.error if isinstance(exc, MCPError) else ErrorData(code=INTERNAL_ERROR, message=_why(exc))
        try:
            return await self._backend.refuse(key, error)
        except MCPError:
            # The connection has ended; the failure of the callback says that as well, or says more.
            return False

    async def _deliver(self, key: str, answer: Mapping[str, Any]) -> None:
        retries = Poller(self._patience)
        while True:
            try:
                await self._backend.answer({key: answer})
                return
            except UnknownTask:
                # The wait's own look reports it.
                return
            except (MCPError, OSError) as exc:
                now = anyio.current_time()
                if not is_transient(exc):
                    self._ledger.answer_refused(key)
                    raise Unanswered(key, f"the server refused the answer: {exc}") from exc
                if not retries.failed(now):
                    raise
                await anyio.sleep(retries.next_look - now)


def _why(exc: Exception) -> str:
    if isinstance(exc, InvalidResponse):
        return str(exc)
    if isinstance(exc, MCPError):
        return f"the callback that answers it refused: {exc}"
    return f"the callback that answers it failed: {exc!r}"


class Budget:
    """A time limit that is paused while a callback works on an answer.

    Args:
        seconds: How long; None for no limit.
        move: Called with the new deadline, by the event loop's clock, whenever it changes; None for no deadline.
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
