"""What a running tool sees of its task: `current_task()`.

It works in a plain call too (then `id` is None), because a tool that can be a task is also called by clients
that do not know tasks, and must not care.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import subprocess
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, overload

import anyio
import anyio.lowlevel

from mcp_tasks.errors import QuestionTimedOut, UsageError
from mcp_tasks.model.json import valid_text
from mcp_tasks.model.values import check_duration
from mcp_tasks.runtime.child_process import run_process
from mcp_tasks.runtime.journal import ResultId
from mcp_tasks.runtime.steps import ONCE, Retry, StepValue, attempt, call_function, check_step
from mcp_tasks.runtime.suspend import current_run, uncancelled

if TYPE_CHECKING:
    from mcp_tasks.runtime.run import Run
    from mcp_tasks.runtime.runtime import TaskRuntime

T = TypeVar("T")

current_runtime: ContextVar[TaskRuntime | None] = ContextVar("mcp_tasks_current_runtime", default=None)
"""The runtime that the current run belongs to: in tests of tools it is another than the server's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asking:
    """What a tool says of a question beside the question itself.

    Attributes:
        key: What makes it the same question in the next run; without it, what it asks does.
        timeout: How long to wait for an answer, restarts included.
    """

    key: str | None = None
    timeout: timedelta | None = None


_asking: ContextVar[Asking | None] = ContextVar("mcp_tasks_asking", default=None)


def current_task() -> TaskContext:
    """The task that the calling code runs for. Also from the thread of a sync tool."""
    return TaskContext(current_run.get())


def asking_now() -> Asking:
    """What `TaskContext.ask` says of the question that is being asked."""
    return _asking.get() or Asking()


