"""Commands for operators, on the store of a server: `ls`, `show` and `cancel` with `--store`, `workers`, `drain`,
`rerun` and `delete`. Every act is written to an audit log first."""

from __future__ import annotations

import getpass
import json
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any, Final, cast

import click
from rich.table import Table
from rich.text import Text

from mcp_tasks.cli.options import Command, Duration, Output, file_option, takes_output
from mcp_tasks.cli.terminal import (
    Columns,
    Exit,
    Problem,
    badge,
    json_text,
    listing,
    one_line,
    print_json,
    say,
    stdout,
    store_problem,
    table_of,
)
from mcp_tasks.encryption import keyring_from_environment
from mcp_tasks.errors import EncryptionMismatch, StoreError, TaskUnreadable, UnknownTask, UsageError
from mcp_tasks.files import state_folder
from mcp_tasks.model.limits import expires_at
from mcp_tasks.model.record import Actor, TaskRecord, TaskStatus
from mcp_tasks.model.values import ago, clock
from mcp_tasks.runtime.observers import TaskChange
from mcp_tasks.runtime.operator import MOST_CLAIMED, Dossier, Operator, Wanted, WorkerSeen, check_there
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.url import store_from_url
from mcp_tasks.telemetry.audit import Audit, AuditEntry, AuditEvent, AuditLog

# ---- session


AS: Final = click.option("--as", "name", metavar="NAME", help="Who you are, for the audit log.  [default: USER@HOST]")
AUDIT: Final = file_option(
    "--audit",
    envvar="MCP_TASKS_AUDIT",
    show_envvar=True,
    help="Where what you do is written down.  [default: audit.jsonl in your state folder]",
)


class Acts:
    """The audit log of a command: a file, and the logger `mcp_tasks.audit`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._logs: dict[str, AuditLog] = {}
        # Fail before something is done that cannot be written down.
        self.of("")

    def of(self, namespace: str) -> AuditLog:
        """The log of one server's tasks."""
        if namespace not in self._logs:
            self._logs[namespace] = AuditLog(self._path, server=namespace)
        return self._logs[namespace]

    def __call__(self, change: TaskChange) -> None:
        """Write down a change of a task."""
        Audit(self.of(change.task.namespace))(change)

    def close(self) -> None:
        for log in self._logs.values():
            log.close()


def written_down(audit: Path | None, name: str | None) -> tuple[Acts, Actor]:
    """The audit log of a command, and its operator.

    Raises:
        UsageError: The file cannot be written.
    """
    if audit is None:
        folder = state_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        audit = folder / "audit.jsonl"
    elif not audit.absolute().parent.is_dir():
        # Not made: a name that was mistyped is to be noticed.
        raise UsageError(f"the audit log {str(audit)!r} cannot be written: there is no folder {str(audit.parent)!r}")
    if not name:
        try:
            user = getpass.getuser()
        except (OSError, KeyError):
            user = "unknown"
        name = f"{user}@{socket.gethostname()}"
    return Acts(audit), Actor("operator", name)


