"""Which store, as whom, and where it is written down: what every command on a store takes."""

from __future__ import annotations

import getpass
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from mcp_tasks.cli.options import Output, takes_output, taking
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.cli.terminal.views import print_json, say
from mcp_tasks.core.actor import Actor
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.encryption import keyring_from_environment
from mcp_tasks.errors import EncryptionMismatch, StoreError, TaskUnreadable, UnknownTask, UsageError
from mcp_tasks.files import state_folder
from mcp_tasks.runtime.observing import TaskChange
from mcp_tasks.runtime.operator import Operator, check_there
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.url import store_from_url
from mcp_tasks.telemetry.audit import Audit
from mcp_tasks.telemetry.audit_log import AuditEntry, AuditEvent, AuditLog

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
        return self._namespaces or await self.operator.namespaces()

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
