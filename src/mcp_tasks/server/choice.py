"""Which store and which engine an author chose."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mcp_tasks.core.values import check_function, check_number, check_queue
from mcp_tasks.encryption import Cipher, keyring_from_environment
from mcp_tasks.engines import Engine
from mcp_tasks.engines.local import DEFAULT_CONCURRENCY
from mcp_tasks.engines.url import LOCAL, engine_beside, engine_from_url
from mcp_tasks.errors import InvalidOption, MissingExtra, UsageError
from mcp_tasks.runtime import Observer
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.url import store_from_url, url_from_environment


def _parts_of(protocol: type) -> tuple[str, ...]:
    """The names that an object must have to keep to a protocol."""
    parts = ((name, part) for name, part in vars(protocol).items() if not name.startswith("_"))
    return tuple(name for name, part in parts if callable(part) or isinstance(part, property))


_STORE: Final = _parts_of(Store)
_ENGINE: Final = _parts_of(Engine)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The store and the engine that an author chose.

    Attributes:
        store: None leaves it to the server's name, which is not known yet.
        engine: Who runs the tools.
        said: What the author said of it.
        url: What names it if the author said nothing.
        cipher: What the store is to encrypt with.
    """

    store: Store | None
    engine: Engine
    said: Engine | str | None
    url: str
    cipher: Cipher | None = None

    def with_concurrency(self, concurrency: int) -> Parts:
        """The same for a process that runs so many tools at a time.

        Raises:
            InvalidOption: The concurrency is not a number of tools.
            UsageError: The author passed an engine, which has a concurrency of its own.
        """
        return replace(self, engine=chosen_engine(self.said, concurrency, self.url))


def chosen_parts(
    store: Store | str | None, engine: Engine | str | None, concurrency: int | None, cipher: Cipher | None = None
) -> Parts:
    """The store and the engine that are meant. A URL decides for both, unless the engine is chosen by itself.

    Raises:
        InvalidOption: The concurrency is not a number of tools.
        UsageError: One of them is not what it should be, or a URL names none.
    """
    if store is None and (url := url_from_environment()) is not None:
        try:
            return _parts(url, engine, concurrency, cipher)
        except (MissingExtra, InvalidOption):
            raise
        except UsageError as exc:
            raise UsageError(f"the environment variable MCP_TASKS_URL: {exc}") from None
    return _parts(store, engine, concurrency, cipher)


def _parts(
    store: Store | str | None, engine: Engine | str | None, concurrency: int | None, cipher: Cipher | None
) -> Parts:
    url = store if isinstance(store, str) else LOCAL
    cipher = chosen_cipher(cipher, store)
    chosen, who = chosen_store(store, cipher), chosen_engine(engine, concurrency, url)
    if isinstance(chosen, MemoryStore) and isinstance(engine, str) and who.abilities.remote:
        raise UsageError(
            f"tasks in memory are seen only by this process, so {who!r} would carry them to workers that do not have "
            "them. Keep them where workers find them (postgresql://…, redis://…), or leave engine= out"
        )
    return Parts(store=chosen, engine=who, said=engine, url=url, cipher=cipher)


def chosen_cipher(cipher: Cipher | None, store: Store | str | None) -> Cipher | None:
    """What is to be encrypted with: what the author says, or keys that the environment names (`MCP_TASKS_KEYS`).

    Raises:
        InvalidOption: It is no cipher, or what the environment names are no keys.
        UsageError: The store is an object, which has a codec of its own.
        UntrustedFile: Others can read or write the file with the keys.
    """
    if cipher is not None and not all(callable(getattr(cipher, verb, None)) for verb in ("encrypt", "decrypt")):
        raise InvalidOption("cipher must have the methods encrypt and decrypt: write cipher=Keyring([key])")
    if store is None or isinstance(store, str):
        return keyring_from_environment() if cipher is None else cipher
    if cipher is not None:
        raise UsageError(
            "cipher= is for a store that a URL names; give it to the store you pass instead: "
            "SqliteStore(path, codec=Codec(cipher))"
        )
    return None


def chosen_store(store: Store | str | None, cipher: Cipher | None = None) -> Store | None:
    """The store that is meant; None leaves it to the server's name.

    Raises:
        UsageError: It is not a store, or a URL that names none.
    """
    if isinstance(store, str):
        return store_from_url(store, cipher)
    if isinstance(store, type):
        raise UsageError(f"{store.__name__} is a class, and a store is an object of it: Tasks({store.__name__}(...))")
    missing = [] if store is None else [verb for verb in _STORE if not hasattr(store, verb)]
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


def chosen_engine(engine: Engine | str | None, concurrency: int | None, url: str = LOCAL) -> Engine:
    """The engine that is meant: the one that goes with the URL unless another is given.

    Raises:
        InvalidOption: The concurrency is not a number of tools.
        UsageError: It is not an engine, or there is a concurrency beside an engine that has its own.
    """
    if engine is None or isinstance(engine, str):
        check_number("concurrency", DEFAULT_CONCURRENCY if concurrency is None else concurrency, 1)
        slots = concurrency or DEFAULT_CONCURRENCY
        return engine_beside(url, slots) if engine is None else engine_from_url(engine, slots)
    if concurrency is not None:
        raise UsageError("concurrency is for the engine that a URL names; give it to the engine you pass instead")
    if isinstance(engine, type):
        raise UsageError(f"{engine.__name__} is a class, and an engine is an object of it: engine={engine.__name__}()")
    if missing := [part for part in _ENGINE if not hasattr(engine, part)]:
        raise UsageError(
            f"{engine!r} is not an engine: it lacks {', '.join(missing)}. Implement mcp_tasks.engines.Engine, or leave "
            "engine= out for the local one"
        )
    return engine


def chosen_observers(observers: Sequence[Observer]) -> Sequence[Observer]:
    """The observers, each of them a plain function.

    Raises:
        InvalidOption: They are not.
    """
    if isinstance(observers, str) or not isinstance(observers, Iterable):
        raise InvalidOption(f"observers must be a list of functions, got {observers!r}: write observers=[function]")
    chosen = tuple(observers)
    for observer in chosen:
        check_function("an observer", observer, "observers=[print]")
    return chosen


def chosen_queues(queues: Collection[str] | None) -> Collection[str] | None:
    """The queues whose tools are run; None for all.

    Raises:
        InvalidOption: They are not names.
    """
    if queues is None:
        return None
    if isinstance(queues, str) or not isinstance(queues, Collection) or not queues:
        raise InvalidOption(f'queues must be a list of names, got {queues!r}: write queues=["default"]')
    for queue in queues:
        check_queue("a queue", queue)
    return tuple(queues)