class Session:
    """An operator at an open store."""

    def __init__(self, operator: Operator, namespaces: Sequence[str], audit: Acts, output: Output) -> None:
        self.operator = operator
        self.output = output
        self._namespaces = namespaces
        self._audit = audit

    async def namespaces(self) -> Sequence[str]:
        """The namespaces that were named, or all that are there."""
        return self._namespaces or await self.operator.store.namespaces()

    async def find(self, task_id: str) -> TaskRecord:
        """A task by its whole id.

        Raises:
            UnknownTask: There is none.
        """
        record = await self.operator.find(task_id)
        if self._namespaces and record.namespace not in self._namespaces:
            raise UnknownTask(task_id)
        return record

    async def each(
        self,
        ids: Sequence[str],
        act: Callable[[str], Awaitable[tuple[dict[str, Any], str]]],
        *,
        tell: Callable[[str], None] = say,
    ) -> int:
        """Act on each of the tasks, and tell the result in words or as JSON. A problem with one is shown, and the
        others go on."""
        code = Exit.OK
        done: list[dict[str, Any]] = []
        for task_id in ids:
            try:
                value, words = await act(task_id)
            except (Problem, TaskUnreadable, UsageError, UnknownTask) as exc:
                problem = _problem_of(exc, task_id)
                problem.show()
                code = code or problem.code
                continue
            done.append(value)
            if self.output == "text":
                tell(words)
        if self.output == "json":
            print_json(done)
        return code

    async def workers(self) -> Sequence[WorkerSeen]:
        return await self.operator.workers(await self.namespaces())

    async def find_worker(self, text: str) -> WorkerSeen:
        """The worker of that name, or with that end.

        Raises:
            Problem: There is none, or there are several.
        """
        seen = await self.workers()
        found = [worker for worker in seen if text in (worker.name, _short_worker(worker.name))]
        if len(found) == 1:
            return found[0]
        names = ", ".join(_short_worker(worker.name) for worker in seen) or "none"
        what = "no worker has that name" if not found else "several workers have that name; give the whole one"
        raise Problem(f"{text!r}: {what}", Exit.USAGE, hint=f"There are: {names}")

    def note(self, event: AuditEvent, namespace: str, **fields: Any) -> None:
        """Write down an act that is no change of a task."""
        self._audit.of(namespace).write(AuditEntry(event=event, actor=self.operator.actor, **fields))


def _problem_of(exc: Exception, task_id: str) -> Problem:
    if isinstance(exc, UnknownTask):
        hint = "Give its whole id, as `ls --store` has it."
        return Problem(f"there is no task {task_id}", Exit.UNKNOWN_TASK, hint=hint)
    return exc if isinstance(exc, Problem) else store_problem(cast("StoreError", exc))


@asynccontextmanager
async def _session(
    url: str, namespaces: Sequence[str], name: str | None, audit: Path | None, output: Output
) -> AsyncGenerator[Session]:
    try:
        store = await _store_at(url)
        acts, actor = written_down(audit, name)
        try:
            async with Operator(store, name=actor.name or "", observers=[acts]).opened() as operator:
                yield Session(operator, sorted(set(namespaces)), acts, output)
        finally:
            acts.close()
    except (StoreError, UsageError) as exc:
        raise store_problem(exc) from exc


async def _store_at(url: str) -> Store:
    """The store, with the keys of the environment only if it is encrypted: an empty store that is opened with keys
    becomes an encrypted one."""
    store, keys = store_from_url(url), keyring_from_environment()
    if isinstance(store, MemoryStore):
        raise UsageError("tasks in memory:// are seen only by the process that has them")
    if keys is None:
        return store
    await check_there(store)
    try:
        await store.open()
    except EncryptionMismatch:
        return store_from_url(url, keys)
    await store.close()
    return store


def on_store(command: Callable[..., Coroutine[Any, Any, int]]) -> Command:
    """A decorator for commands on a store: they are given the options for it, and the open session as `here`."""

    @click.option(
        "--store", "url", envvar="MCP_TASKS_URL", show_envvar=True, required=True, metavar="URL", help="Which store."
    )
    @click.option(
        "--namespace",
        "namespaces",
        multiple=True,
        metavar="NAME",
        help="Only tasks of this server. Repeatable.  [default: all that are there]",
    )
    @AS
    @AUDIT
    @takes_output
    @wraps(command)
    async def wrapper(
        *, url: str, namespaces: Sequence[str], name: str | None, audit: Path | None, output: Output, **given: Any
    ) -> int:
        async with _session(url, namespaces, name, audit, output) as here:
            return await command(here=here, **given)

    return wrapper


takes_ids: Final = click.argument("ids", nargs=-1, required=True, metavar="ID...")


# ---- acts on tasks


