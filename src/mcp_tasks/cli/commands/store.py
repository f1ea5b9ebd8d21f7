"""`mcp-tasks ls --store URL`: the tasks of a store, by what they are."""

from __future__ import annotations

import getpass
import json
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import click
from rich.table import Table
from rich.text import Text

from mcp_tasks.cli.options import Duration, Output, takes_output, taking
from mcp_tasks.cli.terminal import Columns, Exit, Problem, badge, json_text, listing, one_line, print_json, say, stdout
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

# ---- options
# Which store, as whom, and where it is written down: what every command on a store takes.


AS: Final = click.option("--as", "name", metavar="NAME", help="Who you are, for the audit log.  [default: USER@HOST]")
AUDIT: Final = click.option(
    "--audit",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="MCP_TASKS_AUDIT",
    show_envvar=True,
    metavar="FILE",
    help="Where what you do is written down.  [default: audit.jsonl in your state folder]",
)
"""What a command takes that writes down what it does."""

takes_ids: Final = click.argument("ids", nargs=-1, required=True, metavar="ID...")
"""Whole ids of tasks, as `ids`."""

Act: TypeAlias = "Callable[[Session, str], Awaitable[tuple[dict[str, Any], str]]]"
"""Does something with one task; what came of it, as JSON and in words."""


class Session:
    """An operator at an open store.

    Attributes:
        output: What is printed on stdout.
    """

    def __init__(self, operator: Operator, namespaces: Sequence[str], audit: Acts, output: Output) -> None:
        self.operator = operator
        self.output = output
        self._namespaces = namespaces
        self._audit = audit

    async def namespaces(self) -> Sequence[str]:
        """Those that were named, or all that are there."""
        return self._namespaces or await self.operator.store.namespaces()

    async def find(self, task_id: str) -> TaskRecord:
        """A task by its whole id.

        Raises:
            Problem: There is none.
        """
        try:
            record = await self.operator.find(task_id)
        except UnknownTask:
            raise _unknown(task_id) from None
        if self._namespaces and record.namespace not in self._namespaces:
            raise _unknown(task_id)
        return record

    async def each(self, ids: Sequence[str], act: Act, tell: Callable[[str], None]) -> int:
        """Do it for each of the tasks, and tell what came of it; what goes wrong with one is said, and the others go
        on."""
        code = Exit.OK
        done: list[dict[str, Any]] = []
        for task_id in ids:
            try:
                value, words = await act(self, task_id)
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

    def note(self, event: AuditEvent, namespace: str, **fields: Any) -> None:
        """Write down what was done and is no change of a task."""
        self._audit.of(namespace).write(AuditEntry(event=event, actor=self.operator.actor, **fields))


