"""Steps: work that is done once in the life of a task, and whose end, good or bad, every later run finds recorded."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from mcp_tasks.core.durations import check_duration
from mcp_tasks.core.events import StepRecorded
from mcp_tasks.core.pacing import backoff
from mcp_tasks.core.values import check_instance, check_number
from mcp_tasks.errors import InvalidOption, UsageError, ValueNotStorable
from mcp_tasks.runtime.replay import Place, Replay, ResultId, step_at_work, step_entry
from mcp_tasks.runtime.step_values import StepValue, keep_error, restore_error
from mcp_tasks.runtime.uncancelled import to_the_end

if TYPE_CHECKING:
    from mcp_tasks.runtime.run import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """How often a step is tried before it has failed. The attempts happen inside the step, in memory.

    Attributes:
        attempts: How often in all.
        wait: The pause after the first failure; it doubles with every further one.
        max_wait: The longest pause.
        on: Exceptions after which it is worth another attempt.
    """

    attempts: int = 3
    wait: timedelta = timedelta(seconds=1)
    max_wait: timedelta = timedelta(minutes=1)
    on: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        check_number("attempts", self.attempts, 1)
        check_duration("wait", self.wait, zero=True)
        check_duration("max_wait", self.max_wait, zero=True)
        # What `except` takes; anything else would be found out by the first failure, and hide it.
        if not all(_is_exception(kind) for kind in (self.on if isinstance(self.on, tuple) else (self.on,))):
            raise InvalidOption(
                f"on must be an exception class, or a tuple of them such as (OSError, ValueError); got {self.on!r}"
            )

    def pause_after(self, failures: int) -> float:
        """Seconds to wait after so many failures."""
        return backoff(failures - 1, base=self.wait, limit=self.max_wait).total_seconds()


def check_step(name: str, function: object, retry: object) -> None:
    """Refuse a step that is not one, before anything is done or recorded.

    Raises:
        UsageError: There is no function to call, or the retry is not one.
    """
    if not callable(function):
        if inspect.iscoroutine(function):
            called = function.__name__
            function.close()
        else:
            called = "function"
        raise UsageError(
            f"step({name!r}, ...) takes a function and its arguments, not what the function returned: "
            f"step({name!r}, {called})"
        )
    if retry is not None:
        check_instance("retry", retry, Retry)


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


class Steps:
    """The steps of one run."""

    def __init__(self, run: Run, replay: Replay) -> None:
        self._run = run
        self._replay = replay
        self._given_up: dict[str, tuple[dict[str, Any], Any]] = {}
        """What steps gave whose work was done when the tool gave up on them: done is done, should it come again."""

    async def do(
        self,
        name: str,
        call: Callable[[], Any],
        function: Callable[..., Any],
        retry: Retry,
        after: Callable[[], Awaitable[None]] | None = None,
    ) -> Any:
        """The value of the step, from the journal or by doing it now; `after` this was waited for, at rest."""
        run = self._run
        kept_as = StepValue(name, function)
        self._replay.enter_step(name)
        result, place = ResultId("step", name), run.place
        try:
            if self._replay.gives_up(result):
                await run.give_up_again()
            async with run.recording.giving_up(result):
                if run.deliveries.has(result):
                    stored = await run.deliveries.recorded(result)
                    if "error" in stored:
                        raise restore_error(name, stored)
                    return kept_as.restore(stored)
                run.recording.require_room()
                if name not in self._replay.reopened:
                    await run.deliveries.caught_up(str(result))
                if after is not None:
                    await run.make_sure()
                    # Standing, where there is no seat: what is waited for may need the very slot that is given back.
                    async with run.rest.waiting(parkable=True):
                        await after()
                # A step counts as running until it is recorded.
                async with run.rest.stepping():
                    await run.make_sure()
                    work = partial(self._inside, name, call)
                    if not inspect.iscoroutinefunction(function):
                        work = partial(self._in_thread, name, kept_as, work)
                    return await self._do_and_record(result, place, kept_as, retry, work)
        except asyncio.CancelledError:
            # A cancellation is not an outcome of the step.
            self._replay.leave_step(name)
            raise

    async def _do_and_record(
        self, result: ResultId, place: Place, kept_as: StepValue, retry: Retry, call: Callable[[], Any]
    ) -> Any:
        if result.key in self._given_up:
            stored, value = self._given_up[result.key]
        else:
            try:
                stored, value = kept_as.keep(await attempt(retry, call))
            except Exception as exc:
                raise await self._record_failure(result, place, exc) from exc
        try:
            self._given_up[result.key] = stored, value
            await self._record(result, place, stored)
        except ValueNotStorable as exc:
            failure = UsageError(f"step {result.key!r} gave a value that the store cannot keep: {exc}")
            raise await self._record_failure(result, place, failure) from exc
        del self._given_up[result.key]
        return value

    async def _in_thread(self, name: str, kept_as: StepValue, call: Callable[[], Any]) -> Any:
        """What a sync function gives. A thread cannot be cancelled, so it is waited for, whatever happens meanwhile."""
        done, cancelled = await to_the_end(call())
        if cancelled is not None:
            if not done.cancelled() and done.exception() is None:
                with suppress(UsageError):
                    self._given_up[name] = kept_as.keep(done.result())
            raise cancelled
        return done.result()

    async def _inside(self, name: str, call: Callable[[], Any]) -> Any:
        # Before each attempt, as the process may have been paused since the last.
        await self._run.make_sure()
        token = step_at_work.set(name)
        try:
            return await call()
        finally:
            step_at_work.reset(token)

    async def _record_failure(self, result: ResultId, place: Place, exc: Exception) -> Exception:
        """Record that the step failed; the exception for the tool, the same one that a later run will get."""
        stored = keep_error(exc)
        await self._record(result, place, stored)
        return restore_error(result.key, stored)

    async def _record(self, result: ResultId, place: Place, stored: dict[str, Any]) -> None:
        run = self._run
        entry = step_entry(result, stored, place)
        await run.recording.record_in_turn(StepRecorded(attempt=run.attempt), entries=[entry])


async def attempt(retry: Retry, call: Callable[[], Any]) -> Any:
    """What `call` gives, tried as often as `retry` says."""
    failures = 0
    while True:
        try:
            return await call()
        except retry.on:
            failures += 1
            if failures >= retry.attempts:
                raise
        await anyio.sleep(retry.pause_after(failures))


async def call_function(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What a function gives: awaited if it is async, on a worker thread if it is not."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    value = await anyio.to_thread.run_sync(partial(function, *args, **kwargs))
    return await value if inspect.isawaitable(value) else value