@click.command()
@takes_ids
@click.option(
    "--reason", default="Cancelled by an operator", show_default=True, metavar="TEXT", help="What its client is told."
)
@on_store
async def cancel_command(*, here: Session, ids: Sequence[str], reason: str) -> int:
    """End tasks as cancelled. The worker that runs one hears of it and stops the tool.

    Examples:
      mcp-tasks cancel task_AhLNl8TX2b3kq0S9 --store postgresql://db/tasks
      mcp-tasks cancel task_AhLNl8TX2b3kq0S9 --reason "Maintenance" --store sqlite:///tasks.db

    Exit codes: 0 ended, 2 wrong usage, 8 no such task, 10 the store cannot be used.
    """

    async def cancel(task_id: str) -> tuple[dict[str, Any], str]:
        before = await here.find(task_id)
        after = await here.operator.cancel(before, reason)
        was_first = after.version > before.version and after.status is TaskStatus.CANCELLED
        words = "cancelled" if was_first else f"had ended already, as {after.status.value}"
        return {"taskId": task_id, "status": after.status.value}, f"{task_id}: {words}"

    return await here.each(ids, cancel)


@click.command()
@takes_ids
@click.option("--force", is_flag=True, help="Cancel one that has not ended first; and delete one that cannot be read.")
@on_store
async def delete_command(*, here: Session, ids: Sequence[str], force: bool) -> int:
    """Delete tasks that have ended, with all that is kept of them. There is no way back.

    Examples:
      mcp-tasks delete task_AhLNl8TX2b3kq0S9 --store postgresql://db/tasks
      mcp-tasks delete task_AhLNl8TX2b3kq0S9 --force --store postgresql://db/tasks

    Exit codes: 0 gone, 2 wrong usage, 8 no such task, 10 the store cannot be used.
    """

    async def delete(task_id: str) -> tuple[dict[str, Any], str]:
        done = {"taskId": task_id}, f"{task_id}: deleted"
        try:
            record = await here.find(task_id)
        except TaskUnreadable as exc:
            if not force:
                raise
            await here.operator.delete_unreadable(task_id)
            # There is no record of it that an observer could be shown.
            here.note("deleted", "", task_id=task_id, reason=f"unreadable: {exc.why}")
            return done
        if not (force or record.is_final):
            what = f"{task_id} has not ended: it is {record.status.value}"
            raise Problem(what, Exit.USAGE, hint="--force cancels it first.")
        if force:
            record = await here.operator.cancel(record, "Deleted by an operator")
        await here.operator.delete(record)
        return done

    return await here.each(ids, delete)


@click.command()
@takes_ids
@click.option("--yes", is_flag=True, help="Also what its tool has begun before, without asking.")
@on_store
async def rerun_command(*, here: Session, ids: Sequence[str], yes: bool) -> int:
    """Run tasks that have ended again, each as a new task with the same request and owner; prints the new ids.

    A tool that has begun may have done its work, however its task ended: a payment may be paid. What it does a second
    time, only its author knows, so that is asked about, or wants --yes.

    While a new one has not ended, running the same task again gives that one.

    Examples:
      mcp-tasks rerun task_AhLNl8TX2b3kq0S9 --store postgresql://db/tasks
      mcp-tasks rerun task_AhLNl8TX2b3kq0S9 --yes --store postgresql://db/tasks

    Exit codes: 0 queued, 2 wrong usage, 8 no such task, 10 the store cannot be used.
    """

    async def run_again(task_id: str) -> tuple[dict[str, Any], str]:
        record = await here.find(task_id)
        if record.is_final and record.attempt and not yes:
            _confirm(record)
        new = await here.operator.run_again(record)
        # Also for a task that was there already, which observers are not told of.
        here.note("rerun", new.namespace, owner=new.owner, task_id=new.id, tool=new.name, about=task_id)
        return {"taskId": new.id, "rerunOf": task_id, "status": new.status.value}, new.id

    return await here.each(ids, run_again, tell=click.echo)


