"""A client of 2025-11-25 that hosts tasks: a server asks it for sampling or elicitation as a task.

    TasksClient(hosting=Hosting(ledger="hosted.db", max_ttl=timedelta(hours=8)))

The client does not trust its servers, so everything that a server can ask for has a limit here.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from mcp_types.methods import parse_server_request
from pydantic import ValidationError

from mcp_tasks._utils import BoundedDict, shielded
from mcp_tasks.encryption import Cipher
from mcp_tasks.errors import InvalidOption, StoreError, StoreUnavailable, TasksError, UnknownTask
from mcp_tasks.legacy.hosting_file import HostedFile
from mcp_tasks.legacy.shapes import (
    PROGRESS_NOTIFICATION,
    RELATED_TASK,
    REQUEST_CANCELLED,
    STATUS_NOTIFICATION,
    VERSION,
    mapping,
    named_result,
    related_data,
    related_task,
    task_fields,
)
from mcp_tasks.model.json import short_message, valid_text
from mcp_tasks.model.limits import FOR_GOOD, is_expired
from mcp_tasks.model.machine import (
    Event,
    RunCompleted,
    RunFailed,
    RunLost,
    RunReleased,
    RunStarted,
    TaskCancelled,
    apply,
)
from mcp_tasks.model.record import TaskRecord, TaskStatus
from mcp_tasks.model.values import check_duration, check_number
from mcp_tasks.protocol.shapes import QUESTION_META_KEY
from mcp_tasks.quiet import get_logger, quietly

if TYPE_CHECKING:
    from mcp_tasks.client.wire import Wire

logger: Final = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Hosting:
    """Limits and options for the tasks that a client hosts.

    A request over one of the limits is answered with an error, and makes no task.

    Attributes:
        ledger: A file that keeps hosted tasks across restarts and crashes: finished tasks can still be fetched, and
            unfinished ones run their callback again. One process at a time can have it open. Without one, tasks live as
            long as this process.
        cipher: Encrypts that file (`mcp_tasks.encryption.Keyring`).
        default_ttl: How long a task is kept after its end if the server does not say.
        max_ttl: How long a task is kept after its end at most.
        max_running: How many tasks one server may have running at once.
        max_tasks: How many tasks are kept for one server, including finished ones.
        max_total: How many tasks are kept for all servers together.
        max_request_size: How large a request may be, in bytes of JSON.
        poll_interval: How often a server should poll; by default that depends on the age of the task.

    Raises:
        InvalidOption: A value is not valid.
    """

    ledger: str | Path | None = None
    cipher: Cipher | None = None
    default_ttl: timedelta = timedelta(hours=1)
    max_ttl: timedelta = timedelta(days=1)
    max_running: int = 16
    max_tasks: int = 256
    max_total: int = 4096
    max_request_size: int = 4 * 2**20
    poll_interval: timedelta | None = None

    def __post_init__(self) -> None:
        if self.ledger is not None and not isinstance(self.ledger, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"ledger must be the path of a file, got {self.ledger!r}")
        check_duration("max_ttl", self.max_ttl, longest=FOR_GOOD)
        check_duration("default_ttl", self.default_ttl)
        if self.poll_interval is not None:
            check_duration("poll_interval", self.poll_interval)
        for name in ("max_running", "max_tasks", "max_total", "max_request_size"):
            check_number(name, getattr(self, name), 1)

    def retention(self, requested: timedelta | None) -> timedelta:
        """How long to keep a task for which a server requested this time, or none."""
        return min(self.default_ttl if requested is None else requested, self.max_ttl)


# ---- tasks


PAGE: Final = 50
"""Tasks on a page of a listing."""

SWEEP_INTERVAL: Final = timedelta(seconds=30)
"""How often expired tasks are deleted. After a crash, a server may have been connected for this much longer than the
file says."""

MAX_LOST: Final = 5
"""How many times in a row the process may die with a callback before its task fails: the callback may be the cause."""

WRITE_RETRY: Final = 1.0
"""Seconds until an outcome that could not be written is written again."""

WORKER: Final = "client"
"""The worker of every run. Only one process at a time has the file."""


class CallbackFailed(Exception):
    """The callback answered with a JSON-RPC error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.error: dict[str, Any] = dict(error)
        super().__init__(str(error.get("message", "")))


