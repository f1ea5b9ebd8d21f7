"""The methods of tasks: check the caller, parse the params, call the runtime, render the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, cast

from mcp_types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)

from mcp_tasks.errors import (
    AnswerRefused,
    KeyRefused,
    LimitExceeded,
    OwnerRequired,
    StoreError,
    TasksError,
    UnknownTask,
)
from mcp_tasks.model.json import JsonObject, object_in
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.options import TaskOptions
from mcp_tasks.model.record import Actor, TaskRecord, TaskRequest
from mcp_tasks.protocol.answers import AnswerCheck, answers_to, turns_of
from mcp_tasks.protocol.cache import ResponseCache
from mcp_tasks.protocol.errors import RpcError, refusing
from mcp_tasks.protocol.limits import Kind, Limiting
from mcp_tasks.protocol.listen import Listening, StreamEnds, honoured
from mcp_tasks.protocol.outcomes import hold, outcome_of
from mcp_tasks.protocol.owners import Caller, Owners, take_key
from mcp_tasks.protocol.shapes import (
    ENCODED_HEADER,
    EXTENSION_ID,
    NAME_HEADER,
    Message,
    decode_header,
    render_created,
    render_outcome,
    render_task,
)
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.runtime.observers import Refusal, TaskAccess, Verb

# ---- accesses
# Observers are told of looks at tasks and of refusals: in one place for all entry points, and only if one wants it.


_VERBS: Final[Mapping[str, Verb]] = {
    "tasks/list": "list",
    "tasks/update": "answer",
    "tasks/cancel": "cancel",
    "subscriptions/listen": "listen",
    "tools/call": "create",
    "prompts/get": "create",
    "resources/read": "create",
}
"""All others read."""

_LONGEST_ID: Final = 256
"""Characters of an id that a caller names and is refused: it may be anything, and waits in memory for observers."""


def note_access(
    runtime: TaskRuntime,
    owner: str | None,
    method: str,
    *,
    task_id: str | None = None,
    tool: str | None = None,
    refused: Refusal | None = None,
    detail: str | None = None,
    times: int = 1,
    verb: Verb | None = None,
) -> None:
    """Tell observers of a look at tasks, or of a refusal. The verb is that of the method, if nothing else is said."""
    if runtime.observers.want(TaskAccess if refused is None else Refusal):
        done: Verb = verb or _VERBS.get(method, "read")
        at = runtime.now().timestamp()
        runtime.observers.note(TaskAccess(done, method, owner, at, task_id, tool, refused, detail, times))


def refusal_of(why: Exception) -> tuple[Refusal, str | None]:
    """Why a request is refused, in one word, and which limit it is, or what is wrong with the key."""
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
        case _:
            pass
    if isinstance(cause, StoreError) or not isinstance(why, RpcError):
        return Refusal.FAILED, None
    data = object_in(why.data) or {}
    reason = str(data.get("reason"))
    if reason == "limit":
        return Refusal.LIMIT, str(data.get("limit"))
    return (Refusal.KEY, reason) if reason.startswith("key_") else (_BY_CODE.get(why.code, Refusal.FAILED), None)


_BY_CODE: Final[Mapping[int, Refusal]] = {
    INVALID_REQUEST: Refusal.OWNER,
    METHOD_NOT_FOUND: Refusal.UNDECLARED,
    MISSING_REQUIRED_CLIENT_CAPABILITY: Refusal.UNDECLARED,
    INVALID_PARAMS: Refusal.MALFORMED,
    HEADER_MISMATCH: Refusal.MALFORMED,
}


# ---- parse
# The params of SEP-2663. Malformed ones are refused with -32602.


def _task_id(params: JsonObject) -> str:
    task_id = params.get("taskId")
    if not isinstance(task_id, str):
        raise RpcError(INVALID_PARAMS, "params.taskId must be a string: the id of a task")
    return task_id


def _answers(params: JsonObject) -> Mapping[str, Any]:
    """`inputResponses`. The values are not looked at: SEP-2663 has us ignore keys that are not outstanding, whatever
    their values look like, so only the question can say what its answer must be."""
    answers = params.get("inputResponses")
    if not isinstance(answers, Mapping):
        raise RpcError(INVALID_PARAMS, "params.inputResponses must be an object: answers by the keys of inputRequests")
    return cast("Mapping[str, Any]", answers)


def _listened(params: JsonObject) -> Sequence[str]:
    """The ids in `notifications.taskIds`, each once and in their order."""
    ids: Any = (object_in(params, "notifications") or {}).get("taskIds")
    if not isinstance(ids, list) or not all(isinstance(task_id, str) for task_id in cast("list[Any]", ids)):
        raise RpcError(INVALID_PARAMS, "notifications.taskIds must be a list of strings")
    return list(dict.fromkeys(cast("list[str]", ids)))


# ---- methods


_NOT_ADMITTED: Final = frozenset({METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY})
"""Refusals of callers that cannot use a method, before a request counts."""

CANCELLED_BY_CLIENT: Final = "Cancelled by the client"


class TasksProtocol:
    """Answers requests about tasks, whichever way they come in.

    Every method takes the caller and the raw params, and raises `RpcError` to refuse a request.

    Args:
        runtime: The running runtime.
        owners: Says who owns the tasks of a caller.
        limiting: The limits of callers.
        require_name_header: Whether an HTTP request without the `Mcp-Name` header is refused.
        stream_ends: Ends streams in time.
    """

    def __init__(
        self,
        runtime: Callable[[], TaskRuntime],
        *,
        owners: Owners,
        limiting: Limiting | None = None,
        require_name_header: bool = False,
        stream_ends: StreamEnds | None = None,
    ) -> None:
        self.limiting: Limiting = limiting or Limiting(Limits())
        self.owners: Owners = owners
        self.stream_ends: StreamEnds = stream_ends or StreamEnds()
        self._runtime = runtime
        self._require_name_header = require_name_header

    # Who calls

    def refuse_undeclared(self, caller: Caller, method: str) -> None:
        """Refuse a method that the caller's version does not have, or from a client that takes no tasks."""
        if method not in caller.version.methods:
            raise RpcError(METHOD_NOT_FOUND, "Method not found", method)
        if not caller.takes_tasks:
            raise _undeclared()

    async def admit(self, caller: Caller, turns: int = 1) -> str | None:
        """Let a caller ask about tasks, at the pace that it may. Gives the owner of its tasks.

        Before the params are looked at, so that a request that is refused for another reason has counted.

        Args:
            turns: As how many requests it counts.
        """
        owner = self.owners.of(caller)
        if owner is not None:
            with refusing():
                await self.limiting.request(owner, turns)
        return owner

    def give_back(self, caller: Caller, method: str, refused: RpcError) -> None:
        """Let a request that was refused here not count: it is handed over to the SDK, where it counts."""
        if refused.code in _NOT_ADMITTED:
            return
        kinds: list[Kind] = ["cancels"] if method == "tasks/cancel" else []
        if isinstance(refused.__cause__, UnknownTask):
            kinds.append("unknown")
        with suppress(RpcError):
            self.limiting.give_back(self.owners.of(caller), caller.connection, *kinds)

    # tools/call

    def cannot_take(self, caller: Caller, tool: str) -> RpcError:
        """The refusal of a call that can only become a task, from a caller that takes none."""
        if caller.version.has_extension:
            return _undeclared()
        # 2025-11-25, "Tool-Level Negotiation": a tool that must be a task and is not called as one is not there.
        hint = ": add params.task" if caller.version.asks_for_tasks else ""
        return RpcError(METHOD_NOT_FOUND, f"Tool {tool!r} can only be called as a task{hint}")

    async def let_in(self, caller: Caller, request: TaskRequest) -> str | None:
        """Count a call that is to become a task. Gives the owner, if there is one. Nothing has been made then.

        Raises:
            RpcError: As `Owners.of`.
            LimitExceeded: There are too many calls, or it is too large.
        """
        owner = self.owners.of(caller)
        # Before anything is done with its arguments, which are the caller's, and may be many.
        await self.limiting.create(owner, request, connection=caller.connection)
        return owner

    def spec(
        self, request: TaskRequest, owner: str | None, options: TaskOptions, *, retention: timedelta | None
    ) -> LaunchSpec:
        """The task that a call is to become.

        Raises:
            RpcError: Its idempotency key is malformed.
            KeyRefused: Its key could be guessed.
        """
        request, key = take_key(request, owner, asks_first=bool(options.asks_first))
        return LaunchSpec(
            request=request,
            owner=owner,
            policy=options.settled,
            retention=retention,
            key=None if key is None else key.key,
            fingerprint=None if key is None else key.fingerprint,
        )

    async def create(
        self, caller: Caller, request: TaskRequest, options: TaskOptions, *, retention: timedelta | None
    ) -> Message:
        """Make the task of a call that becomes one at once. Raises what these three raise."""
        owner = await self.let_in(caller, request)
        spec = self.spec(request, owner, options, retention=retention)
        # SEP-2663: not answered before the task is durably created; `launch` returns no sooner.
        created = await self._runtime().launch(spec)
        if not created.announced:
            # It stands under the key of a call that is still being answered, maybe by another replica.
            created = await self._runtime().announce(created)
        return Message(fields=render_created(created))

    # tasks/*

    async def get(self, caller: Caller, params: JsonObject) -> Message:
        """`tasks/get`: the task with its outcome or its open questions."""
        task_id, owner = await self._polled(caller, params)
        return (await self._read(caller, task_id, owner))[1]

    async def get_encoded(self, caller: Caller, params: JsonObject, cache: ResponseCache) -> bytes:
        """The same as JSON: the cached response, if the task is still as it was then."""
        task_id, owner = await self._polled(caller, params)
        runtime = self._runtime()
        cached, now = cache.find(task_id, owner), runtime.now()
        if cached is not None:
            with refusing():
                is_current = await runtime.is_current(cached.record, owner=owner, now=now)
            if is_current:
                _note_look(runtime, cached.record, "tasks/get")
                return cached.at(now)
        record, response = await self._read(caller, task_id, owner)
        return cache.add(record, response).at(runtime.now())

    async def update(self, caller: Caller, params: JsonObject) -> Message:
        """`tasks/update`: take answers to open questions. Acknowledged once they are durable."""
        self.refuse_undeclared(caller, "tasks/update")
        owner = await self.admit(caller)
        task_id, answers = _task_id(params), _answers(params)
        record = await self._find(caller, owner, task_id)
        answers = answers_to(record, answers)
        with refusing():
            await self.count_answers(owner, answers)
            check = AnswerCheck(answers, self.limiting.limits)
            await self._runtime().answer(record, answers, actor=actor_of(record), check=check)
        return _acknowledged()

    async def count_answers(self, owner: str | None, answers: JsonObject) -> None:
        """Let answers be checked, which takes time for each value in them: as more requests, where they have many.

        Raises:
            LimitExceeded: Their caller asks far too often.
        """
        if (turns := turns_of(answers)) > 1:
            await self.limiting.request(owner, turns - 1)

    async def cancel(self, caller: Caller, params: JsonObject) -> Message:
        """`tasks/cancel`. A task that has ended is acknowledged too, and stays as it is."""
        self.refuse_undeclared(caller, "tasks/cancel")
        owner = await self.admit(caller)
        with refusing():
            await self.limiting.nameless("cancels", owner, caller.connection)
        record = await self._find(caller, owner, _task_id(params))
        with refusing():
            await self._runtime().cancel(record, CANCELLED_BY_CLIENT, actor=actor_of(record))
        return _acknowledged()

    async def find(self, caller: Caller, task_id: str, *, to_cancel: bool = False) -> TaskRecord:
        """The caller's task of that id, whichever version it was made in and whatever it is of."""
        owner = await self.admit(caller)
        with refusing():
            if to_cancel:
                await self.limiting.nameless("cancels", owner, caller.connection)
            return await self._get(caller, owner, task_id)

    async def count_poll(self, record: TaskRecord) -> None:
        """Let a task be looked at, which is there; a moment later, if it has no owner and that was done too often."""
        if record.owner is None:
            await self.limiting.poll(record.id)

    async def _polled(self, caller: Caller, params: JsonObject) -> tuple[str, str | None]:
        """The id of the task that is polled, and the owner that its caller is."""
        self.refuse_undeclared(caller, "tasks/get")
        owner = await self.admit(caller)
        task_id = _task_id(params)
        self._check_name_header(caller, task_id)
        if owner is None and self.limiting.counts_polls:
            # Only of tasks that exist: ids by the million would have those forgotten that are asked for too often.
            with refusing():
                await self.count_poll(await self._get(caller, owner, task_id))
        return task_id, owner

    async def _read(self, caller: Caller, task_id: str, owner: str | None) -> tuple[TaskRecord, Message]:
        runtime = self._runtime()
        with refusing():
            try:
                async with self.limiting.unread.turn(owner):
                    record, *read = await runtime.get_with_outcome(task_id, owner=owner)
                    if record.method not in caller.version.methods:
                        raise UnknownTask(record.id)
                    outcome = hold(owner, read if read[0] is not None else [await outcome_of(runtime, record)])
            except UnknownTask:
                await self.limiting.nameless("unknown", owner, caller.connection)
                raise
        _note_look(runtime, record, "tasks/get")
        message = Message(fields=render_task(record, runtime.now()), large=render_outcome(record, outcome))
        return record, message

    async def _get(self, caller: Caller, owner: str | None, task_id: str, *, any_method: bool = True) -> TaskRecord:
        """The task; if there is none, that counts."""
        try:
            record = await self._runtime().get(task_id, owner=owner)
            if not any_method and record.method not in caller.version.methods:
                raise UnknownTask(record.id)
        except UnknownTask:
            await self.limiting.nameless("unknown", owner, caller.connection)
            raise
        return record

    async def _find(self, caller: Caller, owner: str | None, task_id: str) -> TaskRecord:
        """The caller's task of that id. Tasks of methods that its version cannot call as tasks are not there."""
        self._check_name_header(caller, task_id)
        with refusing():
            record = await self._get(caller, owner, task_id, any_method=False)
        tracing = self._runtime().tracing
        if tracing is not None:
            tracing.touched(record)
        return record

    def _check_name_header(self, caller: Caller, task_id: str) -> None:
        # SEP-2663, "Routing Headers": clients MUST send Mcp-Name. At least one real client does not, so a missing
        # one is accepted unless the author wants it; a wrong one would have been routed wrongly, and is refused.
        if not caller.headers:
            return
        sent = caller.headers.get(NAME_HEADER)
        if sent is None:
            if self._require_name_header:
                raise RpcError(HEADER_MISMATCH, "The Mcp-Name header is missing")
        elif (decode_header(sent) if sent.startswith(ENCODED_HEADER) else sent) != task_id:
            raise RpcError(HEADER_MISMATCH, "The Mcp-Name header does not name the task in params.taskId")

    # subscriptions/listen

    def asks_to_listen(self, caller: Caller, params: JsonObject) -> bool:
        """Whether a listen request is about tasks, well-formed or not. Others are not ours to serve."""
        wanted = object_in(params, "notifications") or {}
        return caller.version.has_extension and wanted.get("taskIds") is not None

    async def listen(self, caller: Caller, params: JsonObject) -> Listening:
        """`subscriptions/listen`: the caller's own tasks among those that it names, and their states from now on."""
        # Before the ids are looked at: to a client that has no tasks they are not malformed, but none of its business.
        self.refuse_undeclared(caller, "subscriptions/listen")
        owner = await self.admit(caller)
        named = _listened(params)
        with refusing():
            self.limiting.check_stream(len(named))
            runtime = self._runtime()
            # Before anything is looked up or told: a caller that may have no stream is shown nothing.
            closed = self.limiting.open_stream(owner)
            try:
                own = await honoured(runtime, named, owner, methods=caller.version.methods)
                if len(own) < len(named):
                    await self.limiting.nameless("unknown", owner, caller.connection)
            except BaseException:
                closed()
                raise
        method, missing = "subscriptions/listen", len(named) - len(own)
        for task_id in own:
            note_access(runtime, owner, method, task_id=task_id)
        if missing:
            # They were failed look-ups.
            note_access(runtime, owner, method, refused=Refusal.UNKNOWN, times=missing)
        return Listening(
            runtime,
            own,
            ends=self.stream_ends,
            second=self.stream_ends.after_token(caller.identity),
            unread=self.limiting.unread,
            closed=closed,
        )

    async def open_stream(self, caller: Caller) -> Callable[[], None]:
        """`subscriptions/listen` that is not about tasks, and served by others: it counts as one of its owner's streams
        until the function that this gives is called."""
        owner = self.owners.known(caller)
        with refusing():
            await self.limiting.request(owner)
            return self.limiting.open_stream(owner)

    # Observers

    def saw(self, record: TaskRecord, method: str) -> None:
        """Tell observers that a caller was shown a task of its own."""
        _note_look(self._runtime(), record, method)

    def saw_list(self, owner: str | None, method: str, shown: int) -> None:
        """Tell observers that a caller was shown so many tasks of its own."""
        note_access(self._runtime(), owner, method, verb="list", detail=f"{shown} tasks")

    def refused(self, caller: Caller, method: str, why: Exception, *, task_id: object = None) -> None:
        """Tell observers that a request is answered with a refusal. Called where it is answered."""
        # It may be refused because it has none.
        owner = self.owners.known(caller)
        refused, detail = refusal_of(why)
        named = task_id[:_LONGEST_ID] if isinstance(task_id, str) else None
        with suppress(TasksError):
            # Without a runtime there are no observers.
            note_access(self._runtime(), owner, method, task_id=named, refused=refused, detail=detail)


def _note_look(runtime: TaskRuntime, record: TaskRecord, method: str) -> None:
    if runtime.tracing is not None:
        runtime.tracing.touched(record)
    note_access(runtime, record.owner, method, task_id=record.id, tool=record.name)


def _undeclared() -> RpcError:
    return RpcError(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"Client did not declare required extension {EXTENSION_ID!r}",
        {"requiredCapabilities": {"extensions": {EXTENSION_ID: {}}}},
    )


def _acknowledged() -> Message:
    """The answer to `tasks/update` and `tasks/cancel`: exactly this, with no task fields."""
    return Message(fields={"resultType": "complete"})


def actor_of(record: TaskRecord) -> Actor:
    """The caller that a task was found for: its owner."""
    return Actor("client", record.owner)
