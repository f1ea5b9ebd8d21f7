"""`TaskHandle`: one task of a server, from the moment it was made or from its id on another day."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, get_args

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult
from pydantic import ValidationError

from mcp_tasks._utils import short_id
from mcp_tasks.client.answers import Answerer, Budget, Callbacks, TaskLog, Unanswered
from mcp_tasks.client.backend import (
    Mailbox,
    TaskBackend,
    is_transient,
    is_unreadable,
    logger,
    past_outage,
    plain_answers,
)
from mcp_tasks.client.ledger import TaskLedger
from mcp_tasks.client.poller import OnOutage, Patience, Poller
from mcp_tasks.errors import (
    Fate,
    InvalidOption,
    InvalidResponse,
    QuestionUnanswered,
    TasksError,
    TaskWasCancelled,
    UnknownTask,
    WaitAbandoned,
    WaitTimedOut,
)
from mcp_tasks.failure import task_failed
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.record import Progress, TaskStatus
from mcp_tasks.model.values import check_choice, seconds_of
from mcp_tasks.protocol.shapes import TaskSnapshot
from mcp_tasks.quiet import what

OnAbandon: TypeAlias = Literal["cancel", "leave"]
"""What becomes of a task when its caller stops waiting before it has ended: it is cancelled, or it goes on."""

OnProgress: TypeAlias = Callable[[Progress], Awaitable[None]]
"""Called with the progress of a task whenever it changes."""

CANCEL_TIMEOUT = 5.0
"""Seconds to tell the server that a task is no longer wanted, while the caller is already leaving."""


def check_wait_options(on_abandon: object, on_progress: object = None) -> None:
    """Check the options of a wait before a task is made; None means the default.

    Raises:
        InvalidOption: One has a value that it cannot have.
    """
    if on_abandon is not None:
        check_choice("on_abandon", on_abandon, get_args(OnAbandon))
    if on_progress is not None and not callable(on_progress):
        raise InvalidOption(f"on_progress must be an async function of the progress, got {on_progress!r}")


class Order:
    """Decides whether a state of a task is later than those before, by its own time as far as that is possible."""

    def __init__(self) -> None:
        self._last: datetime | None = None
        self._is_doubted = False

    def takes(self, snapshot: TaskSnapshot, *, looked: bool) -> bool:
        """Whether a state follows those that were taken before.

        A look and a notification may cross, so an older state does not follow. But the clocks of a server's machines
        may differ or go back. So the end of a task always follows, and so does the result of a second look in a row:
        it was sent after the first had come back, and crossed nothing.

        Args:
            looked: Whether it was looked for, and not pushed.
        """
        is_older = self._last is not None and snapshot.updated_at < self._last
        if is_older and not snapshot.is_final and not (looked and self._is_doubted):
            self._is_doubted = looked or self._is_doubted
            return False
        self._last, self._is_doubted = snapshot.updated_at, False
        return True


class TaskHandle:
    """One task of a server. Made by `start_task` and `resume_task`."""

    def __init__(
        self,
        backend: TaskBackend,
        task_id: str,
        *,
        tool: str = "",
        ledger: TaskLedger | None = None,
        patience: Patience | None = None,
        on_abandon: OnAbandon = "leave",
        callbacks: Callbacks | None = None,
        created: TaskSnapshot | None = None,
    ) -> None:
        self.id = task_id
        self.tool = tool
        self.log: TaskLog = TaskLog(task_id, tool)
        self._callbacks = callbacks or Callbacks()
        self._backend = backend
        self._ledger = ledger or TaskLedger(None, task_id)
        self._patience = patience
        self._on_abandon: OnAbandon = on_abandon
        self._asked: Mapping[str, JsonObject] = {}
        # The last state, and when it came: the next look is due an interval later, whichever wait makes it. A task that
        # is not `working` when it is made has more to show than that: it is looked at without delay.
        self._known: TaskSnapshot | None = None
        self._known_at = 0.0
        if created is not None and created.status is TaskStatus.WORKING:
            self._learn(created)

    def __repr__(self) -> str:
        return f"<TaskHandle {self.id}{f' of {self.tool!r}' if self.tool else ''}>"

    @property
    def immediate_response(self) -> str | None:
        """A text that the server wants the model to read at once, as the tool's result, while the task runs.

        Servers of 2025-11-25 may send one with the task. None if there is none, and for a task that is resumed.
        """
        return self._backend.immediate_response

    async def status(self) -> TaskSnapshot:
        """The task as it is now: asks the server at once, whatever interval it suggests.

        Of a 2025-11-25 server, a task that has ended comes without its result if that cannot be fetched now.

        Raises:
            UnknownTask: The server does not know the task (any more).
        """
        snapshot = self._learn(await self._get(self._backend.state))
        has_outcome = snapshot.result is not None or snapshot.error is not None
        if snapshot.status in (TaskStatus.COMPLETED, TaskStatus.FAILED) and not has_outcome:
            # It stays pending in the ledger: its outcome is still to be fetched.
            return snapshot
        return self._saw(snapshot)

    async def watch(self, *, questions: bool = True, on_outage: OnOutage | None = None) -> AsyncGenerator[TaskSnapshot]:
        """The states of the task as they come, the present one first and the final one last.

        Pushed where the server does that, polled at the interval that it suggests otherwise, however long that is. The
        first state is the last one that this handle has seen, if that is not older than the interval and asks nothing.
        Questions are shown, not answered. A state is given once: that the server has moved the task's expiry or its
        pace is no news.

        Args:
            questions: Whether to fetch questions from a server that sends them only to one who waits, as those of
                2025-11-25 do. Say False if you will not answer: some servers send each question only once.
            on_outage: Called after every look that failed because the server is out of reach, with how long it has been
                so, and with None when it is back. The wait goes on meanwhile, for as long as `patience` says.
        """
        async with aclosing(self._follow(on_outage=on_outage, questions=questions)) as states:
            async for snapshot in states:
                yield snapshot

    async def result(
        self,
        timeout: timedelta | float | None = None,
        *,
        on_progress: OnProgress | None = None,
        on_abandon: OnAbandon | None = None,
    ) -> CallToolResult:
        """Wait for the task to end, answering its questions through the client's callbacks.

        Args:
            timeout: How long to wait. Time in which a person (or a model) works on an answer does not count.
            on_progress: Called with the task's progress as it changes.
            on_abandon: What becomes of the task if this wait ends before the task has: it is cancelled, it times out,
                a callback fails, or the server refuses an answer. By default as the `TasksClient` was made.

        Raises:
            InvalidOption: An argument has a value that it cannot have. Nothing becomes of the task.
            TaskFailed: The task failed. It is an `MCPError` with the JSON-RPC error that the task carries.
            TaskWasCancelled: The task was cancelled.
            WaitTimedOut: It did not end in time.
            QuestionUnanswered: It asks something, and the answer failed or was refused.
            WaitAbandoned: `on_progress` raised.
            UnknownTask: The server does not know the task (any more).
            InvalidResponse: The server answered with something that is not a valid task or result.
            MCPError: The server could not be reached for longer than `patience`, or refuses to show the task.
        """
        seconds = seconds_of(timeout)
        check_wait_options(on_abandon, on_progress)
        try:
            with anyio.CancelScope() as scope:

                def move(end: float | None) -> None:
                    scope.deadline = math.inf if end is None else end

                final = await self._wait(Budget(seconds, move), on_progress)
                if final.status is TaskStatus.CANCELLED:
                    raise TaskWasCancelled(self.id, final.message)
                if final.error is not None:
                    raise task_failed(self.id, final.error, final.message)
                return tool_result(final.result, f"task {self.id}")
        except Unanswered as exc:
            raise QuestionUnanswered(self.id, exc.key, str(exc), await self.abandon(on_abandon)) from exc.__cause__
        except _ProgressFailed as exc:
            why = f"the wait for task {self.id} ended because on_progress raised {exc.__cause__!r}"
            raise WaitAbandoned(self.id, why, await self.abandon(on_abandon)) from exc.__cause__
        except asyncio.CancelledError:
            fate = await self.abandon(on_abandon)
            # A cancellation carries no message to its caller.
            task = short_id(self.id)
            logger.warning("%s", WaitAbandoned(task, f"the wait for task {task} was cancelled", fate))
            raise
        raise WaitTimedOut(self.id, seconds or 0.0, await self.abandon(on_abandon))

    async def answer(self, responses: Mapping[str, Any]) -> None:
        """Answer open questions by their keys, with results as the callbacks would give them: `ElicitResult(...)`, or
        the same as a dict.

        Raises:
            MCPError: The server refuses an answer; the task still waits for it.
            UsageError: An answer cannot be sent: it is not JSON, or not valid Unicode.
            UnknownTask: The server does not know the task (any more).
        """
        responses = plain_answers(responses)
        if self._ledger.exists and not self._asked.keys() >= responses.keys():
            # An answer is recorded with its question, and given again to no other.
            await self.status()
        for key, response in responses.items():
            self._ledger.record_answer(key, self._asked.get(key), response)
        try:
            # Once it has an answer the question is not open, and the server ignores another.
            await past_outage(lambda: self._backend.answer(responses), self._patience)
        except MCPError as exc:
            # Look at the task again before the next answer.
            self._known = None
            if not is_transient(exc):
                for key in responses:
                    self._ledger.answer_refused(key)
            raise
        for key in responses:
            self._ledger.answer_sent(key)
        self._have_answered(responses)

    async def cancel(self) -> None:
        """Ask for the task to be cancelled. It may still end in another way, if it was about to.

        Once the server has acknowledged it, the task is no longer among those that the ledger has pending.
        """
        try:
            # A task that is cancelled already stays so.
            await past_outage(self._backend.cancel, self._patience)
        except UnknownTask:
            self._ledger.lost()
            raise
        # However it ends, it is no longer wanted.
        self._ledger.cancelled()

    async def abandon(self, on_abandon: OnAbandon | None = None) -> Fate:
        """Give up waiting: leave the task or cancel it, as `on_abandon` says. Returns what became of it.

        Raises:
            InvalidOption: `on_abandon` is neither "leave" nor "cancel".
        """
        check_wait_options(on_abandon)
        if (on_abandon or self._on_abandon) == "leave":
            return "left"
        with anyio.move_on_after(CANCEL_TIMEOUT, shield=True):
            try:
                await self.cancel()
            except (TasksError, MCPError, OSError) as exc:
                logger.warning("task %s could not be cancelled: %s", short_id(self.id), what(exc))
            else:
                return "cancelled"
        return "not cancelled"

    def remember(self, arguments: Mapping[str, Any] | None = None) -> None:
        """Add the task to the ledger, if there is one. Tasks that calls start are in it already.

        Args:
            arguments: What the tool was called with, if that is known: `ledger.entries()` has it in short.
        """
        self._ledger.add(self.tool, arguments)

    def forget(self) -> None:
        """Remove the task from the ledger. The server is not told: a running task goes on."""
        self._ledger.forget()

    def recorded_answer(self, key: str, question: JsonObject) -> Mapping[str, Any] | None:
        """The recorded answer to this very question of the task, which may never have reached the server."""
        return self._ledger.recorded_answer(key, question)

    async def _get(self, get: Callable[[], Awaitable[TaskSnapshot]]) -> TaskSnapshot:
        try:
            return await get()
        except UnknownTask:
            self._ledger.lost()
            self.log.warning("is not known to its server (any more)")
            raise

    def _saw(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        self._asked = snapshot.input_requests
        self._ledger.saw(snapshot)
        self.log.seen(snapshot)
        return snapshot

    def _learn(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        self._known, self._known_at = snapshot, asyncio.get_running_loop().time()
        return snapshot

    def _have_answered(self, keys: Collection[str]) -> None:
        """Do not show these questions again before the next look."""
        if self._known is not None:
            still = {key: request for key, request in self._known.input_requests.items() if key not in keys}
            self._known = replace(self._known, input_requests=still)

    async def _wait(self, budget: Budget, on_progress: OnProgress | None) -> TaskSnapshot:
        answerer = Answerer(
            self._backend,
            self.id,
            ledger=self._ledger,
            log=self.log,
            callbacks=self._callbacks,
            patience=self._patience,
            budget=budget,
            answered=lambda key: self._have_answered([key]),
        )
        reported: Progress | None = None
        try:
            async with aclosing(self._follow(answerer)) as states:
                async for snapshot in states:
                    answerer.look(snapshot)
                    if snapshot.is_final:
                        return snapshot
                    if on_progress is not None and snapshot.progress not in (None, reported):
                        reported = snapshot.progress
                        try:
                            await on_progress(snapshot.progress)
                        except Exception as exc:
                            raise _ProgressFailed from exc
        finally:
            answerer.close()
        raise AssertionError("unreachable: a task is followed to its end")

    async def _follow(
        self, answerer: Answerer | None = None, *, on_outage: OnOutage | None = None, questions: bool = True
    ) -> AsyncGenerator[TaskSnapshot]:
        """Every state that differs from the one before, until the final one. A failure of the `answerer` ends it."""
        loop, box, poller = asyncio.get_running_loop(), Mailbox(), Poller(self._patience, on_outage=on_outage)
        known = self._known
        if known is not None and not known.is_final:
            poller.saw(known, self._known_at, pushed=False)
        # If it asks, another client may have answered meanwhile, and no person is to be asked in vain.
        if known is not None and (loop.time() >= poller.next_look or known.input_requests):
            known = None
        async with self._backend.join(box, questions=questions):
            shown: TaskSnapshot | None = None
            order = Order()
            while shown is None or not shown.is_final:
                if shown is None and known is not None:
                    snapshot, looked = box.take_shown() or known, False
                else:
                    snapshot, looked = await self._next(poller, box, answerer)
                if snapshot is not None and order.takes(snapshot, looked=looked):
                    is_news = shown is None or _news_in(snapshot) != _news_in(shown)
                    shown = snapshot
                    if is_news:
                        yield self._saw(snapshot)

    async def _next(self, poller: Poller, box: Mailbox, answerer: Answerer | None) -> tuple[TaskSnapshot | None, bool]:
        """Wait for a pushed state, the time to look, or a failed answer, whichever comes first. Returns the state, and
        whether it was looked for."""
        loop = asyncio.get_running_loop()
        if loop.time() < poller.next_look:
            events = [box.changed] if answerer is None else [box.changed, answerer.failed]
            await _first_of(events, until=poller.next_look)
        if answerer is not None:
            answerer.check()
        if box.changed.is_set():
            if box.hinted or box.is_over:
                poller.hinted(loop.time(), ended=box.is_over)
            pushed = box.take()
            if not box.live:
                poller.lost_push(loop.time())
            if pushed is not None:
                poller.saw(self._learn(pushed), loop.time(), pushed=box.live)
                return pushed, False
        shown = box.take_shown()
        if loop.time() < poller.next_look:
            return shown, False
        # A look has everything in it that became known here.
        return await self._look(poller, box), True

    async def _look(self, poller: Poller, box: Mailbox) -> TaskSnapshot | None:
        loop = asyncio.get_running_loop()
        try:
            snapshot = await self._get(self._backend.get)
        except (TasksError, MCPError, OSError) as exc:
            unreadable = is_unreadable(exc)
            if not is_transient(exc) or not poller.failed(loop.time(), unreadable=unreadable):
                if unreadable:
                    raise InvalidResponse(f"the server's answers cannot be read: {exc}") from exc
                if not isinstance(exc, TasksError):
                    exc.add_note(f"while waiting for a task; come back to it with resume_task(client, {self.id!r})")
                raise
            self.log.out_of_reach(exc)
            return None
        self.log.reached()
        poller.saw(self._learn(snapshot), loop.time(), pushed=box.live)
        return snapshot


async def _first_of(events: Collection[asyncio.Event], *, until: float) -> None:
    """Wait for the first of these, until a time of the event loop's clock at most."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        timeout = max(until - asyncio.get_running_loop().time(), 0)
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _news_in(snapshot: TaskSnapshot) -> TaskSnapshot:
    """The state without its expiry and interval: servers move the expiry of a running task with every look."""
    return replace(snapshot, updated_at=snapshot.created_at, expires_at=None, poll_interval=None)


def tool_result(result: object, of: str) -> CallToolResult:
    """The result of a tool.

    Raises:
        InvalidResponse: It is not one.
    """
    try:
        return CallToolResult.model_validate(result, by_name=False)
    except ValidationError as exc:
        raise InvalidResponse(f"the result of {of} is not a valid tool result: {exc}") from exc


class _ProgressFailed(Exception):
    """`on_progress` raised; the cause is the exception."""
