"""The options that an author gives: for one tool (`@tasks.task(...)`), and for the store and the engine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final, TypedDict

from mcp_tasks.encryption import Cipher, keyring_from_environment
from mcp_tasks.engines import Engine
from mcp_tasks.engines.local import DEFAULT_CONCURRENCY
from mcp_tasks.engines.remote import LOCAL, engine_beside, engine_from_url
from mcp_tasks.errors import InvalidOption, MissingExtra, UsageError
from mcp_tasks.model.options import (
    DEFAULT_TTL,
    OnOtherVersion,
    Recover,
    TaskMode,
    TaskOptions,
    Ways,
    fallback_from,
)
from mcp_tasks.model.values import check_duration, check_function, check_number, check_queue
from mcp_tasks.runtime import Observer
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.url import store_from_url, url_from_environment


class Unset:
    """The author said nothing; None means something else."""


UNSET: Final = Unset()


class ToolOptions(TypedDict, total=False):
    """What can be said of a tool. Whatever is left out keeps its default."""

    mode: TaskMode
    """`"optional"` (the default): a task for clients that speak tasks; calls of others wait for one that they do not
    see, as `fallback` says. `"required"`: always a task; clients that speak none are refused. `"forbidden"`: never."""

    ttl: timedelta | None
    """How long the task is kept after it ended; None for as long as the store lives. Without it, the default of the
    `Tasks` object."""

    recover: Recover | None
    """`"rerun"`: start the tool again if its process dies; `"fail"`: end the task as interrupted. Without it the tool's
    own `readOnlyHint` or `idempotentHint` says that it may run again."""

    max_runtime: timedelta | None
    """Stop the work after this long, and say so."""

    poll_interval: timedelta | None
    """A fixed interval to suggest to clients, instead of one that grows with the task's age."""

    grace: timedelta | None
    """How long a call waits for this tool before it answers with a task."""

    park_after: timedelta | None
    """How long a run that can be started again stays in memory while it waits for an answer."""

    max_wait: timedelta | None
    """How long a question of the tool may stay unanswered before the task fails, and says so. A question with a
    `timeout` waits for that long instead."""

    max_lost_runs: int | None
    """How many runs in a row may die with their process, without getting any further, before the task fails and says
    so."""

    asks_first: bool | None
    """The tool may begin by returning an `InputRequiredResult`, to be answered on the call itself, before there is a
    task. Without it, a tool whose return annotation says so."""

    immediate_response: str | None
    """What a host may tell its model at once, while the task runs, in place of the result. Clients of 2025-11-25 get it
    with the task; the newest era has no place for it."""

    fallback: Ways | None
    """How calls are answered whose caller speaks no tasks: a `Fallback`, `"inline"` for a plain call, `"auto"` for what
    the `Tasks` object says. Does nothing where the mode is `"required"` or `"forbidden"`."""

    queue: str
    """Which pool of workers runs the tool: those that were started with `--queues` and this name. `"default"` unless
    said."""

    priority: int
    """Tasks of a higher number are started before others of the same queue: -1,000 to 1,000, and 0 unless said."""

    max_at_work: int | None
    """How many runs of the tool may be at work at a time, over all processes that share the store. Others wait."""

    version: str | None
    """Which version of the tool this is. Raise it when a task that has begun could not go on with the new code."""

    on_other_version: OnOtherVersion
    """What becomes of a parked or interrupted task that was begun with another version: `"continue"` (the default) from
    what was recorded, `"restart"` as if nothing had been, or `"fail"` and say so."""

    join_running: bool
    """A call with the owner and the arguments of one that is still running is given the task of that one, and nothing
    is started a second time. Plain calls are never joined."""


_OF_ALL_TOOLS: Final = frozenset({"grace", "park_after", "max_wait", "max_lost_runs"})
"""Options for which None stands for what holds for all tools."""


def options_from(where: str, options: ToolOptions, usual: TaskOptions, *, also: Sequence[str] = ()) -> TaskOptions:
    """The options of a tool, from the keywords of `where`, which may take others as well.

    Args:
        usual: The options of tools of which nothing is said.

    Raises:
        InvalidOption: There is no such option, or it has a value that it cannot have.
    """
    known = [*also, *ToolOptions.__annotations__]
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise InvalidOption(f"{where} has no option {name!r}{hint} It has {', '.join(known)}")
    given: dict[str, Any] = {
        name: value for name, value in options.items() if name not in _OF_ALL_TOOLS or value is not None
    }
    if "fallback" in given:
        given["fallback"] = fallback_from("auto" if given["fallback"] is None else given["fallback"], usual.fallback)
    return replace(usual, **given)


def default_ttl_from(ms: int | Unset | None, ttl: timedelta | Unset | None) -> timedelta | None:
    """The default `ttl`, which document 001 gives in milliseconds.

    Raises:
        UsageError: It is given twice.
        InvalidOption: It is not a duration.
    """
    if isinstance(ms, Unset):
        if ttl is not None and not isinstance(ttl, Unset):
            check_duration("default_ttl", ttl)
        return DEFAULT_TTL if isinstance(ttl, Unset) else ttl
    if not isinstance(ttl, Unset):
        raise UsageError("give default_ttl or default_ttl_ms, not both")
    if ms is None:
        return None
    try:
        if isinstance(ms, int) and not isinstance(ms, bool) and ms > 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            return timedelta(milliseconds=ms)
    except OverflowError:
        pass
    raise InvalidOption(
        f"default_ttl_ms must be a positive whole number of milliseconds, got {ms!r}: write "
        "default_ttl=timedelta(days=1), or None to keep tasks for as long as the store lives"
    )


# ---- choice
# Which store and which engine an author chose.


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