class ConnectionEnded(Exception):
    """The connection ended before the callback did."""


class HostingFull(TasksError):
    """A limit of the client is reached; no task was made."""


class TaskHasEnded(TasksError):
    """A task that has ended cannot be cancelled."""

    def __init__(self, record: TaskRecord) -> None:
        super().__init__(f"Cannot cancel task: already in terminal status '{record.status.value}'")


class HostedTasks:
    """All tasks that one `TasksClient` hosts. The file is open while there are connections.

    Args:
        turns: A context that a callback waits to enter, and holds while it runs.
    """

    def __init__(
        self,
        hosting: Hosting,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        turns: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self.hosting = hosting
        self.turns = turns
        self.now = clock
        self._file: HostedFile | None = None
        self._connections = 0
        self._servers: dict[str, ServerTasks] = {}
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def file(self) -> HostedFile:
        """The stored tasks. Raises `StoreUnavailable` if there is no connection."""
        if self._file is None:
            raise StoreUnavailable("hosted tasks are open only while there is a connection")
        return self._file

    def of(self, server: str, identity: str = "") -> ServerTasks:
        """The tasks of one server."""
        # As JSON, so that two pairs never give the same text.
        owner = json.dumps([server, identity])
        if owner not in self._servers:
            self._servers[owner] = ServerTasks(self, owner)
        return self._servers[owner]

    def open(self) -> None:
        """A connection begins. Raises `StoreError` if the ledger cannot be used."""
        self._file = self._file or HostedFile(self.hosting.ledger, self.hosting.cipher)
        self._connections += 1
        self.sweep()
        self._sweeping = self._sweeping or asyncio.create_task(self._keep_sweeping())

    async def close(self) -> None:
        """A connection has ended."""
        self._connections -= 1
        if self._connections:
            return
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
            self._sweeping = None
        # No connection uses any of these, and servers without an address never come back.
        self._servers.clear()
        # Tasks in memory stay for the next connection.
        if self.hosting.ledger is not None and self._file is not None and not self._connections:
            self._file.close()
            self._file = None

    def sweep(self) -> None:
        """Delete expired tasks."""
        now = self.now()
        connected = [owner for owner, tasks in self._servers.items() if tasks.is_connected]
        try:
            for owner in connected:
                self.file.saw(owner, now)
            self.file.delete_expired(now)
            self.file.delete_abandoned(now - SWEEP_INTERVAL, connected=connected)
        except StoreError as exc:
            logger.warning("hosted tasks were not swept: %s", exc)

    async def _keep_sweeping(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL.total_seconds())
            self.sweep()


class ServerTasks:
    """The hosted tasks of one server: its requests about them, and the runs of their callbacks."""

    def __init__(self, hosted: HostedTasks, owner: str) -> None:
        self._hosted = hosted
        self._owner = owner
        self._peers: list[HostedPeer] = []
        self._runs: dict[str, tuple[HostedPeer, asyncio.Task[None]]] = {}
        self._ends: dict[str, asyncio.Future[tuple[TaskRecord, dict[str, Any]]]] = {}

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the server."""
        return bool(self._peers)

    def attach(self, peer: HostedPeer) -> None:
        """A connection to the server is ready: run the callbacks of unfinished tasks."""
        self._peers.append(peer)
        for record in self._hosted.file.unfinished(self._owner):
            if record.id not in self._runs:
                self._run_again(record)
        self._hosted.sweep()

    async def detach(self, peer: HostedPeer) -> None:
        """The connection has ended. Another one, if there is any, takes over what ran over it."""
        try:
            # Unfinished tasks are kept for their ttl from now on.
            self._hosted.file.saw(self._owner, self._hosted.now())
        except StoreError as exc:
            logger.warning("the end of a connection was not noted: %s", exc)
        self._drop(peer)
        runs = [run for over, run in self._runs.values() if over is peer]
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)

    # Requests

    def create(
        self, method: str, request: Mapping[str, Any], requested_ttl: timedelta | None, *, question: str | None = None
    ) -> TaskRecord:
        """Accept a request as a task, and start its callback. Durable on return. Raises `HostingFull` or `StoreError`.

        Our servers name the `question`. If a server asks it again, because it died before it had written down the id of
        the task, it gets the same task, and the user is not asked twice.
        """
        file, hosting = self._hosted.file, self._hosted.hosting
        known = None if question is None else file.asked(self._owner, question)
        if known is not None and file.request(known.id) == request and not self._is_expired(known):
            return known
        self._check_limits(request)
        now = self._hosted.now()
        new = TaskRecord(
            # 256 bits, so that it cannot be guessed.
            id=secrets.token_urlsafe(32),
            owner=self._owner,
            name=method,
            method=method,
            created_at=now,
            updated_at=now,
            retention=hosting.retention(requested_ttl),
            poll_interval=hosting.poll_interval,
        )
        record = apply(new, RunStarted(worker=WORKER), now)
        file.add(record, request, question=question)
        logger.info("hosting task %s, a %s, for %s", record.id[:8], method, self._owner)
        self._start(record)
        return record

    def get(self, task_id: str) -> TaskRecord:
        """A task of this server. `UnknownTask` if it does not exist, has expired, or is another server's."""
        record = self._hosted.file.get(self._owner, task_id)
        if record is None or self._is_expired(record):
            logger.info("%s asked for a task that it does not have", self._owner)
            raise UnknownTask(task_id)
        return record

    def page(self, after: int) -> tuple[list[TaskRecord], int | None]:
        """Tasks of this server after a position, oldest first, and the position of the next page."""
        found = self._hosted.file.page(self._owner, after=after, limit=PAGE + 1)
        records = [record for _, record in found[:PAGE] if record is not None and not self._is_expired(record)]
        return records, found[PAGE - 1][0] if len(found) > PAGE else None

    def cancel(self, task_id: str) -> TaskRecord:
        """Cancel a task and its callback. Durable on return. Raises `UnknownTask` or `TaskHasEnded`."""
        record = self.get(task_id)
        if record.is_final:
            raise TaskHasEnded(record)
        record = self._change(record, TaskCancelled(reason="The task was cancelled by request."))
        if task_id in self._runs:
            self._runs[task_id][1].cancel()
        return record

    async def end_of(self, task_id: str) -> tuple[TaskRecord, dict[str, Any]]:
        """The task once it has ended, with its outcome: a `result`, an `error`, or neither if it was cancelled."""
        record = self.get(task_id)
        if record.is_final:
            return record, self._hosted.file.outcome(task_id)
        # Not read again when it ends: by then it may have expired, and a request that waited still gets it.
        end = self._ends.setdefault(task_id, asyncio.get_running_loop().create_future())
        return await shielded(end)

    def _is_expired(self, record: TaskRecord) -> bool:
        return is_expired(record, self._hosted.now())

    def _check_limits(self, request: Mapping[str, Any]) -> None:
        limit = self._hosted.hosting.max_request_size
        if (size := len(json.dumps(request))) > limit:
            raise HostingFull(f"The request has {size:,} bytes of JSON, and {limit:,} are taken")
        problem = self._over_limit()
        if problem is not None:
            # Expired tasks do not count, and are deleted only now and then.
            self._hosted.sweep()
            problem = self._over_limit()
        if problem is not None:
            raise HostingFull(problem)

    def _over_limit(self) -> str | None:
        hosting = self._hosted.hosting
        running, kept, total = self._hosted.file.counts(self._owner)
        if running >= hosting.max_running:
            return f"{running} tasks of this server are running, and no more are taken at once; try again later"
        if kept >= hosting.max_tasks or total >= hosting.max_total:
            return "No more tasks are kept now; try again later, and ask for a shorter ttl"
        return None

    # Runs

    def _start(self, record: TaskRecord) -> None:
        peer = self._peers[-1]
        run = asyncio.create_task(self._run(peer, record))
        self._runs[record.id] = (peer, run)
        run.add_done_callback(lambda _: self._over(record.id))

    def _run_again(self, record: TaskRecord) -> None:
        if record.worker is not None:
            # The process died with it: a run that was stopped in order has no worker.
            record = self._change(record, RunLost(attempt=record.attempt))
        record = self._change(record, RunStarted(worker=WORKER))
        if record.lost >= MAX_LOST:
            self._fail(record, f"The client died {record.lost} times in a row while it answered this")
        else:
            self._start(record)

    def _over(self, task_id: str) -> None:
        """A run has ended. If its task has not, another connection takes over."""
        self._runs.pop(task_id, None)
        if not self._peers:
            return
        try:
            record = self._hosted.file.get(self._owner, task_id)
            if record is not None and not record.is_final:
                self._run_again(record)
        except StoreError as exc:
            logger.warning("hosted task %s is not run again: %s", task_id[:8], exc)

    async def _run(self, peer: HostedPeer, record: TaskRecord) -> None:
        try:
            async with self._hosted.turns():
                result = await peer.run(record, self._hosted.file.request(record.id))
        except CallbackFailed as exc:
            message = short_message(valid_text(str(exc)))
            await self._write(record, RunFailed(attempt=record.attempt, message=message), {"error": exc.error})
        except ConnectionEnded:
            self._drop(peer)
            self._release(record)
        except asyncio.CancelledError:
            self._release(record)
        except Exception:
            logger.error("hosted task %s failed", record.id[:8], exc_info=quietly())
            self._fail(record, "The client failed to answer")
        else:
            await self._write(record, RunCompleted(attempt=record.attempt), {"result": result})

    async def _write(self, record: TaskRecord, event: Event, outcome: Mapping[str, Any]) -> None:
        """Write an outcome, for as long as that takes: the user who answered is not asked again."""
        while True:
            try:
                self._change(record, event, outcome)
                return
            except StoreUnavailable as exc:
                logger.warning("the outcome of hosted task %s cannot be written yet: %s", record.id[:8], exc)
                await asyncio.sleep(WRITE_RETRY)

    def _fail(self, record: TaskRecord, message: str) -> None:
        error = {"code": INTERNAL_ERROR, "message": message}
        self._change(record, RunFailed(attempt=record.attempt, message=message), {"error": error})

    def _release(self, record: TaskRecord) -> None:
        try:
            self._change(record, RunReleased(attempt=record.attempt))
        except StoreError as exc:
            # It counts as lost, which is only a step towards its failure.
            logger.warning("hosted task %s is left as it is: %s", record.id[:8], exc)

    def _change(self, record: TaskRecord, event: Event, outcome: Mapping[str, Any] | None = None) -> TaskRecord:
        """The task after an event, durable on return. An event after the task's end changes nothing."""
        current = self._hosted.file.get(self._owner, record.id)
        if current is None:
            return record
        changed = apply(current, event, self._hosted.now())
        if changed is not current:
            self._hosted.file.save(changed, outcome)
        if changed.is_final and not current.is_final:
            # Not the whole id, which is enough to fetch the result.
            logger.info("hosted task %s is %s", changed.id[:8], changed.status.value)
            if (end := self._ends.pop(changed.id, None)) is not None:
                end.set_result((changed, dict(outcome or {})))
            for peer in self._peers:
                peer.ended(changed)
        return changed

    def _drop(self, peer: HostedPeer) -> None:
        if peer in self._peers:
            self._peers.remove(peer)
        if not self._peers:
            # Requests that waited did so over a connection.
            self._ends.clear()


# ---- wire


AUGMENTABLE: Final[Mapping[str, tuple[str, str]]] = {
    "sampling/createMessage": ("sampling", "createMessage"),
    "elicitation/create": ("elicitation", "create"),
}
"""The requests that may be tasks, by their path in `capabilities.tasks.requests`. The first part is also the capability
of a client that takes them at all."""


def tasks_capability(declared: Mapping[str, Any]) -> dict[str, Any] | None:
    """`capabilities.tasks` for a client with these capabilities; None if it takes no request that may be a task."""
    requests: dict[str, dict[str, dict[str, Any]]] = {
        name: {verb: {}} for name, verb in AUGMENTABLE.values() if declared.get(name) is not None
    }
    return {"list": {}, "cancel": {}, "requests": requests} if requests else None


def task_id_of(params: Mapping[str, Any]) -> str:
    """The id in the params of `tasks/get` and others. `related-task` in their `_meta` has no meaning."""
    task_id = params.get("taskId")
    if not isinstance(task_id, str):
        raise MCPError(code=INVALID_PARAMS, message="taskId must be a string")
    return task_id


def ttl_of(params: Mapping[str, Any]) -> timedelta | None:
    """How long the server wants the task to be kept, if it says so."""
    task: object = params.get("task")
    if not isinstance(task, Mapping):
        raise MCPError(code=INVALID_PARAMS, message="task must be an object, such as {} or {'ttl': 60000}")
    ttl: object = cast("Mapping[str, object]", task).get("ttl")
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 <= ttl < math.inf:
        raise MCPError(code=INVALID_PARAMS, message="task.ttl must be a number of milliseconds, and not negative")
    # Limited first: no `timedelta` may be that long.
    return timedelta(milliseconds=min(ttl, FOR_GOOD / timedelta(milliseconds=1)))


def plain_request(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The params of the plain request, checked: one that no callback would get makes no task."""
    plain = {name: value for name, value in params.items() if name != "task"}
    try:
        parse_server_request(method, VERSION, plain)
    except ValidationError as exc:
        where = ", ".join(".".join(map(str, error["loc"])) for error in exc.errors()[:3])
        raise MCPError(
            code=INVALID_PARAMS, message=f"Invalid params for {method}: see {where or 'its schema'}"
        ) from exc
    return plain


def question_of(request: Mapping[str, Any]) -> str | None:
    """The name of the question, if the server is one of ours."""
    meta = mapping(request.get("_meta"))
    key = meta.get(QUESTION_META_KEY)
    return json.dumps([meta.get(RELATED_TASK), key]) if isinstance(key, str) else None


def position_of(params: Mapping[str, Any]) -> int:
    """The position in a listing that a cursor stands for."""
    cursor = params.get("cursor")
    if cursor is None:
        return 0
    try:
        number = int(base64.urlsafe_b64decode(cast(str, cursor).encode("ascii")).decode("ascii"))
    except (AttributeError, binascii.Error, ValueError):
        number = -1
    if not 0 < number < 2**63 or cursor_at(number) != cursor:
        raise MCPError(code=INVALID_PARAMS, message="Invalid cursor: it was not given by this client")
    return number


def cursor_at(position: int) -> str:
    """The cursor for a position in a listing."""
    return base64.urlsafe_b64encode(b"%020d" % position).decode("ascii")


def render_end(record: TaskRecord, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `tasks/result`, or its error: that of the request, with the task named."""
    if record.status is TaskStatus.COMPLETED:
        return named_result(outcome.get("result") or {}, record.id)
    if record.status is TaskStatus.FAILED and "error" in outcome:
        error = outcome["error"]
        raise MCPError(error["code"], error["message"], related_data(record.id, error.get("data")))
    raise MCPError(REQUEST_CANCELLED, "The task was cancelled: it has no result", related_data(record.id, None))


def refusal(exc: TasksError) -> ErrorData:
    """The error that a server gets when its request is refused."""
    match exc:
        case UnknownTask() | TaskHasEnded():
            return ErrorData(code=INVALID_PARAMS, message=str(exc))
        case HostingFull():
            return ErrorData(code=INTERNAL_ERROR, message=str(exc))
        case StoreError():
            # Not its text, which names our files.
            return ErrorData(code=INTERNAL_ERROR, message="The client cannot keep tasks now; try again later")
        case _:
            return ErrorData(code=INTERNAL_ERROR, message="The client failed")


# ---- connection


MAX_OPEN: Final = 256
"""Requests about tasks that a server may have open on one connection, most of which wait for results."""

MAX_UNREAD: Final = 1024
"""Answers that a server may leave unread before its requests are dropped."""

LAST_TOKENS: Final = 1024
"""Progress tokens that are remembered after their tasks."""

CANCEL_LIMIT: Final = 1.0
"""Seconds to give the cancellation of a callback to the session, which may have ended."""

_METHODS: Final = frozenset({"tasks/get", "tasks/result", "tasks/list", "tasks/cancel"})


class HostedPeer:
    """A handler of the messages of one connection: it declares that the client hosts tasks, and answers the server's
    requests about them. Raises `StoreError` if the ledger cannot be used."""

    def __init__(self, wire: Wire, hosted: HostedTasks, tasks: ServerTasks) -> None:
        self._wire = wire
        self._hosted = hosted
        self._tasks = tasks
        self._handshake: RequestId | None = None
        self._offered: frozenset[str] = frozenset()
        self._speaks_tasks = False
        self._is_active = False
        self._callbacks: dict[RequestId, asyncio.Future[dict[str, Any]]] = {}
        self._answering: dict[RequestId, asyncio.Task[Any]] = {}
        # The task of each progress token, and whether it runs.
        self._tokens: BoundedDict[Any, tuple[str, bool]] = BoundedDict(LAST_TOKENS)
        hosted.open()
        wire.spawn(self._live())

    async def _live(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self._tasks.detach(self)
                await self._hosted.close()

    # Messages of the session

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """See a message of the session, and keep the answers of callbacks."""
        match message:
            case JSONRPCRequest(method="initialize"):
                return self._declare(message)
            case JSONRPCNotification(method="notifications/initialized") if self._speaks_tasks:
                self._is_active = True
                self._tasks.attach(self)
            case JSONRPCNotification(method=method) if method == PROGRESS_NOTIFICATION:
                return self._tie_progress(message)
            case JSONRPCResponse(id=request_id, result=result) if request_id in self._callbacks:
                self._settle(request_id, result)
                return None
            case JSONRPCError(id=request_id, error=error) if request_id in self._callbacks:
                self._settle(request_id, error)
                return None
            case _:
                pass
        return message

    def _declare(self, message: JSONRPCRequest) -> JSONRPCRequest:
        params = dict(message.params or {})
        capabilities = dict(params.get("capabilities") or {})
        tasks = tasks_capability(capabilities)
        if tasks is None:
            return message
        self._handshake = message.id
        self._offered = frozenset(method for method, (name, _) in AUGMENTABLE.items() if name in tasks["requests"])
        params["capabilities"] = {**capabilities, "tasks": tasks}
        return message.model_copy(update={"params": params})

    def _settle(self, request_id: RequestId, outcome: dict[str, Any] | ErrorData) -> None:
        answer = self._callbacks[request_id]
        if answer.done():
            return
        if not isinstance(outcome, ErrorData):
            answer.set_result(outcome)
        elif outcome.code == CONNECTION_CLOSED and outcome.message == "Connection closed":
            # The SDK's answer for a callback that it cancels when the session ends.
            answer.set_exception(ConnectionEnded())
        else:
            answer.set_exception(CallbackFailed(outcome.model_dump(mode="json", exclude_none=True)))

    def _tie_progress(self, message: JSONRPCNotification) -> JSONRPCNotification | None:
        """Name the task in progress of its callback; drop it once the task has ended."""
        params = dict(message.params or {})
        task_id, is_running = self._tokens.get(params.get("progressToken"), (None, True))
        if task_id is None:
            return message
        if not is_running:
            return None
        params["_meta"] = {**(params.get("_meta") or {}), **related_task(task_id)}
        return message.model_copy(update={"params": params})

    # Messages of the server

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """See a message of the server, and take requests about tasks."""
        match message:
            case JSONRPCResponse(id=request_id, result=result) if request_id == self._handshake:
                self._speaks_tasks = result.get("protocolVersion") == VERSION
            case JSONRPCRequest(method=method, params=params) if self._is_active:
                # A request of a kind that was not declared is processed as if it had no `task`.
                if method in _METHODS or (method in self._offered and "task" in (params or {})):
                    self._take(message)
                    return None
            case JSONRPCNotification(method="notifications/cancelled", params=dict() as params):
                answering = self._answering.get(_hashable(params.get("requestId")))
                if answering is not None:
                    answering.cancel()
                    return None
            case _:
                pass
        return message

    def _take(self, message: JSONRPCRequest) -> None:
        if len(self._answering) >= MAX_UNREAD:
            logger.warning("dropped a %s: the server has %d open", message.method, len(self._answering))
            return
        is_busy = len(self._answering) >= MAX_OPEN
        answering = self._wire.spawn(self._answer(message, is_busy=is_busy))
        self._answering[message.id] = answering

        def answered(_: object) -> None:
            # A server may use an id twice.
            if self._answering.get(message.id) is answering:
                del self._answering[message.id]

        answering.add_done_callback(answered)

    async def _answer(self, message: JSONRPCRequest, *, is_busy: bool) -> None:
        outcome: Mapping[str, Any] | ErrorData
        try:
            if is_busy:
                raise MCPError(code=INTERNAL_ERROR, message=f"{MAX_OPEN} requests about tasks are open; try later")
            outcome = await self._result(message.method, message.params or {})
        except MCPError as exc:
            outcome = exc.error
        except TasksError as exc:
            logger.info("refused a %s: %s", message.method, exc)
            outcome = refusal(exc)
        except Exception:
            logger.error("a %s could not be answered", message.method, exc_info=quietly())
            outcome = ErrorData(code=INTERNAL_ERROR, message="The client failed")
        try:
            await self._wire.reply(message.id, outcome)
        except MCPError:
            logger.debug("the connection ended before a %s was answered", message.method)

    async def _result(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        match method:
            case "tasks/get":
                return self._render(self._tasks.get(task_id_of(params)))
            case "tasks/cancel":
                return self._render(self._tasks.cancel(task_id_of(params)))
            case "tasks/list":
                records, after = self._tasks.page(position_of(params))
                page: dict[str, Any] = {"tasks": [self._render(record) for record in records]}
                return page if after is None else {**page, "nextCursor": cursor_at(after)}
            case "tasks/result":
                return render_end(*await self._tasks.end_of(task_id_of(params)))
            case _:
                ttl, request = ttl_of(params), plain_request(method, params)
                record = self._tasks.create(method, request, ttl, question=question_of(request))
                # Tasks MUST begin as `working`, even one that existed before and is further by now.
                return {"task": {**self._render(record), "status": TaskStatus.WORKING.value}}

    def _render(self, record: TaskRecord) -> dict[str, Any]:
        return task_fields(record, self._hosted.now(), status=record.status.value, message=record.status_message)

    # Callbacks

    async def run(self, record: TaskRecord, request: Mapping[str, Any]) -> dict[str, Any]:
        """Have the session's callback answer the plain request. Cancelled, it cancels the callback.

        Raises `CallbackFailed` if the callback answered with an error, and `ConnectionEnded`.
        """
        request_id = self._wire.new_id()
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._callbacks[request_id] = answer
        token = _hashable((request.get("_meta") or {}).get("progressToken"))
        if token is not None:
            self._tokens[token] = (record.id, True)
        plain = JSONRPCRequest(jsonrpc="2.0", id=request_id, method=record.method, params=dict(request))
        try:
            await self._wire.deliver(plain)
            return await answer
        except asyncio.CancelledError:
            params = {"requestId": request_id, "reason": "the task was cancelled"}
            with anyio.move_on_after(CANCEL_LIMIT, shield=True):
                await self._wire.deliver(
                    JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
                )
            raise
        finally:
            if token is not None:
                self._tokens[token] = (record.id, False)
            self._callbacks.pop(request_id, None)

    def ended(self, record: TaskRecord) -> None:
        """Tell the server that a task has ended. Without `related-task`, because the id is in the task."""
        # Its progress is not sent any more, though its callback may take a while to end.
        for token in [token for token, (task_id, _) in self._tokens.items() if task_id == record.id]:
            self._tokens[token] = (record.id, False)
        self._wire.spawn(self._wire.notify(STATUS_NOTIFICATION, self._render(record)))


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None
