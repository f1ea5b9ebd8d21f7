"""What a running tool sees of its task: `current_task()`.

It works in a plain call too (then `id` is None), because a tool that can be a task is also called by clients
that do not know tasks, and must not care.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, overload

import anyio
import anyio.to_thread

from mcp_tasks.errors import UsageError
from mcp_tasks.runtime.process import run_process

if TYPE_CHECKING:
    from mcp_tasks.runtime.run import Run

T = TypeVar("T")

_current: ContextVar[TaskContext | None] = ContextVar("mcp_tasks_current_task", default=None)


def current_task() -> TaskContext:
    """The task that the calling code runs for. Also from the thread of a sync tool."""
    return _current.get() or TaskContext()


def enter_task(run: Run, cancelled: threading.Event) -> TaskContext:
    """Make `run` the current task of this context."""
    context = TaskContext(run, cancelled)
    _current.set(context)
    return context


class TaskContext:
    """The task as its tool sees it."""

    def __init__(self, run: Run | None = None, cancelled: threading.Event | None = None) -> None:
        self._run = run
        self._cancelled = cancelled

    @property
    def id(self) -> str | None:
        """The task's id, None in a plain call."""
        return None if self._run is None else self._run.record.id

    @property
    def owner(self) -> str | None:
        """The principal that created the task, None without authentication or in a plain call."""
        return None if self._run is None else self._run.record.owner

    @property
    def attempt(self) -> int:
        """Which run of the tool this is, from 1. More than 1 means that an earlier one did not come to its end."""
        return 1 if self._run is None else self._run.attempt

    @property
    def cancelled(self) -> bool:
        """Whether the work should stop: for the thread of a sync tool, which cannot be stopped from outside.

        An async tool need not look: it is cancelled where it awaits.
        """
        return self._cancelled is not None and self._cancelled.is_set()

    @overload
    async def step(self, name: str, fn: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> T: ...
    @overload
    async def step(self, name: str, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T: ...
    async def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn` once in the life of the task, and return what it gave, now and in every later run.

        The value is kept as JSON and comes back as JSON makes it, the first time too (a tuple is a list). A sync
        `fn` runs on a worker thread. If `fn` raises, nothing is recorded.

        Raises:
            UsageError: The name is used twice in a run, or the value cannot be kept as JSON.
        """
        call = partial(_call, name, fn, *args, **kwargs)
        return await (call() if self._run is None else self._run.step(name, call))

    async def sleep(self, duration: timedelta) -> None:
        """Wait, holding nothing and surviving restarts. A step as far as replay goes: it is slept once."""
        if self._run is None:
            await anyio.sleep(duration.total_seconds())
        else:
            await self._run.sleep(duration)

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
        """Run a command as a child process that ends with the task, and its own children with it.

        Takes and returns what `subprocess.run` does. A sync tool calls it with `anyio.from_thread.run`.

        Raises:
            subprocess.CalledProcessError: With `check`, if the command fails or was ended.
        """
        return await run_process(
            command,
            stopped=None if self._run is None else self._run.stopped,
            input=input,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env=env,
            check=check,
        )


async def _call(name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if inspect.iscoroutinefunction(fn):
        value = await fn(*args, **kwargs)
    else:
        value = await anyio.to_thread.run_sync(partial(fn, *args, **kwargs))
        if inspect.isawaitable(value):
            value = await value
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as exc:
        raise UsageError(f"step {name!r} gave a value that cannot be kept as JSON: {exc}") from exc
