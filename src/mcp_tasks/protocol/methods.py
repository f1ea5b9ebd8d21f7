"""The methods of tasks: check the caller, parse, call the runtime, render.

What every method needs to know of its caller is decided in one place each: the era in `Dialects.require`, the
declaration in `TasksProtocol.enter`, the owner in `Owners.of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from mcp_types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from mcp_tasks.errors import (
    AnswerRefused,
    KeyRefused,
    LimitExceeded,
    OwnerRequired,
    StoreError,
    TasksError,
    UnknownTask,
)
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.record import Actor, TaskRecord
from mcp_tasks.protocol.answers import AnswerCheck, answers_to, turns_of
from mcp_tasks.protocol.cache import Texts
from mcp_tasks.protocol.dialect import Dialect, Dialects, Message, outcome_of
from mcp_tasks.protocol.errors import RpcError, refusing
from mcp_tasks.protocol.limits import Limiting, hold
from mcp_tasks.protocol.listen import Listening, StreamEnds, honoured
from mcp_tasks.protocol.owners import Caller, Owners
from mcp_tasks.protocol.shapes import NAME_HEADER, decode_header
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.observers import Refusal, TaskAccess, Verb

# ---- telling
# Telling those who watch of looks at tasks and of refusals: one place for all doors, and nothing where nobody watches.


_VERBS: Final[Mapping[str, Verb]] = {
    "tasks/get": "read",
    "tasks/result": "read",
    "tasks/list": "list",
    "tasks/update": "answer",
    "tasks/cancel": "cancel",
    "subscriptions/listen": "listen",
    "tools/call": "create",
    "prompts/get": "create",
    "resources/read": "create",
}

_LONGEST_ID: Final = 256
"""Of what a caller names and is refused: it may be anything, and waits in memory for those who are told."""


def tell_look(runtime: TaskRuntime, record: TaskRecord, method: str) -> None:
    """A caller has been shown a task of its own."""
    if runtime.tracing is not None:
        runtime.tracing.touched(record)
    if runtime.observers.want(TaskAccess):
        verb, at = _VERBS.get(method, "read"), runtime.now().timestamp()
        runtime.observers.note(TaskAccess(verb, method, record.owner, at, record.id, record.name))


def tell_local_look(runtime: TaskRuntime, record: TaskRecord) -> None:
    """Code of the server's own has looked at a task, for nobody that could be named."""
    if runtime.observers.want(TaskAccess):
        runtime.observers.note(TaskAccess("read", "local", None, runtime.now().timestamp(), record.id, record.name))


def tell_listing(runtime: TaskRuntime, owner: str | None, method: str, shown: int) -> None:
    """A caller has been shown tasks of its own, so many of them."""
    if runtime.observers.want(TaskAccess):
        runtime.observers.note(TaskAccess("list", method, owner, runtime.now().timestamp(), detail=f"{shown} tasks"))


def tell_listening(runtime: TaskRuntime, owner: str | None, named: int, own: Sequence[str]) -> None:
    """A caller is told of tasks of its own from now on. Ids that it named and that are none were failed look-ups."""
    observers, method, now = runtime.observers, "subscriptions/listen", runtime.now().timestamp()
    if observers.want(TaskAccess):
        for task_id in own:
            observers.note(TaskAccess("listen", method, owner, now, task_id))
    if named > len(own):
        observers.note(TaskAccess("listen", method, owner, now, refused=Refusal.UNKNOWN, times=named - len(own)))


def tell_refusal(
    runtime: TaskRuntime, owner: str | None, method: str, why: Exception, *, task_id: object = None
) -> None:
    """A request is answered with a refusal."""
    if not runtime.observers.want(Refusal):
        return
    refusal, detail = refusal_of(why)
    named = task_id[:_LONGEST_ID] if isinstance(task_id, str) else None
    verb, at = _VERBS.get(method, "read"), runtime.now().timestamp()
    runtime.observers.note(TaskAccess(verb, method, owner, at, task_id=named, refused=refusal, detail=detail))


def refusal_of(why: Exception) -> tuple[Refusal, str | None]:
    """Why a request is refused, in one word, and which limit or what of the key it is."""
    cause = why.__cause__ if isinstance(why, RpcError) and why.__cause__ is not None else why
    match cause:
        case UnknownTask():
            return Refusal.UNKNOWN, None
        case LimitExceeded():
            return Refusal.LIMIT, cause.limit
        case KeyRefused():
            return Refusal.KEY, cause.reason
        case OwnerRequired():
            return Refusal.OWNER, None
        case AnswerRefused():
            return Refusal.ANSWER, None
        case StoreError():
            return Refusal.FAILED, None
        case _:
            return _by_code(why) if isinstance(why, RpcError) else (Refusal.FAILED, None)


