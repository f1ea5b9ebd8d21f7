"""A store whose every verb is timed: around whichever store it is, and only where somebody reads the times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import getmembers, iscoroutinefunction
from time import perf_counter
from typing import Any, cast

from mcp_tasks.errors import StoreCorrupt, StoreUnavailable
from mcp_tasks.stores.base import Store
from mcp_tasks.telemetry.contract import STORE, STORE_FAILURES
from mcp_tasks.telemetry.numbers import Numbers


def timed(store: Store, numbers: Numbers) -> Store:
    """The same store, timed."""
    return cast(Store, _TimedStore(store, numbers))


class _TimedStore:
    # Not a class with the verbs of `Store`: a store may have more of them, and who uses it asks for those by name.

    def __init__(self, store: Store, numbers: Numbers) -> None:
        self._store = store
        for name, _ in getmembers(type(store), iscoroutinefunction):
            if not name.startswith("_"):
                numbers.expect(STORE_FAILURES, name)
                setattr(self, name, _timed(getattr(store, name), name, numbers))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __repr__(self) -> str:
        return repr(self._store)

    def __str__(self) -> str:
        return str(self._store)


def _timed(call: Callable[..., Awaitable[Any]], verb: str, numbers: Numbers) -> Callable[..., Awaitable[Any]]:
    async def timed_call(*args: Any, **kwargs: Any) -> Any:
        since = perf_counter()
        try:
            return await call(*args, **kwargs)
        except (StoreUnavailable, StoreCorrupt):
            numbers.add(STORE_FAILURES, verb)
            raise
        finally:
            numbers.observe(STORE, perf_counter() - since, verb)

    return timed_call
