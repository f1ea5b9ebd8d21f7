"""What of a tool is there to go on: its asyncio tasks, and what each of them waits for.

A tool may do several things at once (`gather`, task groups, `create_task`), and nobody tells us. But asyncio tasks
carry their context, and the context says which run it belongs to; and a suspended coroutine says what it awaits. So it
can be seen whether a tool still has something to do besides waiting for us. Where it cannot be seen, the answer is yes.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

_WAITING_FOR_TASKS = frozenset(
    {
        ("asyncio/tasks.py", "_wait"),
        ("asyncio/taskgroups.py", "TaskGroup.__aexit__"),
        # From Python 3.14 on, and later releases of 3.13.
        ("asyncio/taskgroups.py", "TaskGroup._aexit"),
        ("anyio/_backends/_asyncio.py", "TaskGroup.__aexit__"),
    }
)
"""Where code waits for asyncio tasks of its own: file and function, as a code object names them."""

_ANYIO = "anyio/_backends/_asyncio.py"
_WAITING_FOR_A_THREAD = frozenset({(_ANYIO, "AsyncIOBackend.run_sync_in_worker_thread")})
_FOR_A_THREAD = frozenset({(_ANYIO, "AsyncIOBackend.run_async_from_thread.<locals>.task_wrapper")})


_NOBODY: Final = object()


class Branches:
    """The asyncio tasks of one run: the tool's own, and those that it started.

    Args:
        mark: Set in the context of the run and of nobody else.
        value: To this.
    """

    def __init__(self, mark: contextvars.ContextVar[Any], value: object) -> None:
        self._mark = mark
        self._value = value
        self._own: asyncio.Task[Any] | None = None
        self._known: set[asyncio.Task[Any]] = set()
        self._in_our_hands: set[asyncio.Task[Any]] = set()
        self._rested = asyncio.Event()
        self._giving_up: set[asyncio.Task[Any]] = set()
        self._in_steps: Counter[asyncio.Task[Any]] = Counter()
        self._over = False
        self.cancelled: int = 0
        """How many branches were seen to be cancelled: what they had recorded is not missed."""

    def enter(self) -> None:
        """From now on the calling asyncio task is the tool's own."""
        self._own = this_task()

    @property
    def own(self) -> asyncio.Task[Any] | None:
        """The tool's own asyncio task."""
        return self._own

    @property
    def in_own(self) -> bool:
        """Whether the calling code belongs to the tool's own asyncio task, or to the thread that this one waits for."""
        caller = this_task()
        return caller is self._own or _is_from_thread(caller)

    def contact(self, *, look_around: bool) -> None:
        """Take note of the calling branch, and with `look_around` of those that came into being with it."""
        caller = this_task()
        if caller is self._own or caller in self._known or _is_from_thread(caller):
            return
        for task in _recent_tasks(self._mark).get(self._value, ()) if look_around else ():
            self._meet(task)
        self._meet(caller)

    @property
    def several(self) -> bool:
        """Whether more than the tool's own task has been seen and is not done yet."""
        return any(not task.done() for task in self._known)

    def rest(self, *, to_give_up: bool = False) -> asyncio.Task[Any]:
        """The calling branch waits for us from now on, or with us to be cancelled. Pass what this returns to `go_on`.

        Raises:
            asyncio.CancelledError: The run is over, and the branch was left behind: it would wait for ever.
        """
        if self._over:
            raise asyncio.CancelledError
        task = this_task()
        (self._giving_up if to_give_up else self._in_our_hands).add(task)
        self._rested.set()
        return task

    def go_on(self, task: asyncio.Task[Any]) -> None:
        """The branch has what it waited for."""
        self._in_our_hands.discard(task)
        self._giving_up.discard(task)

    def begin_step(self) -> asyncio.Task[Any]:
        """The calling branch does a step from now on. Pass what this returns to `end_step`."""
        task = this_task()
        self._in_steps[task] += 1
        return task

    def end_step(self, task: asyncio.Task[Any]) -> None:
        """The branch has left the step; it may still be in another one around it."""
        self._in_steps[task] -= 1
        if not self._in_steps[task]:
            del self._in_steps[task]

    def can_advance(self) -> bool:
        """Whether some branch may go on without us. True where that cannot be told."""
        return bool(self._advancing())

    async def until_not_at_work(self, task: asyncio.Task[Any]) -> None:
        """Return when a branch has ended or waits, for us or for others."""
        while not task.done() and task not in self._in_our_hands and not _waits_for_tasks(task):
            self._rested.clear()
            task.add_done_callback(self._stir)
            try:
                await self._rested.wait()
            finally:
                task.remove_done_callback(self._stir)

    def _stir(self, _: asyncio.Task[Any]) -> None:
        self._rested.set()

    def own_can_advance(self) -> bool:
        """Whether the tool's own task may."""
        return self._own in self._advancing()

    def _advancing(self) -> set[asyncio.Task[Any]]:
        live = {task for task in self._of_this_run() if not task.done()}
        for task in live:
            self._meet(task)
        # A sync tool does one thing at a time: while its thread waits for us, nothing else of it is at work.
        thread_waits = any(_is_from_thread(task) for task in live & self._in_our_hands)
        return {
            task
            for task in live - self._in_our_hands
            if not _waits_for_tasks(task) and not (thread_waits and task is self._own and _waits_for_thread(task))
        }

    def cancel_leftovers(self) -> None:
        """The run is over: what of it still waits here would wait for ever."""
        self._over = True
        for task in (self._in_our_hands | self._giving_up) - {self._own}:
            task.cancel()

    def cancel_steps(self) -> None:
        """The run was stopped, and its tool has ended: the steps that it left at work may be begun by another run."""
        for task in self._in_steps.keys() - {self._own}:
            # One that the tool has cancelled is on its way out, and is not to be disturbed in that.
            if not task.cancelling():
                task.cancel()

    def let_go(self) -> None:
        """The run is over, and nothing of it is looked for any more: let it be freed."""
        self._own, self._value = None, _NOBODY

    def _of_this_run(self) -> Iterator[asyncio.Task[Any]]:
        for task in asyncio.all_tasks():
            context = context_of(task)
            # One whose context cannot be seen might be ours; then nothing is known for certain. asyncio's own can.
            if context is not None and context.get(self._mark) is self._value:
                yield task

    def _meet(self, task: asyncio.Task[Any]) -> None:
        if task is not self._own and task not in self._known:
            self._known.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._known.discard(task)
        if task.cancelled():
            self.cancelled += 1