def _confirm(record: TaskRecord) -> None:
    what = (
        f"{record.id}: the tool {one_line(record.name)!r} has begun before, and may have done its work, though the "
        f"task is {record.status.value}"
    )
    if not sys.stdin.isatty():
        raise Problem(what, Exit.USAGE, hint="If it may be done a second time: --yes")
    if not click.confirm(f"{what}. Run it again?", err=True):
        raise Problem(f"{record.id} was not run again", Exit.USAGE)


# ---- workers


@click.command()
@on_store
async def workers_command(*, here: Session) -> int:
    """List the workers of a store: how often each has beaten, how many tasks it has, and whether it drains.

    A heartbeat is a number that grows: of one that stays the same over some seconds, the process is gone or hangs.

    Examples:
      mcp-tasks workers --store postgresql://db/tasks
      mcp-tasks workers --store postgresql://db/tasks --json
    """
    seen = await here.workers()
    if here.output == "json":
        print_json([_worker_json(worker) for worker in seen])
    elif not seen:
        say("No workers.")
    else:
        rows = [
            (
                _short_worker(worker.name),
                one_line(worker.namespace),
                str(worker.beats),
                f"{worker.claimed}{'+' if worker.claimed == MOST_CLAIMED else ''}",
                _state(worker),
            )
            for worker in seen
        ]
        stdout().print(table_of(("worker", "server", "beats", "tasks", "state"), rows))
    return Exit.OK


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="WORKER...")
@click.option("--undo", is_flag=True, help="Have them take tasks again.")
@on_store
async def drain_command(*, here: Session, names: Sequence[str], undo: bool) -> int:
    """Have workers take nothing more and finish what they have. Then they idle until --undo, or until they are ended.

    Each looks with its heartbeat whether it is to drain, so that takes some seconds; `workers` shows how far they are.

    Examples:
      mcp-tasks drain 1f0c9a2b --store postgresql://db/tasks
      mcp-tasks drain 1f0c9a2b --undo --store postgresql://db/tasks

    Exit codes: 0 noted, 2 wrong usage, 10 the store cannot be used.
    """
    for worker in [await here.find_worker(name) for name in names]:
        await (here.operator.undrain(worker) if undo else here.operator.drain(worker))
        here.note("drained", worker.namespace, outcome="undone" if undo else None, worker=worker.name)
    seen = [await here.find_worker(name) for name in names]
    if here.output == "json":
        print_json([_worker_json(worker) for worker in seen])
        return Exit.OK
    for worker in seen:
        word = "takes tasks again" if undo else "is to take nothing more"
        tasks = f"{worker.claimed} task{'' if worker.claimed == 1 else 's'}"
        say(f"{_short_worker(worker.name)} {word}; it has {tasks}")
    return Exit.OK


def _short_worker(name: str) -> str:
    """The end of a worker's name, which tells workers apart."""
    return one_line(name.rpartition("/")[2])


def _worker_json(worker: WorkerSeen) -> dict[str, Any]:
    return {
        "worker": worker.name,
        "namespace": worker.namespace,
        "beats": worker.beats,
        "claimed": worker.claimed,
        "draining": worker.draining is not None,
        "drainedBy": worker.draining,
        "gone": worker.is_gone,
    }


def _state(worker: WorkerSeen) -> str:
    if worker.is_gone:
        return "gone"
    if not worker.beats:
        return "signed off"
    if worker.draining is None:
        return "working"
    return f"{'draining' if worker.claimed else 'drained'} (asked for by {one_line(worker.draining)})"