def _by_code(why: RpcError) -> tuple[Refusal, str | None]:
    if isinstance(why.data, Mapping):
        data = cast("Mapping[str, Any]", why.data)
        reason = str(data.get("reason"))
        if reason == "limit":
            return Refusal.LIMIT, str(data.get("limit"))
        if reason.startswith("key_"):
            return Refusal.KEY, reason
    match why.code:
        case value if value == INVALID_REQUEST:
            return Refusal.OWNER, None
        case value if value in (METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY):
            return Refusal.UNDECLARED, None
        case value if value in (INVALID_PARAMS, HEADER_MISMATCH):
            return Refusal.MALFORMED, None
        case _:
            return Refusal.FAILED, None


_NOT_ADMITTED: Final = frozenset({METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY})
"""What `TasksProtocol.enter` refuses with, before a request counts."""

CANCELLED_BY_CLIENT = "Cancelled by the client"


class TasksProtocol:
    """Answers requests about tasks, whichever way they come in.

    Every method takes the caller and the raw params, and raises `RpcError` for what it refuses.

    Args:
        runtime: The running runtime.
        dialects: The eras that are spoken.
        owners: Whom the tasks of a caller belong to.
        limiting: What callers may take.
        require_name_header: Whether an HTTP request without the `Mcp-Name` header is refused.
        stream_ends: What ends streams in time.
    """

    def __init__(
        self,
        runtime: Callable[[], TaskRuntime],
        *,
        dialects: Dialects,
        owners: Owners,
        limiting: Limiting | None = None,
        require_name_header: bool = False,
        stream_ends: StreamEnds | None = None,
    ) -> None:
        self.limiting: Limiting = limiting or Limiting(Limits())
        self._runtime = runtime
        self._dialects = dialects
        self._owners = owners
        self._require_name_header = require_name_header
        self.stream_ends: StreamEnds = stream_ends or StreamEnds()

    # Who calls

    def enter(self, caller: Caller, method: str) -> Dialect:
        """The dialect in which the caller uses the method.

        Raises:
            RpcError: -32601 in an era without it; -32021 if the client did not declare that it takes tasks.
        """
        dialect = self._dialects.require(caller, method)
        if not dialect.declares_tasks(caller):
            raise dialect.undeclared()
        return dialect

    def owner(self, caller: Caller) -> str | None:
        """Whom the tasks of the caller belong to.

        Raises:
            RpcError: -32600, the caller has no owner where one is required; -32603, the author's rule failed.
        """
        return self._owners.of(caller)

    def has_owner(self, caller: Caller) -> bool:
        """Whether the tasks of the caller belong to anybody, for what is only shown."""
        return self._owners.has(caller)

    def known_owner(self, caller: Caller) -> str | None:
        """The owner of the caller's tasks as far as there is one. Refuses nothing: for what may be done without one."""
        return self._owners.known(caller)

    async def admit(self, caller: Caller, turns: int = 1) -> str | None:
        """Let a caller ask about tasks, at the pace that it may. Gives whom its tasks belong to.

        Before anything is looked at but what `enter` says, so that whatever is refused for another reason has counted.

        Args:
            turns: As how many requests it counts.

        Raises:
            RpcError: -32010, it asks too often; otherwise as `owner`.
        """
        owner = self.owner(caller)
        if owner is not None:
            with refusing():
                await self.limiting.request(owner, turns)
        return owner

    def hands_over(self, caller: Caller, method: str, refused: RpcError) -> None:
        """Let a request that was refused here not count: it is handed to another door, where it counts."""
        if refused.code not in _NOT_ADMITTED:
            with suppress(RpcError):
                owner = self.owner(caller)
                self.limiting.not_asked(owner)
                if method == "tasks/cancel":
                    self.limiting.not_counted("cancels", owner, caller.connection)
                if isinstance(refused.__cause__, UnknownTask):
                    self.limiting.not_counted("unknown", owner, caller.connection)

    # tasks/*

    async def get(self, caller: Caller, params: JsonObject) -> Message:
        """`tasks/get`: the task with its outcome or its open questions."""
        dialect, task_id, owner = await self._asked_for(caller, params)
        _, answer = await self._look(caller, dialect, task_id, owner)
        return answer

    async def get_text(self, caller: Caller, params: JsonObject, texts: Texts) -> bytes:
        """The same as JSON: what was said before, if the task is still as it was then."""
        dialect, task_id, owner = await self._asked_for(caller, params)
        runtime = self._runtime()
        text, now = texts.find(task_id, owner), runtime.now()
        if text is not None:
            with refusing():
                if await runtime.is_current(text.record, owner=owner, now=now):
                    tell_look(runtime, text.record, "tasks/get")
                    return text.at(now)
        record, answer = await self._look(caller, dialect, task_id, owner)
        return texts.add(dialect, record, answer).at(runtime.now())

    async def update(self, caller: Caller, params: JsonObject) -> Message:
        """`tasks/update`: take answers to open questions. Acknowledged once they are durable."""
        dialect = self.enter(caller, "tasks/update")
        owner = await self.admit(caller)
        task_id, answers = dialect.parse_answers(params)
        record = await self._find(caller, owner, dialect, task_id)
        answers = answers_to(record, answers)
        with refusing():
            await self.count_answers(owner, answers)
            check = AnswerCheck(answers, self.limiting.limits)
            await self._runtime().answer(record, answers, actor=actor_of(record), check=check)
        return dialect.acknowledgement()

    async def count_answers(self, owner: str | None, answers: JsonObject) -> None:
        """Let answers be checked, which takes time for each value in them: as more requests, where they have many.

        Raises:
            LimitExceeded: Their caller asks far too often.
        """
        if (turns := turns_of(answers)) > 1:
            await self.limiting.request(owner, turns - 1)

    async def cancel(self, caller: Caller, params: JsonObject) -> Message:
        """`tasks/cancel`. A task that has ended is acknowledged too, and stays as it is."""
        dialect = self.enter(caller, "tasks/cancel")
        owner = await self.admit(caller)
        with refusing():
            await self.limiting.cancel(owner, caller.connection)
        record = await self._find(caller, owner, dialect, dialect.parse_task_id(params))
        with refusing():
            await self._runtime().cancel(record, CANCELLED_BY_CLIENT, actor=actor_of(record))
        return dialect.acknowledgement()

    async def _asked_for(self, caller: Caller, params: JsonObject) -> tuple[Dialect, str, str | None]:
        dialect = self.enter(caller, "tasks/get")
        owner = await self.admit(caller)
        task_id = dialect.parse_task_id(params)
        self._check_name_header(caller, task_id)
        if owner is None and self.limiting.counts_polls:
            # Only of tasks that exist: ids by the million would have those forgotten that are asked for too often.
            with refusing():
                await self.count_poll(await self._get(caller, task_id, owner))
        return dialect, task_id, owner

    async def count_poll(self, record: TaskRecord) -> None:
        """Let a task be looked at, which is there; a moment later, if that was done too often and it is nobody's.

        Raises:
            LimitExceeded: It is done far too often.
        """
        if record.owner is None:
            await self.limiting.poll(record.id)

    async def _look(
        self, caller: Caller, dialect: Dialect, task_id: str, owner: str | None
    ) -> tuple[TaskRecord, Message]:
        runtime = self._runtime()
        with refusing():
            try:
                async with self.limiting.unread.turn(owner):
                    record, *read = await runtime.get_with_outcome(task_id, owner=owner)
                    _check_method(record, dialect)
                    outcome = hold(owner, read if read[0] is not None else [await outcome_of(runtime, record)])
            except UnknownTask:
                await self.limiting.unknown(owner, caller.connection)
                raise
        tell_look(runtime, record, "tasks/get")
        return record, dialect.task(record, outcome, runtime.now())

    # subscriptions/listen

    def asks_to_listen(self, caller: Caller, params: JsonObject) -> bool:
        """Whether a listen request is about tasks. One that is not, and every one of an era without tasks, is not ours
        to serve."""
        dialect = self._dialects.find(caller)
        return dialect is not None and dialect.asks_to_listen(params)

    async def listen(self, caller: Caller, params: JsonObject) -> Listening:
        """`subscriptions/listen`: the caller's own tasks among those that it names, and their states from now on."""
        # Before the ids are looked at: to a client that has no tasks they are not malformed, but none of its business.
        dialect = self.enter(caller, "subscriptions/listen")
        owner = await self.admit(caller)
        named = dialect.parse_listened(params)
        with refusing():
            self.limiting.check_stream(len(named))
            runtime = self._runtime()
            # Before anything is looked up or told: who may have no stream is shown nothing.
            closed = self.limiting.open_stream(owner)
            try:
                own = await honoured(runtime, named, owner, methods=dialect.methods)
                if len(own) < len(named):
                    await self.limiting.unknown(owner, caller.connection)
            except BaseException:
                closed()
                raise
            tell_listening(runtime, owner, len(named), own)
            return Listening(
                runtime,
                dialect,
                own,
                owner,
                ends=self.stream_ends,
                ends_in=self.stream_ends.after(caller),
                closed=closed,
                unread=self.limiting.unread,
            )

    async def open_stream(self, caller: Caller) -> Callable[[], None]:
        """`subscriptions/listen` that is not about tasks, and served by others: it counts as one of its owner's streams
        until what this gives is called.

        Raises:
            RpcError: -32010, the owner asks too often, or has as many streams as it may have.
        """
        owner = self.known_owner(caller)
        with refusing():
            await self.limiting.request(owner)
            return self.limiting.open_stream(owner)

    # tools/call

    def speaks(self, version: str) -> bool:
        """Whether there are tasks in that version at all, as this class has them."""
        return self._dialects.speaks(version)

    def takes_tasks(self, caller: Caller) -> bool:
        """Whether a call of this caller may be answered with a task."""
        dialect = self._dialects.find(caller)
        return dialect is not None and dialect.declares_tasks(caller)

    def cannot_take(self, caller: Caller, tool: str) -> RpcError:
        """The refusal of a call that can only become a task, from a caller that takes none."""
        dialect = self._dialects.find(caller)
        if dialect is None:
            # 2025-11-25, "Tool-Level Negotiation": a tool that must be a task and is not called as one is not there.
            hint = ": add params.task" if caller.protocol_version == LATEST_HANDSHAKE_VERSION else ""
            return RpcError(METHOD_NOT_FOUND, f"Tool {tool!r} can only be called as a task{hint}")
        return dialect.undeclared()

    def dialect(self, caller: Caller) -> Dialect:
        """The dialect in which a call is answered that became a task, or nearly did."""
        return self._dialects.require(caller, "tools/call")

    def created(self, caller: Caller, record: TaskRecord) -> Message:
        """The answer to a call that became a task."""
        # As of its last change: the task is there, and the answer goes out also while the server stops.
        return self.dialect(caller).created(record, record.updated_at)

    async def find(self, caller: Caller, task_id: str, *, to_cancel: bool = False) -> TaskRecord:
        """The caller's task of that id, whichever era it was made in and whatever it is of.

        Raises:
            RpcError: -32010, it asks too often; -32602, there is no such task for this caller; -32603, it cannot be
                read.
        """
        owner = await self.admit(caller)
        with refusing():
            if to_cancel:
                await self.limiting.cancel(owner, caller.connection)
            return await self._get(caller, task_id, owner)

    async def _get(self, caller: Caller, task_id: str, owner: str | None, dialect: Dialect | None = None) -> TaskRecord:
        """The task; if there is none, that counts."""
        try:
            record = await self._runtime().get(task_id, owner=owner)
            if dialect is not None:
                _check_method(record, dialect)
        except UnknownTask:
            await self.limiting.unknown(owner, caller.connection)
            raise
        return record

    async def _find(self, caller: Caller, owner: str | None, dialect: Dialect, task_id: str) -> TaskRecord:
        """The caller's task of that id, as the caller's era has it: tasks of methods that it cannot call as tasks are
        not there.

        Raises:
            RpcError: -32020, a header names another task; -32602, there is no such task for this caller; -32603, it
                cannot be read.
        """
        self._check_name_header(caller, task_id)
        with refusing():
            record = await self._get(caller, task_id, owner, dialect)
        tracing = self._runtime().tracing
        if tracing is not None:
            tracing.touched(record)
        return record

    # Who watches

    def saw(self, record: TaskRecord, method: str) -> None:
        """Take note that a caller was shown a task of its own, in a way that this class does not serve itself."""
        tell_look(self._runtime(), record, method)

    def saw_list(self, owner: str | None, method: str, shown: int) -> None:
        """The same of a listing that showed so many tasks."""
        tell_listing(self._runtime(), owner, method, shown)

    def refused(self, caller: Caller, method: str, why: Exception, *, task_id: object = None) -> None:
        """Take note that a request is answered with a refusal. For doors, where they answer."""
        # It may be refused because it has none.
        owner = self._owners.known(caller)
        with suppress(TasksError):
            # Without a runtime there is nobody to be told.
            tell_refusal(self._runtime(), owner, method, why, task_id=task_id)

    def _check_name_header(self, caller: Caller, task_id: str) -> None:
        # SEP-2663, "Routing Headers": clients MUST send Mcp-Name. At least one real client does not, so a missing
        # one is accepted unless the author wants it; a wrong one would have been routed wrongly, and is refused.
        if not caller.headers:
            return
        sent = caller.headers.get(NAME_HEADER)
        if sent is None:
            if self._require_name_header:
                raise RpcError(HEADER_MISMATCH, "The Mcp-Name header is missing")
        elif decode_header(sent) != task_id:
            raise RpcError(HEADER_MISMATCH, "The Mcp-Name header does not name the task in params.taskId")


def _check_method(record: TaskRecord, dialect: Dialect) -> None:
    if record.method not in dialect.methods:
        raise UnknownTask(record.id)


def actor_of(record: TaskRecord) -> Actor:
    """The caller that a task was found for: its owner."""
    return Actor("client", record.owner)
