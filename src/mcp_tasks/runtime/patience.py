"""Outages of the store: a tool waits for the store, and all other callers are told `StoreUnavailable`.

An outage must never be the outcome of a tool. So a call of the store that is made inside a tool, from `tasks.start`,
a handle or a listing, is repeated until the store answers. It ends earlier only if the run does: the tool is cancelled
or timed out, or the process loses its lease and stops its runs. Code outside of tools decides by itself.

The runtime wraps its store here once. One verb is left out: a `create` that is repeated must not be cancelled halfway,
so `TaskRuntime.launch` repeats it attempt by attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from inspect import getmembers_static, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from mcp_tasks._utils import BoundedDict
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model.limits import backoff
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.suspend import current_run
from mcp_tasks.stores.base import Store

if TYPE_CHECKING:
    from mcp_tasks.runtime.run import Run

logger: Final = get_logger(__name__)

T = TypeVar("T")

SETTLED: Final = 60.0
"""Seconds for which a store has to work again before the next failure of the same kind is logged: one that is full, or
overloaded, may take some requests and refuse others."""

MOST_KINDS: Final = 100
"""Kinds of failures that are remembered."""

_AS_THEY_ARE: Final = frozenset({"open", "close"})


def pause_after(failures: int) -> float:
    """Seconds until the store is asked again after so many failures in a row."""
    return backoff(failures - 1, base=timedelta(milliseconds=100), limit=timedelta(seconds=5)).total_seconds()


async def until_available(work: Callable[[], Awaitable[T]], run: Run | None = None) -> T:
    """The result of `work`. Inside a tool, it is repeated until the store is available.

    Args:
        work: It may be repeated although it was carried out: the store must recognise a write that is repeated.
        run: The run whose tool asks, if that cannot be told from the context.

    Raises:
        StoreUnavailable: Outside of tools only.
    """
    run = current_run.get() if run is None else run
    if run is None or not run.in_body:
        return await work()
    failures = 0
    while True:
        try:
            return await work()
        except StoreUnavailable:
            failures += 1
        await _wait_in_tool(run, failures)


async def _wait_in_tool(run: Run, failures: int) -> None:
    if run.in_body:
        await asyncio.sleep(pause_after(failures))
        # The machine may have slept meanwhile, and another run of the task may have begun.
        await run.ensure_owned()
    # The pause of a branch that its tool started on its own does not end with the run.
    if not run.in_body:
        await run.abort_branch()


def patient(store: Store) -> Store:
    """The same store, for which tools wait."""
    return cast(Store, _PatientStore(store))


class _PatientStore:
    # Not a class with the verbs of `Store`: a store may have more of them, and its users call those by name.

    def __init__(self, store: Store) -> None:
        self._store = store
        self.notifier = store.notifier
        # Of each kind of failure: the verbs that failed, and since when one of them works again. A store that is
        # unavailable fails every call of every task, and each kind is logged once.
        self._outages: BoundedDict[str, tuple[set[str], float | None]] = BoundedDict(MOST_KINDS)
        # A store may forward its verbs to another, by `__getattr__`: so not only those that are defined in it.
        verbs = {name for kind in (Store, store) for name, _ in getmembers_static(kind, iscoroutinefunction)}
        for name in verbs:
            if not name.startswith("_") and name not in _AS_THEY_ARE:
                setattr(self, name, partial(self._call, name, getattr(store, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __repr__(self) -> str:
        return repr(self._store)

    async def _call(self, verb: str, call: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any) -> Any:
        run, failures = current_run.get(), 0
        is_repeated = verb != "create" and run is not None and run.in_body
        while True:
            try:
                answer = await call(*args, **kwargs)
            except StoreUnavailable as exc:
                self._note_failure(verb, exc)
                if run is None or not is_repeated:
                    raise
            else:
                if self._outages:
                    self._note_success(verb)
                return answer
            failures += 1
            await _wait_in_tool(run, failures)

    def _note_failure(self, verb: str, exc: StoreUnavailable) -> None:
        said, now = str(exc), asyncio.get_running_loop().time()
        # The driver's own words are in parentheses, and differ from call to call.
        kind = said.partition(" (")[0]
        verbs, better_since = self._outages.get(kind, (set[str](), -SETTLED))
        if better_since is not None and now - better_since >= SETTLED:
            logger.warning("the task store does not take requests; tools wait for it: %s", said)
        self._outages[kind] = {*verbs, verb}, None

    def _note_success(self, verb: str) -> None:
        for kind, (verbs, better_since) in [*self._outages.items()]:
            if verb in verbs and better_since is None:
                self._outages[kind] = verbs, asyncio.get_running_loop().time()
