"""The tasks that were started from here: the ledger's file, and the tasks that a command names."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from mcp_tasks.cli.options import TaskOptions
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.client import Ledger, LedgerEntry, ServerAddress
from mcp_tasks.encryption import LEDGER_KEYS_VARIABLE, keyring_from_environment
from mcp_tasks.errors import InvalidOption, StoreError, TaskNotRemembered
from mcp_tasks.stores.url import private_state_folder, state_folder


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
    """The one task whose id begins with `start`; with a server, also one that the ledger has never heard of.

    Raises:
        Problem: It is not the id of a task.
        TaskNotRemembered: No task of the ledger begins like that.
        AmbiguousTask: More than one does.
    """
    spec = None if server is None else ServerAddress.parse(server).spec
    try:
        return ledger.find(start, server=spec, identity=identity)
    except TaskNotRemembered:
        if spec is None and "://" in start:
            raise Problem(
                f"{start!r} is the URL of a server, and not a task",
                Exit.USAGE,
                hint="Name the task by its id, and the server with --server URL if the task is not in the ledger.",
            ) from None
        if spec is None:
            raise
    now = datetime.now(UTC)
    return LedgerEntry(task_id=start, server=spec, tool="", started_at=now, status="working", identity=identity or "")


def find_tasks(ledger: Ledger, starts: Sequence[str], options: TaskOptions | None = None) -> list[LedgerEntry]:
    """The tasks that a command names, each once, in the order named.

    Args:
        options: Narrow the search to a server and an identity.

    Raises:
        Problem: A name is not the id of a task.
        TaskNotRemembered: A name fits no task.
        AmbiguousTask: A name fits more than one.
    """
    server, identity = (None, None) if options is None else (options.server, options.access.identity)
    entries = [find_task(ledger, start, server=server, identity=identity) for start in starts]
    return list({entry.key: entry for entry in entries}.values())
