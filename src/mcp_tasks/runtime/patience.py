"""Outages of the store: a tool waits for the store, and everything else is told `StoreUnavailable`.

An outage must never be the outcome of a tool. So a call of the store that is made inside a tool, from `tasks.start`,
a handle or a listing, is repeated until the store answers. It ends earlier only if the run does: the tool is cancelled
or timed out, or the process loses its lease and stops its runs. Code outside of tools decides by itself what to do.

The runtime wraps its store here once, so that no caller has to remember it. One verb is left out: a `create` that is
repeated must not be cancelled halfway, so `Launching` repeats it attempt by attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from inspect import getmembers_static, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from mcp_tasks._utils import BoundedDict
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model.limits import backoff
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.context import current_run
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

NOT_REPEATED: Final = frozenset({"create"})
AS_THEY_ARE: Final = frozenset({"open", "close"})


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
    if run is None or not run.life.in_body:
        return await work()
    failures = 0
    while True:
        try:
            return await work()
        except StoreUnavailable:
            failures += 1
        if run.life.in_body:
            await asyncio.sleep(pause_after(failures))
            # The machine may have slept meanwhile, and another run of the task may have begun.
            await run.make_sure()
        # The pause of a branch that its tool started on its own does not end with the run.
        if not run.life.in_body:
            await run.go_no_further()


def patient(store: Store) -> Store:
    """The same store, which tools wait for."""
    return cast(Store, _PatientStore(store))


class _PatientStore:
    # Not a class with the verbs of `Store`: a store may have more of them, and its users ask for those by name.

    def __init__(self, store: Store) -> None:
        self._store = store
        self._outages = _OutageLog()
        # A store may hand its verbs on to another, by `__getattr__`: so not only those that are seen in it.
        verbs = {name for kind in (Store, store) for name, _ in getmembers_static(kind, iscoroutinefunction)}
        for name in verbs:
            if not name.startswith("_") and name not in AS_THEY_ARE:
                setattr(self, name, self._patient(name, getattr(store, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __repr__(self) -> str:
        return repr(self._store)

    def __str__(self) -> str:
        return str(self._store)

    def _patient(self, verb: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def once(*args: Any, **kwargs: Any) -> Any:
            try:
                answer = await call(*args, **kwargs)
            except StoreUnavailable as exc:
                self._outages.failed(verb, exc)
                raise
            self._outages.succeeded(verb)
            return answer

        async def repeated(*args: Any, **kwargs: Any) -> Any:
            return await until_available(lambda: once(*args, **kwargs))

        return once if verb in NOT_REPEATED else repeated


@dataclass(slots=True)
class _Outage:
    verbs: set[str]
    better_since: float | None = None


class _OutageLog:
    """Logs each kind of failure once per outage: a store that is away fails every call of every task."""

    def __init__(self) -> None:
        self._outages: BoundedDict[str, _Outage] = BoundedDict(MOST_KINDS)

    def failed(self, verb: str, exc: StoreUnavailable) -> None:
        """Log the failure, unless it is known and has not been over for a while."""
        said = str(exc)
        # The driver's own words are in parentheses, and differ from call to call.
        kind = said.partition(" (")[0]
        known, now = self._outages.get(kind), asyncio.get_running_loop().time()
        if known is None or (known.better_since is not None and now - known.better_since >= SETTLED):
            logger.warning("the task store does not take requests; tools wait for it: %s", said)
        verbs = set[str]() if known is None else known.verbs
        self._outages[kind] = _Outage({*verbs, verb})

    def succeeded(self, verb: str) -> None:
        """Note that a verb that failed works again."""
        for outage in self._outages.values():
            if verb in outage.verbs and outage.better_since is None:
                outage.better_since = asyncio.get_running_loop().time()
