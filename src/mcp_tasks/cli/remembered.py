"""The tasks that were started from here: the ledger's file, and tasks by the beginning of their ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from mcp_tasks.cli.options import Access, TaskOptions
from mcp_tasks.cli.target import Target, parse_target, target_of
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.client import Ledger, LedgerEntry
from mcp_tasks.encryption import LEDGER_KEYS_VARIABLE, keyring_from_environment
from mcp_tasks.errors import InvalidOption, StoreError
from mcp_tasks.stores.url import private_state_folder, state_folder

SHORT = 8
"""Characters of an id's random part that are shown and asked for: 48 bits, more than a ledger can mix up."""


@contextmanager
def opened_ledger(path: Path | None) -> Generator[Ledger]:
    """The ledger, made if it is not there. Only its owner may read it: ids can be all that protects a task.

    Raises:
        Problem: The file cannot be used.
    """
    where = path or state_folder() / "ledger.db"
    try:
        if path is None:
            private_state_folder()
        ledger = Ledger(where, keep_results=True, cipher=keyring_from_environment(LEDGER_KEYS_VARIABLE))
    except (OSError, StoreError, InvalidOption) as exc:
        raise Problem(f"the ledger {where} cannot be used: {exc}", Exit.LEDGER, hint="--ledger names another.") from exc
    try:
        yield ledger
    finally:
        ledger.close()


def find_task(ledger: Ledger, start: str, *, server: str | None = None, identity: str | None = None) -> LedgerEntry:
    """The one task whose id begins with `start`, with or without the part before `_`.

    Raises:
        Problem: No task begins like that, or more than one does.
    """
    spec = None if server is None else parse_target(server).spec
    entries = ledger.entries(server=spec, identity=identity)
    found = [entry for entry in entries if _begins(entry.task_id, start)]
    exact = [entry for entry in found if entry.task_id == start]
    match exact or found:
        case [entry]:
            return entry
        case []:
            return _stranger(start, spec, identity or "")
        case several:
            raise Problem(
                f"{start!r} matches {len(several)} tasks",
                Exit.USAGE,
                hint="\n".join(_line(e) for e in several[:10]),
            )


def find_tasks(ledger: Ledger, starts: Sequence[str], options: TaskOptions | None = None) -> list[LedgerEntry]:
    """The tasks that a command names, each once, in the order named.

    Args:
        options: Narrow the search to a server and an identity.

    Raises:
        Problem: A name fits no task, or more than one.
    """
    server, identity = (None, None) if options is None else (options.server, options.access.identity)
    entries = [find_task(ledger, start, server=server, identity=identity) for start in starts]
    return list({entry.key: entry for entry in entries}.values())


Group = tuple[Target, Access, list[LedgerEntry]]
"""Tasks of one server, and how it is spoken to for them."""


def by_server(entries: Sequence[LedgerEntry], access: Access) -> list[Group]:
    """The tasks of each server, and of each identity there, together.

    Raises:
        Problem: Credentials for one server or identity would go to several, or a server cannot be told.
    """
    ordered = sorted(entries, key=lambda entry: entry.key)
    groups: list[Group] = []
    for (_, identity), same in groupby(ordered, lambda entry: (entry.server, entry.identity)):
        group = list(same)
        groups.append((target_of(group[0]), replace(access, identity=identity), group))
    over_http = [
        target.label + (f" as {spoken.identity}" if spoken.identity else "")
        for target, spoken, _ in groups
        if target.url is not None
    ]
    if access.headers and len(over_http) > 1:
        raise Problem(
            "these tasks are of several servers or identities, and the token or headers are for one of them",
            Exit.USAGE,
            hint="\n".join(["Name the tasks of one at a time:", *over_http]),
        )
    return groups


def short_id(task_id: str) -> str:
    """As much of an id as tells tasks apart, to be shown: an id is what a server says it is."""
    kind, random = _split(one_line(task_id))
    return kind + random[:SHORT]


def short_ids(entries: Sequence[LedgerEntry]) -> dict[str, str]:
    """Short forms of ids by which `find_task` finds each of these again; whole ones where servers' ids are alike."""
    short = {entry.task_id: short_id(entry.task_id) for entry in entries}
    taken = Counter(short.values())
    return {task_id: name if taken[name] == 1 else task_id for task_id, name in short.items()}


def _split(task_id: str) -> tuple[str, str]:
    """The part of an id that all of a server's ids share (`task_`), and the rest."""
    kind, separator, random = task_id.partition("_")
    return (kind + separator, random) if kind.isalpha() and random else ("", task_id)


def _begins(task_id: str, start: str) -> bool:
    # As it is, and as it is shown.
    names = (task_id, shown := one_line(task_id), _split(task_id)[1], _split(shown)[1])
    return bool(start) and any(name.startswith(start) for name in names)


def _stranger(task_id: str, spec: str | None, identity: str) -> LedgerEntry:
    if spec is None and "://" in task_id:
        raise Problem(
            f"{task_id!r} is the URL of a server, and not a task",
            Exit.USAGE,
            hint="Name the task by its id, and the server with --server URL if the task is not in the ledger.",
        )
    if spec is None:
        raise Problem(
            f"no task in the ledger begins with {task_id!r}",
            Exit.UNKNOWN_TASK,
            hint="`mcp-tasks ls` lists the tasks in the ledger; for any other, give its whole id and --server.",
        )
    now = datetime.now(UTC)
    return LedgerEntry(task_id=task_id, server=spec, tool="", started_at=now, status="working", identity=identity)


def _line(entry: LedgerEntry) -> str:
    whose = f"  {entry.identity}" if entry.identity else ""
    return one_line(f"{entry.task_id}  {entry.tool}  {entry.status}  {entry.server}{whose}")