class Acts:
    """The audit log of what is done here: a file, and the logger `mcp_tasks.audit`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._logs: dict[str, AuditLog] = {}
        # Now, not after something was done that cannot be written down.
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
        """Let go of the file."""
        for log in self._logs.values():
            log.close()


def written_down(audit: Path | None, name: str | None) -> tuple[Acts, Actor]:
    """Where what somebody does is written down, and who it is.

    Raises:
        UsageError: The file cannot be written.
    """
    return Acts(_usual_file() if audit is None else _in_a_folder(audit)), Actor("operator", name or _account())


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreOptions:
    """What every command on a store takes."""

    url: str
    namespaces: Sequence[str]
    name: str
    audit: Path | None
    output: Output

    async def run(self, work: Callable[[Session], Awaitable[int]]) -> int:
        """Do the work at the open store."""
        async with self._session() as session:
            return await work(session)

    async def each(self, ids: Sequence[str], act: Act, *, tell: Callable[[str], None] = say) -> int:
        """Do it for each of these tasks of the store."""
        return await self.run(lambda here: here.each(ids, act, tell))

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[Session]:
        try:
            store = await _store_at(self.url)
            acts, _ = written_down(self.audit, self.name)
            try:
                async with Operator(store, name=self.name, observers=[acts]).opened() as operator:
                    yield Session(operator, self.namespaces, acts, self.output)
            finally:
                acts.close()
        except StoreError as exc:
            raise Problem(str(exc), Exit.STORE) from exc
        except UsageError as exc:
            raise Problem(str(exc), Exit.USAGE) from exc


def _at(url: str, namespaces: Sequence[str], name: str | None, audit: Path | None, output: Output) -> StoreOptions:
    names = sorted(set(namespaces))
    return StoreOptions(url=url, namespaces=names, name=name or _account(), audit=audit, output=output)


takes_store: Final = taking(
    click.option(
        "--store", "url", envvar="MCP_TASKS_URL", show_envvar=True, required=True, metavar="URL", help="Which store."
    ),
    click.option(
        "--namespace",
        "namespaces",
        multiple=True,
        metavar="NAME",
        help="Only tasks of this server. Repeatable.  [default: all that are there]",
    ),
    AS,
    AUDIT,
    takes_output,
    into=_at,
    name="at",
)
"""`--store`, `--namespace`, `--as`, `--audit` and the options of `takes_output`, as `at`."""


async def _store_at(url: str) -> Store:
    """The store, with the keys of the environment if it is an encrypted one.

    Not with the keys at once: a store that has nothing yet becomes an encrypted one by being opened with some.
    """
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


def _account() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _usual_file() -> Path:
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / "audit.jsonl"


def _in_a_folder(path: Path) -> Path:
    """The file that was named. Its folder is not made: a name that was mistyped is to be noticed."""
    if not path.absolute().parent.is_dir():
        raise UsageError(f"the audit log {str(path)!r} cannot be written: there is no folder {str(path.parent)!r}")
    return path


def _unknown(task_id: str) -> Problem:
    return Problem(f"there is no task {task_id}", Exit.UNKNOWN_TASK, hint="Give its whole id, as `ls --store` has it.")


def _problem_of(exc: Exception, task_id: str) -> Problem:
    if isinstance(exc, Problem):
        return exc
    if isinstance(exc, UnknownTask):
        return _unknown(task_id)
    return Problem(str(exc), Exit.STORE if isinstance(exc, StoreError) else Exit.USAGE)


# ---- cancel
# `mcp-tasks cancel --store URL`: end tasks as cancelled, wherever they run.


@click.command()
@takes_ids
@click.option(
    "--reason", default="Cancelled by an operator", show_default=True, metavar="TEXT", help="What its client is told."
)
@takes_store
async def cancel_command(*, ids: Sequence[str], reason: str, at: StoreOptions) -> int:
    """End tasks as cancelled. The worker that runs one hears of it and stops the tool.

    Examples:
      mcp-tasks cancel task_AhLNl8TX2b3kq0S9 --store postgresql://db/tasks
      mcp-tasks cancel task_AhLNl8TX2b3kq0S9 --reason "Maintenance" --store sqlite:///tasks.db

    Exit codes: 0 ended, 2 wrong usage, 8 no such task, 10 the store cannot be used.
    """

    async def cancel(here: Session, task_id: str) -> tuple[dict[str, Any], str]:
        before = await here.find(task_id)
        after = await here.operator.cancel(before, reason)
        was_first = after.version > before.version and after.status is TaskStatus.CANCELLED
        words = "cancelled" if was_first else f"had ended already, as {after.status.value}"
        return {"taskId": task_id, "status": after.status.value}, f"{task_id}: {words}"

    return await at.each(ids, cancel)


# ---- delete
# `mcp-tasks delete`: forget tasks before their time.


@click.command()
@takes_ids
@click.option("--force", is_flag=True, help="Cancel one that has not ended first; and delete one that cannot be read.")
@takes_store
async def delete_command(*, ids: Sequence[str], force: bool, at: StoreOptions) -> int:
    """Delete tasks that have ended, with all that is kept of them. There is no way back.

    Examples:
      mcp-tasks delete task_AhLNl8TX2b3kq0S9 --store postgresql://db/tasks
      mcp-tasks delete task_AhLNl8TX2b3kq0S9 --force --store postgresql://db/tasks

    Exit codes: 0 gone, 2 wrong usage, 8 no such task, 10 the store cannot be used.
    """

    async def delete(here: Session, task_id: str) -> tuple[dict[str, Any], str]:
        await _delete(here, task_id, force=force)
        return {"taskId": task_id}, f"{task_id}: deleted"

    return await at.each(ids, delete)


async def _delete(here: Session, task_id: str, *, force: bool) -> None:
    try:
        record = await here.find(task_id)
    except TaskUnreadable as exc:
        if not force:
            raise
        await here.operator.delete_unreadable(task_id)
        # There is no record of it that an observer could be shown.
        here.note("deleted", "", task_id=task_id, reason=f"unreadable: {exc.why}")
        return
    if not (force or record.is_final):
        raise Problem(
            f"{task_id} has not ended: it is {record.status.value}", Exit.USAGE, hint="--force cancels it first."
        )
    if force:
        record = await here.operator.cancel(record, "Deleted by an operator")
    await here.operator.delete(record)


# ---- rerun
# `mcp-tasks rerun`: have what a task asked for done again, as a new task.


@click.command()
@takes_ids
@click.option("--yes", is_flag=True, help="Also what its tool has begun before, without asking.")
@takes_store
async def rerun_command(*, ids: Sequence[str], yes: bool, at: StoreOptions) -> int:
    """Run tasks that have ended again, each as a new task with the same request and owner; prints the new ids.

    A tool that has begun may have done its work, however its task ended: a payment may be paid. What it does a second
    time, only its author knows, so that is asked about, or wants --yes.

    While a new one has not ended, running the same task again gives that one.

    Examples:
      mcp-tasks rerun task_AhLNl8TX2b3kq0S9 --store postgresql://db/tasks
      mcp-tasks rerun task_AhLNl8TX2b3kq0S9 --yes --store postgresql://db/tasks

    Exit codes: 0 queued, 2 wrong usage, 8 no such task, 10 the store cannot be used.
    """

    async def run_again(here: Session, task_id: str) -> tuple[dict[str, Any], str]:
        record = await here.find(task_id)
        if record.is_final and record.attempt and not yes:
            _confirm(record)
        new = await here.operator.run_again(record)
        # Also of one that is given because it was there already, and so is nothing that was made.
        here.note("rerun", new.namespace, owner=new.owner, task_id=new.id, tool=new.name, about=task_id)
        return {"taskId": new.id, "rerunOf": task_id, "status": new.status.value}, new.id

    return await at.each(ids, run_again, tell=click.echo)


def _confirm(record: TaskRecord) -> None:
    """Have somebody say that what was begun may be done again.

    Raises:
        Problem: Nobody does.
    """
    what = (
        f"{record.id}: the tool {one_line(record.name)!r} has begun before, and may have done its work, though the "
        f"task is {record.status.value}"
    )
    if not sys.stdin.isatty():
        raise Problem(what, Exit.USAGE, hint="If it may be done a second time: --yes")
    if not click.confirm(f"{what}. Run it again?", err=True):
        raise Problem(f"{record.id} was not run again", Exit.USAGE)


# ---- workers
# `mcp-tasks workers`: the processes that run the tasks of a store.


@click.command()
@takes_store
async def workers_command(*, at: StoreOptions) -> int:
    """List the workers of a store: how often each has beaten, how many tasks it has, and whether it drains.

    A heartbeat is a number that grows: of one that stays the same over some seconds, the process is gone or hangs.

    Examples:
      mcp-tasks workers --store postgresql://db/tasks
      mcp-tasks workers --store postgresql://db/tasks --json
    """

    async def work(here: Session) -> int:
        seen = await here.operator.workers(await here.namespaces())
        if here.output == "json":
            print_json([worker_json(worker) for worker in seen])
        elif seen:
            stdout().print(_table(seen))
        else:
            say("No workers.")
        return Exit.OK

    return await at.run(work)


def short_worker(name: str) -> str:
    """What tells workers apart: the end of a name."""
    return one_line(name.rpartition("/")[2])


async def find_worker(here: Session, text: str) -> WorkerSeen:
    """The worker of that name, or with that end.

    Raises:
        Problem: There is none, or there are several.
    """
    seen = await here.operator.workers(await here.namespaces())
    found = [worker for worker in seen if text in (worker.name, short_worker(worker.name))]
    if len(found) == 1:
        return found[0]
    names = ", ".join(short_worker(worker.name) for worker in seen) or "none"
    what = "no worker has that name" if not found else "several workers have that name; give the whole one"
    raise Problem(f"{text!r}: {what}", Exit.USAGE, hint=f"There are: {names}")


def worker_json(worker: WorkerSeen) -> dict[str, Any]:
    """A worker as JSON."""
    return {
        "worker": worker.name,
        "namespace": worker.namespace,
        "beats": worker.beats,
        "claimed": worker.claimed,
        "draining": worker.draining is not None,
        "drainedBy": worker.draining,
        "gone": worker.is_gone,
    }


def _table(seen: Sequence[WorkerSeen]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for title in ("worker", "server", "beats", "tasks", "state"):
        table.add_column(title, no_wrap=True)
    for worker in seen:
        tasks = f"{worker.claimed}{'+' if worker.claimed == MOST_CLAIMED else ''}"
        row = (short_worker(worker.name), one_line(worker.namespace), str(worker.beats), tasks, _state(worker))
        table.add_row(*(Text(text) for text in row))
    return table


def _state(worker: WorkerSeen) -> str:
    if worker.is_gone:
        return "gone"
    if not worker.beats:
        return "signed off"
    if worker.draining is None:
        return "working"
    return f"{'draining' if worker.claimed else 'drained'} (asked for by {one_line(worker.draining)})"


# ---- drain
# `mcp-tasks drain`: have workers take nothing more, and finish what they have.


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="WORKER...")
@click.option("--undo", is_flag=True, help="Have them take tasks again.")
@takes_store
async def drain_command(*, names: Sequence[str], undo: bool, at: StoreOptions) -> int:
    """Have workers take nothing more and finish what they have. Then they idle until --undo, or until they are ended.

    Each looks with its heartbeat whether it is to drain, so that takes some seconds; `workers` shows how far they are.

    Examples:
      mcp-tasks drain 1f0c9a2b --store postgresql://db/tasks
      mcp-tasks drain 1f0c9a2b --undo --store postgresql://db/tasks

    Exit codes: 0 noted, 2 wrong usage, 10 the store cannot be used.
    """

    async def work(here: Session) -> int:
        for worker in [await find_worker(here, name) for name in names]:
            await (here.operator.undrain(worker) if undo else here.operator.drain(worker))
            here.note("drained", worker.namespace, outcome="undone" if undo else None, worker=worker.name)
        seen = [await find_worker(here, name) for name in names]
        if here.output == "json":
            print_json([worker_json(worker) for worker in seen])
        else:
            for worker in seen:
                word = "takes tasks again" if undo else "is to take nothing more"
                tasks = f"{worker.claimed} task{'' if worker.claimed == 1 else 's'}"
                say(f"{short_worker(worker.name)} {word}; it has {tasks}")
        return Exit.OK

    return await at.run(work)


# ---- shapes
# What is kept of a task, in words and as JSON: whole if its secrets are asked for, and otherwise by size and shape.


MOST_NAMES: Final = 20
"""Names in an object that are shown."""


def shape_of(value: Any, *, inside: bool = True) -> str:
    """What a value looks like, and nothing of what it says: names in an object are those of the tool."""
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


def told(value: Any, *, secrets: bool) -> Any:
    """A value, or its shape."""
    return value if secrets or value is None else shape_of(value)


def record_json(record: TaskRecord, *, secrets: bool = False) -> dict[str, Any]:
    """A task's row as JSON, in the protocol's words where it has some."""
    fields: dict[str, Any] = {
        "taskId": record.id,
        "status": record.status.value,
        "statusMessage": told(record.status_message, secrets=secrets),
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


def dossier_json(dossier: Dossier, now: datetime, *, secrets: bool) -> dict[str, Any]:
    """All that is kept of a task."""
    record, request, outcome = dossier.record, dossier.request, dossier.outcome
    fields: dict[str, Any] = {
        **record_json(record, secrets=secrets),
        "timings": timings_of(record, now),
        "progress": _progress(record, secrets=secrets),
        "questions": {
            key: {"method": ask.method, "params": told(ask.params, secrets=secrets)}
            for key, ask in record.inputs.outstanding.items()
        }
        or None,
        "journal": [
            {"number": entry.number, "kind": entry.kind, "key": entry.key, "value": told(entry.value, secrets=secrets)}
            for entry in dossier.journal
        ],
        "unreadable": dict(dossier.unreadable) or None,
    }
    if request is not None:
        fields["request"] = {
            "bytes": _size(request.arguments),
            "arguments": told(dict(request.arguments), secrets=secrets),
            "protocolVersion": request.protocol_version,
            "client": _client(request.client_info),
            "answersBefore": told(request.input_responses, secrets=secrets),
        }
    if outcome is not None:
        value: Any = json.loads(outcome.body)
        is_error: Any = None
        if not secrets and isinstance(value, dict):
            is_error = cast("dict[str, Any]", value).pop("isError", None)
        fields["outcome"] = {
            "bytes": len(outcome.body),
            # Nothing of what it is about, and what an operator looks for first.
            "isError": is_error if isinstance(is_error, bool) else None,
            "value": told(value, secrets=secrets),
        }
    return {name: value for name, value in fields.items() if value is not None}


def timings_of(record: TaskRecord, now: datetime) -> dict[str, float]:
    """How long what took, in seconds."""
    end = record.finished_at or now
    spans: dict[str, timedelta] = {"age": now - record.created_at, "total": end - record.created_at}
    if record.started_at is not None:
        spans["untilLastRun"] = record.started_at - record.created_at
        spans["lastRun"] = end - record.started_at
    return {name: round(max(span.total_seconds(), 0.0), 3) for name, span in spans.items()}


def _progress(record: TaskRecord, *, secrets: bool) -> dict[str, Any] | None:
    progress = record.progress
    if progress is None:
        return None
    message = told(progress.message, secrets=secrets)
    return {"progress": progress.progress, "total": progress.total, "message": message}


def _client(info: Mapping[str, Any] | None) -> str | None:
    return None if info is None else f"{info.get('name', '?')} {info.get('version', '')}".strip()


def _size(value: Any) -> int:
    return len(json.dumps(value, default=str).encode(errors="surrogatepass"))


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()


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
async def ls_command(
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


# ---- show
# `mcp-tasks show --store URL`: all that is kept of one task.


@click.command()
@click.argument("task_id", metavar="ID")
@click.option(
    "--secrets", is_flag=True, help="Show arguments, questions, answers, steps, messages and results as they are."
)
@takes_store
async def show_command(*, task_id: str, secrets: bool, at: StoreOptions) -> int:
    """Show what is kept of a task: its request, its journal, its runs and how long they took.

    What it is about is told by size and shape, unless you ask for --secrets; the audit log says which you did.

    Examples:
      mcp-tasks show task_AhLNl8TX2b3kq0S9 --store postgresql://db/tasks
      mcp-tasks show task_AhLNl8TX2b3kq0S9 --secrets --json --store sqlite:///tasks.db

    Exit codes: 0 shown, 2 wrong usage, 8 no such task, 10 the store cannot be used.
    """

    async def work(here: Session) -> int:
        record = await here.find(task_id)
        dossier = await here.operator.look(task_id)
        # Before it is shown: what cannot be written down is not to be seen.
        seen = "secrets" if secrets else None
        about = {"owner": record.owner, "tool": record.name, "method": record.method}
        here.note("shown", record.namespace, task_id=record.id, outcome=seen, **about)
        said = dossier_json(dossier, here.operator.now(), secrets=secrets)
        if here.output == "json":
            print_json(said)
        else:
            _show_print(said)
        return Exit.OK

    return await at.run(work)


def _show_print(said: dict[str, Any]) -> None:
    card = Table.grid(padding=(0, 2))
    card.add_column(style="bright_black")
    card.add_column()
    for name, value in said.items():
        if name == "status":
            card.add_row(name, badge(value))
        elif name == "journal":
            card.add_row(name, Text(f"{len(value)} entries"))
            for entry in value:
                line = f"{entry['number']:>3}  {entry['kind']:<8} {entry['key']}  {_text(entry['value'])}"
                card.add_row("", Text(one_line(line)))
        elif isinstance(value, dict):
            for inner, part in cast("dict[str, Any]", value).items():
                if part is not None:
                    card.add_row(f"{name}.{one_line(inner)}", Text(one_line(_text(part))))
        else:
            card.add_row(name, Text(one_line(_text(value))))
    stdout().print(card)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)