_recent: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[float, dict[Any, set[asyncio.Task[Any]]]]] = (
    WeakKeyDictionary()
)
RECENT = 0.05
"""Seconds for which one look at all asyncio tasks serves those who only want to meet their neighbours."""


def _recent_tasks(mark: contextvars.ContextVar[Any]) -> dict[Any, set[asyncio.Task[Any]]]:
    loop = asyncio.get_running_loop()
    looked, found = _recent.get(loop, (-RECENT, {}))
    if loop.time() - looked >= RECENT:
        found = tasks_by_value(mark)
        _recent[loop] = loop.time(), found
    return found


def tasks_by_value(mark: contextvars.ContextVar[Any]) -> dict[Any, set[asyncio.Task[Any]]]:
    """The asyncio tasks of this event loop by what `mark` is in their contexts: one look for all runs."""
    found: dict[Any, set[asyncio.Task[Any]]] = {}
    for task in asyncio.all_tasks():
        context = context_of(task)
        value = None if context is None else context.get(mark)
        if value is not None:
            found.setdefault(value, set()).add(task)
    return found


def this_task() -> asyncio.Task[Any]:
    """The asyncio task of the calling code."""
    task = asyncio.current_task()
    if task is None:
        raise AssertionError("a tool is a coroutine, and asyncio runs those in tasks")
    return task


def context_of(task: asyncio.Task[Any]) -> contextvars.Context | None:
    """The context that a task runs in."""
    get_context = getattr(task, "get_context", None)
    if get_context is not None:  # pragma: no cover - Python 3.11 has no such method
        return get_context()
    # Python 3.11 has it and does not show it; what an object refers to is public.
    return next((found for found in gc.get_referents(task) if isinstance(found, contextvars.Context)), None)


def _waits_for_tasks(task: asyncio.Task[Any]) -> bool:
    """Whether the task is suspended until other asyncio tasks have ended, and nothing else will wake it."""
    innermost, future = _suspended_in(task)
    if future is None or future.done():
        return False
    if isinstance(future, asyncio.Task) or type(future).__name__ == "_GatheringFuture":
        return True
    # `asyncio.wait(..., timeout=...)` is woken by the time as well.
    frame = getattr(innermost, "cr_frame", None)
    return _is_in(innermost, _WAITING_FOR_TASKS) and (frame is None or frame.f_locals.get("timeout") is None)


def _waits_for_thread(task: asyncio.Task[Any]) -> bool:
    return _is_in(_suspended_in(task)[0], _WAITING_FOR_A_THREAD)


def _is_from_thread(task: asyncio.Task[Any]) -> bool:
    """Whether the task does something for a thread that waits for it, as `anyio.from_thread.run` has it done."""
    return _is_in(task.get_coro(), _FOR_A_THREAD)


def _is_in(coroutine: Any, places: frozenset[tuple[str, str]]) -> bool:
    code = getattr(coroutine, "cr_code", None)
    if code is None:
        return False
    file = code.co_filename.replace("\\", "/")
    return any(code.co_qualname == name and file.endswith(end) for end, name in places)


def _suspended_in(task: asyncio.Task[Any]) -> tuple[Any, asyncio.Future[Any] | None]:
    """The innermost coroutine of a suspended task, and the future that it awaits if that can be seen."""
    coroutine: Any = task.get_coro()
    while (awaited := _awaited(coroutine)) is not None and _is_suspendable(awaited):
        coroutine = awaited
    if awaited is None:
        return coroutine, None
    futures: list[asyncio.Future[Any]] = [
        found for found in gc.get_referents(awaited) if isinstance(found, asyncio.Future)
    ]
    return coroutine, futures[0] if futures else None


def _awaited(suspended: Any) -> Any:
    for attribute in ("cr_await", "gi_yieldfrom", "ag_await"):
        if (awaited := getattr(suspended, attribute, None)) is not None:
            return awaited
    return None


def _is_suspendable(thing: Any) -> bool:
    return inspect.iscoroutine(thing) or inspect.isgenerator(thing) or inspect.isasyncgen(thing)