# ---- ls


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
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="How many at most.")
@click.option("--cursor", metavar="CURSOR", help="Go on where another listing ended.")
@on_store
async def ls_command(
    *,
    here: Session,
    status: str | None,
    worker: str | None,
    older_than: timedelta | None,
    limit: int,
    cursor: str | None,
    **wanted: Any,
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
    filters = Wanted(
        status=None if status is None else TaskStatus(status),
        worker=None if worker is None else (await here.find_worker(worker)).name,
        before=None if older_than is None else here.operator.now() - older_than,
        # Errors, tool, owner, session and queue.
        **wanted,
    )
    try:
        found = await here.operator.list(await here.namespaces(), filters, cursor=cursor, limit=limit)
    except ValueError as exc:
        raise Problem(f"--cursor: {exc}", Exit.USAGE) from exc
    for namespace in await here.namespaces():
        here.note("listed", namespace, method="ls")
    if here.output == "json":
        print_json({"tasks": [_record_json(record) for record in found.records], "cursor": found.cursor})
        return Exit.OK
    if found.records:
        _print(found.records, here.operator.now())
    else:
        say("No tasks.")
        if filters.owner:
            say("Owners are matched whole, as a listing without --owner shows them.")
    if found.cursor is not None:
        say(f"There are more: --cursor {found.cursor}")
    return Exit.OK


def _print(records: Sequence[TaskRecord], now: datetime) -> None:
    columns: Columns[TaskRecord] = {
        "id": lambda record: record.id,
        "status": lambda record: badge("tool error" if record.is_error else record.status.value),
        "made": lambda record: ago(now - record.created_at),
        "took": lambda record: clock((record.finished_at or now) - record.created_at),
        "tool": lambda record: record.name,
        "owner": lambda record: record.owner or "-",
        "queue": lambda record: record.queue,
        "worker": lambda record: "-" if record.worker is None else _short_worker(record.worker),
    }
    if len({record.namespace for record in records}) > 1:
        columns = {**columns, "server": lambda record: record.namespace}
    stdout().print(listing(columns, records, fixed=4))


# ---- show


@click.command()
@click.argument("task_id", metavar="ID")
@click.option(
    "--secrets", is_flag=True, help="Show arguments, questions, answers, steps, messages and results as they are."
)
@on_store
async def show_command(*, here: Session, task_id: str, secrets: bool) -> int:
    """Show what is kept of a task: its request, its journal, its runs and how long they took.

    What it is about is told by size and shape, unless you ask for --secrets; the audit log says which you did.

    Examples:
      mcp-tasks show task_AhLNl8TX2b3kq0S9 --store postgresql://db/tasks
      mcp-tasks show task_AhLNl8TX2b3kq0S9 --secrets --json --store sqlite:///tasks.db

    Exit codes: 0 shown, 2 wrong usage, 8 no such task, 10 the store cannot be used.
    """
    try:
        record = await here.find(task_id)
    except UnknownTask as exc:
        raise _problem_of(exc, task_id) from None
    dossier = await here.operator.look(task_id)
    # Before it is shown: an act that cannot be written down is not done.
    seen = "secrets" if secrets else None
    about = {"owner": record.owner, "tool": record.name, "method": record.method}
    here.note("shown", record.namespace, task_id=record.id, outcome=seen, **about)
    said = _dossier_json(dossier, here.operator.now(), secrets=secrets)
    if here.output == "json":
        print_json(said)
        return Exit.OK
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bright_black")
    grid.add_column()
    for name, value in said.items():
        if name == "status":
            grid.add_row(name, badge(value))
        elif name == "journal":
            grid.add_row(name, Text(f"{len(value)} entries"))
            for entry in value:
                start = f"{entry['number']:>3}  {entry['kind']:<8} {entry['key']}"
                grid.add_row("", Text(one_line(f"{start}  {_text(entry['value'])}")))
        elif isinstance(value, dict):
            for inner, part in cast("dict[str, Any]", value).items():
                if part is not None:
                    grid.add_row(f"{name}.{one_line(inner)}", Text(one_line(_text(part))))
        else:
            grid.add_row(name, Text(one_line(_text(value))))
    stdout().print(grid)
    return Exit.OK


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


MOST_NAMES: Final = 20
"""Names in an object that are shown."""


def shape_of(value: Any, *, inside: bool = True) -> str:
    """The type and size of a value, and the names in an object, which are those of the tool; nothing of its content."""
    match value:
        case None:
            return "null"
        case bool():
            return "yes or no"
        case int() | float():
            return "number"
        case str():
            return f"text of {len(value)}"
        case Mapping() if inside:
            held = cast("Mapping[str, Any]", value)
            names = [f"{name}: {shape_of(part, inside=False)}" for name, part in list(held.items())[:MOST_NAMES]]
            return f"{{{', '.join(names)}{', …' if len(held) > MOST_NAMES else ''}}}"
        case Mapping():
            return f"object of {len(cast('Mapping[str, Any]', value))}"
        case _:
            return f"list of {len(cast('Sequence[Any]', value))}"


def _told(value: Any, *, secrets: bool) -> Any:
    """A value, or its shape."""
    return value if secrets or value is None else shape_of(value)


def _record_json(record: TaskRecord, *, secrets: bool = False) -> dict[str, Any]:
    """A task's row as JSON, in the protocol's words where it has some."""
    fields: dict[str, Any] = {
        "taskId": record.id,
        "status": record.status.value,
        "statusMessage": _told(record.status_message, secrets=secrets),
        "isError": record.is_error or None,
        "tool": record.name,
        "method": record.method,
        "namespace": record.namespace,
        "owner": record.owner,
        "session": record.session,
        "parent": record.parent,
        "rerunOf": record.rerun_of,
        "queue": record.queue,
        "priority": record.priority or None,
        "worker": record.worker,
        "pause": record.pause,
        "toolVersion": record.tool_version,
        "runs": record.attempt,
        "lostRuns": record.lost or None,
        "openQuestions": len(record.inputs.outstanding) or None,
        "createdAt": _iso(record.created_at),
        "startedAt": _iso(record.started_at),
        "wakesAt": _iso(record.wake_at) if record.wake_at is not None and record.wake_at.year > 1 else None,
        "lastUpdatedAt": _iso(record.updated_at),
        "finishedAt": _iso(record.finished_at),
        "expiresAt": _iso(expires_at(record)),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _dossier_json(dossier: Dossier, now: datetime, *, secrets: bool) -> dict[str, Any]:
    """Everything that is kept of a task."""
    record, request, outcome, progress = dossier.record, dossier.request, dossier.outcome, dossier.record.progress
    end = record.finished_at or now
    spans: dict[str, timedelta] = {"age": now - record.created_at, "total": end - record.created_at}
    if record.started_at is not None:
        spans["untilLastRun"] = record.started_at - record.created_at
        spans["lastRun"] = end - record.started_at
    fields: dict[str, Any] = {
        **_record_json(record, secrets=secrets),
        "timings": {name: round(max(span.total_seconds(), 0.0), 3) for name, span in spans.items()},
        "progress": progress
        and {
            "progress": progress.progress,
            "total": progress.total,
            "message": _told(progress.message, secrets=secrets),
        },
        "questions": {
            key: {"method": ask.method, "params": _told(ask.params, secrets=secrets)}
            for key, ask in record.inputs.outstanding.items()
        }
        or None,
        "journal": [
            {"number": entry.number, "kind": entry.kind, "key": entry.key, "value": _told(entry.value, secrets=secrets)}
            for entry in dossier.journal
        ],
        "unreadable": dict(dossier.unreadable) or None,
    }
    if request is not None:
        info = request.client_info
        fields["request"] = {
            "bytes": len(json.dumps(request.arguments, default=str).encode(errors="surrogatepass")),
            "arguments": _told(dict(request.arguments), secrets=secrets),
            "protocolVersion": request.protocol_version,
            "client": None if info is None else f"{info.get('name', '?')} {info.get('version', '')}".strip(),
            "answersBefore": _told(request.input_responses, secrets=secrets),
        }
    if outcome is not None:
        value: Any = json.loads(outcome.body)
        is_error: Any = None
        if not secrets and isinstance(value, dict):
            is_error = cast("dict[str, Any]", value).pop("isError", None)
        fields["outcome"] = {
            "bytes": len(outcome.body),
            # No content, and the first thing that an operator looks for.
            "isError": is_error if isinstance(is_error, bool) else None,
            "value": _told(value, secrets=secrets),
        }
    return {name: value for name, value in fields.items() if value is not None}


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
