"""`TaskHandle`: one task of a server, from the moment it was made or from its id on another day."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, get_args

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult
from pydantic import ValidationError

from mcp_tasks._utils import short_id
from mcp_tasks.client.answers import Answerer, Budget, Callbacks, Unanswered, Wake, first_of
from mcp_tasks.client.backend import Mailbox, TaskPort, is_transient, is_unreadable, past_outage, plain_answers
from mcp_tasks.client.ledger import TaskLedger
from mcp_tasks.client.poller import OnOutage, Patience, Poller, TaskLife
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
from mcp_tasks.quiet import get_logger, what

# ---- order
# Which of the states that come of a task is later than the one before: by its own time, as far as that can be.


class Order:
    """Decides which states of one task follow each other."""

    def __init__(self) -> None:
        self._last: datetime | None = None
        self._is_doubted = False

    def takes(self, snapshot: TaskSnapshot, *, looked: bool) -> bool:
        """Whether a state follows those that were taken before.

        A look and a notification may cross, so what is older than the last does not. But a server's machines may not
        agree about the time, and clocks go back: the end of a task always follows, and so does what a second look in a
        row has found, as it was sent after the first had come back and crossed nothing.

        Args:
            looked: Whether it was looked for, and not pushed.
        """
        is_older = self._last is not None and snapshot.updated_at < self._last
        if is_older and not snapshot.is_final and not (looked and self._is_doubted):
            self._is_doubted = looked or self._is_doubted
            return False
        self._last, self._is_doubted = snapshot.updated_at, False
        return True


logger: Final = get_logger(__name__)

OnAbandon: TypeAlias = Literal["cancel", "leave"]
"""What becomes of a task when its caller stops waiting before it has ended: it is cancelled, or it goes on."""

OnProgress: TypeAlias = Callable[[Progress], Awaitable[None]]
"""Called with the progress of a task whenever it changes."""


def check_on_abandon(value: object) -> None:
    """Refuse what is neither of the two, before a task is made that it would hold for.

    Raises:
        InvalidOption: It is not; None is, and means what holds otherwise.
    """
    if value is not None:
        check_choice("on_abandon", value, get_args(OnAbandon))


def check_on_progress(value: object) -> None:
    """Refuse what cannot be called with a task's progress.

    Raises:
        InvalidOption: It cannot be called.
    """
    if value is not None and not callable(value):
        raise InvalidOption(f"on_progress must be an async function of the progress, got {value!r}")


CANCEL_TIMEOUT = 5.0
"""Seconds to tell the server that a task is no longer wanted, while the caller is already leaving."""


class TaskHandle:
    """One task of a server. Made by `start_task` and `resume_task`."""

    def __init__(
        self,
        port: TaskPort,
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
        self.life: TaskLife = TaskLife(task_id, tool)
        self._callbacks = callbacks or Callbacks()
        self._port = port
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
        return self._port.immediate_response

    async def status(self) -> TaskSnapshot:
        """The task as it is now: asks the server at once, whatever interval it suggests.

        Of a 2025-11-25 server, a task that has ended comes without its result if that cannot be fetched now.

        Raises:
            UnknownTask: The server does not know the task (any more).
        """
        snapshot = self._learn(await self._get(self._port.state))
        has_outcome = snapshot.result is not None or snapshot.error is not None
        if snapshot.status in (TaskStatus.COMPLETED, TaskStatus.FAILED) and not has_outcome:
            # To the ledger it is still pending: somebody has to come back for its outcome.
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
        poller = self._poller(on_outage)
        async with aclosing(self._follow(poller, Wake(), questions=questions)) as states:
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
        check_on_abandon(on_abandon)
        check_on_progress(on_progress)
        try:
            with anyio.CancelScope() as scope:

                def move(end: float | None) -> None:
                    scope.deadline = math.inf if end is None else end

                final = await self._wait(Budget(seconds, move), on_progress)
                return self._outcome(final)
        except Unanswered as exc:
            raise QuestionUnanswered(self.id, exc.key, str(exc), await self.abandon(on_abandon)) from exc.__cause__
        except _ProgressFailed as exc:
            why = f"the wait for task {self.id} ended because on_progress raised {exc.__cause__!r}"
            raise WaitAbandoned(self.id, why, await self.abandon(on_abandon)) from exc.__cause__
        except asyncio.CancelledError:
            fate = await self.abandon(on_abandon)
            # A cancellation carries no message to whoever caused it.
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
            await past_outage(lambda: self._port.answer(responses), self._patience)
        except MCPError as exc:
            # Whoever answers again looks at the task first.
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
            await past_outage(self._port.cancel, self._patience)
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
        check_on_abandon(on_abandon)
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
            self.life.unknown()
            raise

    def _saw(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        self._asked = snapshot.input_requests
        self._ledger.saw(snapshot)
        self.life.seen(snapshot)
        return snapshot

    def _learn(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        self._known, self._known_at = snapshot, asyncio.get_running_loop().time()
        return snapshot

    def _have_answered(self, keys: Collection[str]) -> None:
        """These questions are not shown again before the next look."""
        if self._known is not None:
            still = {key: request for key, request in self._known.input_requests.items() if key not in keys}
            self._known = replace(self._known, input_requests=still)

    def _poller(self, on_outage: OnOutage | None = None) -> Poller:
        poller = Poller(self._patience, on_outage=on_outage)
        if self._known is not None and not self._known.is_final:
            poller.saw(self._known, self._known_at, pushed=False)
        return poller

    async def _wait(self, budget: Budget, on_progress: OnProgress | None) -> TaskSnapshot:
        wake = Wake()

        def answered(key: str, failure: Unanswered | None) -> None:
            if failure is None:
                self._have_answered([key])
            else:
                wake.fail(failure)

        answerer = Answerer(
            self._port,
            self.id,
            ledger=self._ledger,
            life=self.life,
            callbacks=self._callbacks,
            patience=self._patience,
            busy_changed=budget.pause,
            answered=answered,
        )
        reported: Progress | None = None
        try:
            async with aclosing(self._follow(self._poller(), wake, questions=True)) as states:
                async for snapshot in states:
                    answerer.look(snapshot)
                    if snapshot.is_final:
                        return snapshot
                    if on_progress is not None and snapshot.progress not in (None, reported):
                        reported = snapshot.progress
                        await _report(on_progress, snapshot.progress)
        finally:
            answerer.close()
        raise AssertionError("unreachable: a task is followed to its end")

    async def _follow(self, poller: Poller, wake: Wake, *, questions: bool) -> AsyncGenerator[TaskSnapshot]:
        """Every state that differs from the one before, until the final one."""
        box = Mailbox()
        known = self._known if asyncio.get_running_loop().time() < poller.next_look else None
        if known is not None and known.input_requests:
            # Somebody else may have answered meanwhile, and nobody is to be asked in vain.
            known = None
        async with self._port.join(box, questions=questions):
            shown: TaskSnapshot | None = None
            order = Order()
            while shown is None or not shown.is_final:
                if shown is None and known is not None:
                    snapshot, looked = box.take_shown() or known, False
                else:
                    snapshot, looked = await self._next(poller, box, wake)
                if snapshot is not None and order.takes(snapshot, looked=looked):
                    is_news = shown is None or news_in(snapshot) != news_in(shown)
                    shown = snapshot
                    if is_news:
                        yield self._saw(snapshot)

    async def _next(self, poller: Poller, box: Mailbox, wake: Wake) -> tuple[TaskSnapshot | None, bool]:
        """Wait for whichever comes first: a pushed state, the time to look, or an answer that was given. The state, and
        whether it was looked for."""
        loop = asyncio.get_running_loop()
        if loop.time() < poller.next_look:
            await first_of(box.changed, wake.event, until=poller.next_look)
        wake.check()
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
            snapshot = await self._get(self._port.get)
        except (TasksError, MCPError, OSError) as exc:
            unreadable = is_unreadable(exc)
            if not is_transient(exc) or not poller.failed(loop.time(), unreadable=unreadable):
                if unreadable:
                    raise InvalidResponse(f"the server's answers cannot be read: {exc}") from exc
                if not isinstance(exc, TasksError):
                    exc.add_note(f"while waiting for a task; come back to it with resume_task(client, {self.id!r})")
                raise
            self.life.out_of_reach(exc)
            return None
        self.life.reached()
        poller.saw(self._learn(snapshot), loop.time(), pushed=box.live)
        return snapshot

    def _outcome(self, final: TaskSnapshot) -> CallToolResult:
        if final.status is TaskStatus.CANCELLED:
            raise TaskWasCancelled(self.id, final.message)
        if final.error is not None:
            raise task_failed(self.id, final.error, final.message)
        return tool_result(final.result, f"task {self.id}")


def news_in(snapshot: TaskSnapshot) -> TaskSnapshot:
    """The state without what says nothing of the task itself: how long it is kept, and when to look again. Servers move
    the expiry of a running task with every look."""
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
    """`on_progress` raised; the cause is what it raised."""


async def _report(on_progress: OnProgress, progress: Progress) -> None:
    try:
        await on_progress(progress)
    except Exception as exc:
        raise _ProgressFailed from exc
