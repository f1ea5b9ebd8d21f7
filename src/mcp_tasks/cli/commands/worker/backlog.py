"""`mcp-tasks backlog`: how much waits to be run, by queue."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol, runtime_checkable

import click
from rich.table import Table
from rich.text import Text

from mcp_tasks.cli.commands.worker.health import backlog_json
from mcp_tasks.cli.commands.worker.loading import load_server
from mcp_tasks.cli.options import Output, takes_output
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.cli.terminal.text import clean
from mcp_tasks.cli.terminal.views import print_json, say, stdout
from mcp_tasks.encryption import keyring_from_environment
from mcp_tasks.errors import StoreError, UsageError
from mcp_tasks.server import Waiting, waiting_in
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.stores.paging import full_page
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.stores.url import store_from_url


@click.command()
@click.argument("where", metavar="MODULE:SERVER|URL")
@click.option(
    "--namespace", metavar="NAME", help="Whose tasks; needed with the URL of a store. The server's name, usually."
)
@takes_output
async def command(*, where: str, namespace: str | None, output: Output) -> int:
    """Count the tasks that could run and nobody has, by queue, and say for how long the oldest has waited.

    It is the number to scale workers by. A worker with --health answers it at /backlog, too.

    Examples:
      mcp-tasks backlog farm:server
      mcp-tasks backlog farm:server --json
      mcp-tasks backlog postgresql://db/tasks --namespace render-farm --json

    Exit codes: 0 counted, 2 wrong usage, 10 the store cannot be used,
    11 the server's own code raised.
    """
    if "://" in where and not namespace:
        raise click.UsageError(
            "--namespace NAME is missing: a store may keep tasks of several servers. Usually it is the server's name"
        )
    if "://" not in where and namespace is not None:
        raise click.UsageError("--namespace goes with the URL of a store, and only with that")

    try:
        queues = await (_of_server(where) if namespace is None else _of_store(where, namespace))
    except (StoreError, UsageError) as exc:
        raise Problem(str(exc), Exit.STORE if isinstance(exc, StoreError) else Exit.USAGE) from None
    _print(queues, output)
    return Exit.OK


async def _of_server(spec: str) -> Mapping[str, Waiting]:
    loaded = load_server(spec)
    worker = loaded.tasks.worker(loaded.server)
    await _check(worker.store)
    return await worker.backlog()


async def _check(store: Store | None) -> None:
    """Refuse a store in which nothing can be: opened, it would be made, and be empty."""
    if isinstance(store, MemoryStore):
        raise UsageError("tasks in memory:// are seen only by the process that has them")
    if isinstance(store, SqliteStore) and not store.path.exists():
        raise UsageError(f"there is no file {str(store.path)!r}: no server has kept tasks there yet")
    if isinstance(store, _HasTables) and not await store.has_tables():
        raise UsageError(f"{store!r} has no tables: no server has kept tasks there yet")


@runtime_checkable
class _HasTables(Protocol):
    """A store that can be asked whether it was ever used. By shape: the driver of its database may not be there."""

    async def has_tables(self) -> bool: ...


async def _of_store(url: str, namespace: str) -> Mapping[str, Waiting]:
    store = store_from_url(url, keyring_from_environment())
    await _check(store)
    try:
        await store.open(namespace)
        now = await store.now()
        queues = await waiting_in(store, namespace, now)
        if not queues and not await _is_known(store, namespace, now):
            say(
                f"No task there is of namespace {namespace!r}, and no process runs any for it. Is it spelled right?",
                "yellow",
            )
        return queues
    finally:
        await store.close()


async def _is_known(store: Store, namespace: str, now: datetime) -> bool:
    """Whether anybody has kept tasks under that name, or would run them."""
    if await store.workers(namespace):
        return True
    # A page without tasks and with a next one is of a namespace that has, or had, very many.
    page = await full_page(store, namespace, EVERYBODY, now=now, limit=1)
    return bool(page.records or page.cursor)


def _print(queues: Mapping[str, Waiting], output: Output) -> None:
    if output == "json":
        print_json(backlog_json(queues))
        return
    if not queues:
        say("Nothing waits.")
        return
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for title in ("queue", "ready", "oldest"):
        table.add_column(title, no_wrap=True)
    for queue, waiting in queues.items():
        table.add_row(Text(clean(queue)), str(waiting.ready), f"{waiting.age.total_seconds():.1f} s")
    stdout().print(table)
