"""Which store and which engine an author chose."""

from __future__ import annotations

from typing import Final

from mcp_tasks.engines import Engine, LocalEngine
from mcp_tasks.engines.local import DEFAULT_CONCURRENCY
from mcp_tasks.errors import UsageError
from mcp_tasks.stores import Store
from mcp_tasks.stores.url import store_from_url

_VERBS: Final = tuple(name for name, verb in vars(Store).items() if callable(verb) and not name.startswith("_"))


def chosen_store(store: Store | str | None) -> Store | None:
    """The store that is meant; None leaves it to the server's name and the environment.

    Raises:
        UsageError: It is not a store, or a URL that names none.
    """
    if isinstance(store, str):
        return store_from_url(store)
    missing = [] if store is None else [verb for verb in _VERBS if not hasattr(store, verb)]
    if not missing:
        return store
    why = f"{store!r} is not a task store: it lacks {', '.join(missing)}"
    if hasattr(store, "put"):
        # The shape of document 001's `TaskStore`. Refused on purpose, and not adapted.
        why += (
            ". A store that can only put and get cannot tell that another process was first, so two of them would "
            "overwrite each other's tasks, and nothing could be found again after a crash"
        )
    raise UsageError(f"{why}. Implement mcp_tasks.stores.Store, or pass a URL such as sqlite:///tasks.db")


def chosen_engine(engine: Engine | None, concurrency: int | None) -> Engine:
    """The engine that is meant: the local one unless another is given.

    Raises:
        UsageError: Another engine is given, and a concurrency for the local one.
    """
    if engine is None:
        return LocalEngine(DEFAULT_CONCURRENCY if concurrency is None else concurrency)
    if concurrency is not None:
        raise UsageError("concurrency is for the local engine; give it to the engine you pass instead")
    return engine