class TaskContext:
    """The task as its tool sees it."""

    def __init__(self, run: Run | None = None) -> None:
        self._run = run

    @property
    def id(self) -> str | None:
        """The task's id, None in a plain call."""
        return None if self._run is None else self._run.record.id

    @property
    def owner(self) -> str | None:
        """The principal that created the task, None without authentication or in a plain call."""
        return None if self._run is None else self._run.record.owner

    @property
    def session(self) -> str | None:
        """The session that the task belongs to, None without one or in a plain call."""
        return None if self._run is None else self._run.record.session

    @property
    def parent(self) -> str | None:
        """The id of the task that started this one, None if no task did or in a plain call."""
        return None if self._run is None else self._run.record.parent

    @property
    def attempt(self) -> int:
        """Which run of the tool this is, from 1. More than 1 means that an earlier one did not come to its end."""
        return 1 if self._run is None else self._run.attempt

    @property
    def cancelled(self) -> bool:
        """Whether the work should stop: for the thread of a sync tool, which cannot be stopped from outside.

        An async tool need not look: it is cancelled where it awaits.
        """
        return self._run is not None and self._run.is_cancelled

    @overload
    async def step(
        self, name: str, fn: Callable[..., Awaitable[T]], /, *args: Any, retry: Retry | None = None, **kwargs: Any
    ) -> T: ...
    @overload
    async def step(
        self, name: str, fn: Callable[..., T], /, *args: Any, retry: Retry | None = None, **kwargs: Any
    ) -> T: ...
    async def step(
        self, name: str, fn: Callable[..., Any], /, *args: Any, retry: Retry | None = None, **kwargs: Any
    ) -> Any:
        """Call `fn` once in the life of the task, and return what it gave, now and in every later run.

        The value is kept as JSON. It comes back as what the annotation of `fn` names (Pydantic models, dataclasses and
        whatever else Pydantic can read), and otherwise as JSON makes it, the first time too (a tuple is a list). A sync
        `fn` runs on a worker thread. If `fn` raises, the step has failed, now and in every later run: the exception is
        raised again, as its own class where that can be rebuilt, else as a `StepError`. `retry` gives it more attempts.

        Raises:
            UsageError: The name is used twice in a run, `fn` is not a function, or the value cannot be kept.
        """
        check_name("a step's name", name)
        check_step(name, fn, retry)
        call = partial(call_function, fn, *args, **kwargs)
        if self._run is not None:
            return await self._run.step(name, call, function=fn, retry=retry or ONCE)
        return StepValue(name, fn).keep(await attempt(retry or ONCE, call))[1]

    async def first(self, name: str, /, **branches: Callable[[], Coroutine[Any, Any, T]]) -> tuple[str, T]:
        """Race several branches: `winner, value = await current_task().first("race", a=ask_ann, b=ask_bob)`.

        The first that ends has won, with its value or its exception. The others are cancelled, and the winner is
        recorded as the step `name`. A later run starts only the winner: whatever the branches do, the race ends the
        same way.

        Raises:
            UsageError: There are no branches, or an earlier run recorded a winner that is not among them.
        """
        check_name("a race's name", name)
        run = self._run
        won = None if run is None else run.journal.step_value(name)
        if not branches:
            raise UsageError(f"the race {name!r} has no branches")
        if won is not None and (not isinstance(won, str) or won not in branches):
            raise UsageError(f"{won!r} won the race {name!r} in an earlier run, and is not there: {[*branches]}")
        racing: dict[str, asyncio.Task[T]] = {}

        async def winner() -> str:
            return next(each for each, branch in racing.items() if branch in ended)

        try:
            for each, call in branches.items():
                if won in (None, each):
                    racing[each] = asyncio.create_task(call())
            with nullcontext() if run is None else run.branches.waiting():
                ended, _ = await asyncio.wait(racing.values(), return_when=asyncio.FIRST_COMPLETED)
            for branch in racing.values():
                branch.cancel()
            won = await self.step(name, winner)
        except BaseException:
            await _end(racing.values())
            raise
        # If the tool gives up on the race while the others end, it gives up in the next run as well.
        async with nullcontext() if run is None else run.journal.giving_up(ResultId("step", name)):
            await _end(racing.values())
        return won, racing[won].result()

    async def sleep(
        self, duration: timedelta | None = None, *, until: datetime | None = None, name: str | None = None
    ) -> None:
        """Wait, holding nothing and surviving restarts. A step as far as replay goes: it is slept once.

        Args:
            duration: For how long. In the next run it is the same sleep if it is as long, and as many equal ones came
                before it.
            until: Until when instead: an instant of the store's time, aware, in any time zone. Do not compute it from
                the clock of this machine, which may be wrong: for a time from now on, say the `duration`.
            name: What makes it the same sleep in the next run, however long it is then.
        """
        if (duration is None) == (until is None):
            raise UsageError("sleep takes either a duration or until=, such as sleep(timedelta(hours=1))")
        if duration is not None:
            check_duration("duration", duration, zero=True)
        if until is not None and until.tzinfo is None:
            raise UsageError("sleep(until=...) takes an aware datetime, such as datetime(2030, 1, 31, tzinfo=UTC)")
        if self._run is not None:
            await self._run.sleep(duration, until=until, name=name)
            return
        # No task, so no store whose time it could be.
        seconds = duration if duration is not None else (until or datetime.now(UTC)) - datetime.now(UTC)
        await anyio.sleep(max(seconds.total_seconds(), 0.0))

    async def ask(
        self, question: Coroutine[Any, Any, T], *, key: str | None = None, timeout: timedelta | None = None
    ) -> T:
        """Ask a question with more to say of it: `await current_task().ask(ctx.elicit(...), timeout=...)`.

        Args:
            question: What asks: `ctx.elicit(...)`, `ctx.elicit_url(...)`, or a request of `ctx.session`.
            key: What makes it the same question in the next run. Without it, what it asks does.
            timeout: How long to wait for the answer, exactly, over restarts. The question is then withdrawn. It
                replaces the limits that end the task (`max_wait`, `Fallback.answer_within`, `Limits.question_wait`).

        Raises:
            QuestionTimedOut: Nobody answered in time. A `TimeoutError`.
        """
        if key is not None:
            check_name("key", key)
        if not inspect.iscoroutine(question):
            raise UsageError("ask takes what asks, not awaited yet: current_task().ask(ctx.elicit(...))")
        if timeout is not None:
            try:
                check_duration("timeout", timeout)
            except UsageError:
                question.close()
                raise
        if self._run is None:
            return await _ask_in_call(question, timeout)
        token = _asking.set(Asking(key=None if key is None else valid_text(key), timeout=timeout))
        try:
            return await question
        finally:
            _asking.reset(token)

    async def run_process(
        self,
        command: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002 - as in `subprocess.run`
        stdout: int | IO[Any] | None = subprocess.PIPE,
        stderr: int | IO[Any] | None = subprocess.PIPE,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = False,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command as a child process that ends with the task.

        Takes and returns what `subprocess.run` does. A sync tool calls it with `anyio.from_thread.run`. The command
        leads a process group of its own: processes that it leaves running in it are killed when it has ended. If this
        process is killed itself, what is left of the group is killed before the next run of the task on this machine.

        Raises:
            subprocess.CalledProcessError: With `check`, if the command fails or was ended.
        """
        run = run_process if self._run is None else self._run.run_process
        return await run(command, input=input, stdout=stdout, stderr=stderr, cwd=cwd, env=env, check=check)


def check_name(what: str, name: object) -> None:
    """Refuse what cannot name a thing in the journal, before any work is done under it.

    Raises:
        UsageError: It is not a text, or is empty.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f"{what} must be a non-empty string, got {name!r}")


async def _end(branches: Collection[asyncio.Task[Any]]) -> None:
    """Cancel these, once, and return when they have ended. A cancellation that comes meanwhile is raised after that."""
    for branch in branches:
        if not branch.cancelling():
            branch.cancel()
    if branches:
        await uncancelled(asyncio.wait(branches), context=contextvars.Context())
        await anyio.lowlevel.checkpoint_if_cancelled()


async def _ask_in_call(question: Awaitable[T], timeout: timedelta | None) -> T:
    with anyio.move_on_after(None if timeout is None else timeout.total_seconds()):
        return await question
    raise QuestionTimedOut.after(timeout)
