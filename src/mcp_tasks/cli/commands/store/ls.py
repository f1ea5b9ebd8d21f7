"""`mcp-tasks ls --store URL`: the tasks of a store, by what they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import click

from mcp_tasks.cli.commands.store.options import Session, StoreOptions, takes_store
from mcp_tasks.cli.commands.store.shapes import record_json
from mcp_tasks.cli.commands.store.workers import find_worker, short_worker
from mcp_tasks.cli.options import Duration
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.cli.terminal.views import Columns, badge, listing, print_json, say, stdout
from mcp_tasks.core.durations import ago, clock
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.runtime.filtering import Wanted

MOST = 1_000


@click.command()
@click.option("--status", type=click.Choice([status.value for status in TaskStatus]), help="Only those of this status.")
@click.option("--errors", is_flag=True, help="Only those that failed, or whose tool ended with an error.")
@click.option("--tool", metavar="NAME", help="Only tasks of this tool.")
@click.option(
    "--owner",
    metavar="NAME",
    help="Only tasks of this owner, whole as `ls` shows it (usually client, issuer and subject as JSON); '' for "
    "those that nobody owns.",
)
@click.option("--session", metavar="ID", help="Only tasks of this session.")
@click.option("--queue", metavar="NAME", help="Only tasks of this queue.")
@click.option("--worker", metavar="WORKER", help="Only tasks that this worker has now, as `workers` names it.")
@click.option("--older-than", type=Duration(), metavar="DURATION", help="Only tasks made longer ago: 90s, 15m, 7d.")
@click.option("--limit", type=click.IntRange(1, MOST), default=50, show_default=True, help="How many at most.")
@click.option("--cursor", metavar="CURSOR", help="Go on where another listing ended.")
@takes_store
async def command(
    *,
    status: str | None,
    errors: bool,
    tool: str | None,
    owner: str | None,
    session: str | None,
    queue: str | None,
    worker: str | None,
    older_than: timedelta | None,
    limit: int,
    cursor: str | None,
    at: StoreOptions,
) -> int:
    """List the tasks of a store, in the order in which they were made.

    Nothing is shown of what they are about. A task whose tool ended with an error is "completed" to the protocol, and
    marked as what it is here; --errors lists these and those that failed. Only so many tasks are looked at
    for one listing: it says how to go on.

    Examples:
      mcp-tasks ls --store sqlite:///tasks.db
      mcp-tasks ls --store postgresql://db/tasks --status working --older-than 2h
      mcp-tasks ls --store redis://db/0 --tool pay --json | jq -r '.tasks[].taskId'
      mcp-tasks ls --store redis://db/0 --owner '["app","https://id.example","ann"]'

    Exit codes: 0 listed, 2 wrong usage, 10 the store cannot be used.
    """

    async def work(here: Session) -> int:
        wanted = Wanted(
            status=None if status is None else TaskStatus(status),
            errors=errors,
            tool=tool,
            owner=owner,
            session=session,
            queue=queue,
            worker=None if worker is None else (await find_worker(here, worker)).name,
            before=None if older_than is None else here.operator.now() - older_than,
        )
        try:
            found = await here.operator.list(await here.namespaces(), wanted, cursor=cursor, limit=limit)
        except ValueError as exc:
            raise Problem(f"--cursor: {exc}", Exit.USAGE) from exc
        for namespace in await here.namespaces():
            here.note("listed", namespace, method="ls")
        if here.output == "json":
            print_json({"tasks": [record_json(record) for record in found.records], "cursor": found.cursor})
            return Exit.OK
        _print(found.records, here.operator.now())
        if owner and not found.records:
            say("Owners are matched whole, as a listing without --owner shows them.")
        if found.cursor is not None:
            say(f"There are more: --cursor {found.cursor}")
        return Exit.OK

    return await at.run(work)


def _print(records: Sequence[TaskRecord], now: datetime) -> None:
    if not records:
        say("No tasks.")
        return
    columns: Columns[TaskRecord] = {
        "id": lambda record: record.id,
        "status": lambda record: badge("tool error" if record.is_error else record.status.value),
        "made": lambda record: ago(now - record.created_at),
        "took": lambda record: clock((record.finished_at or now) - record.created_at),
        "tool": lambda record: record.name,
        "owner": lambda record: record.owner or "-",
        "queue": lambda record: record.queue,
        "worker": lambda record: "-" if record.worker is None else short_worker(record.worker),
    }
    if len({record.namespace for record in records}) > 1:
        columns = {**columns, "server": lambda record: record.namespace}
    stdout().print(listing(columns, records, fixed=4))
