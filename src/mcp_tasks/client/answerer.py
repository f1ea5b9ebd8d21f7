"""Answers what a task asks, through the client's own elicitation, sampling and roots callbacks, once each.

A question comes with every look at the task until it is answered; here it is put to its callback the first time
only. With a ledger that holds over restarts: a recorded answer is sent again instead of being asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, ErrorData

from mcp_tasks.client.callbacks import Callbacks
from mcp_tasks.client.life import TaskLife
from mcp_tasks.client.poller import Patience, Poller
from mcp_tasks.client.port import TaskPort
from mcp_tasks.client.requests import check_answer, is_transient
from mcp_tasks.client.task_ledger import TaskLedger
from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import InvalidResponse, UnknownTask
from mcp_tasks.wire.parse import TaskSnapshot


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
