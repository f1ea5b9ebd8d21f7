"""The parts of this room for one server, put together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

import anyio
from mcp.server import MCPServer, Server
from mcp.server.context import CallNext, HandlerResult
from mcp_types import CallToolRequestParams, InputRequiredResult
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from mcp_tasks.errors import LimitExceeded, StoreError, TasksError, UnknownTask
from mcp_tasks.fallback.companions import Companions, ToolWays, answers_for, session_of
from mcp_tasks.fallback.messages import beyond_limit
from mcp_tasks.fallback.options import ANY_HOST, HOSTS, UNKNOWN_HOST, Fallback, Host, ShownTo
from mcp_tasks.fallback.request_state import Legs, StateKeys, put_around_boundary, refused_state
from mcp_tasks.fallback.waiting import (
    BroughtAnswers,
    GoneCallers,
    KnownHosts,
    Later,
    ServingParts,
    WaitingRequest,
    plain_answer,
    told_answer,
)
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.record import TaskRecord, TaskRequest
from mcp_tasks.protocol.errors import RpcError, refusing
from mcp_tasks.protocol.methods import TasksProtocol
from mcp_tasks.protocol.owners import Caller, CallKey
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.launch import LaunchSpec, new_task_id
from mcp_tasks.server.creation import CallAnswer, Question, answer_call
from mcp_tasks.server.sdk import EraParts, RequestContext, caller_of
from mcp_tasks.server.tool_runner import UNKNOWN_CLIENT, OpenCalls, to_mcp_error

# ---- calls
# Answers to calls of tools whose caller speaks no tasks: the best way that the caller can follow.


FORGET_WITHIN: Final = timedelta(seconds=5)
"""A call that is answered with how its tool ended within this time leaves no task behind: nobody was told of one, and
nobody had the time to lose the answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A call of a tool whose caller takes no tasks.

    Attributes:
        settle: Runs the call up to the tool's body, where parameters are asked for before it; gives what the call is
            answered with, or None if the body was reached.
        asks_first: Whether the tool may begin by asking on the call.
        joined: What makes another call the same as this one, where a second is given the task of the first.
        key: The caller's own idempotency key: its call made again is given the same task.
        max_wait: How long a question of the tool may stay open, where its author said so.
    """

    ctx: RequestContext
    caller: Caller
    request: TaskRequest
    ways: Fallback
    owner: str | None
    retention: timedelta | None
    poll_interval: timedelta | None = None
    settle: Callable[[], Awaitable[HandlerResult | None]] | None = None
    asks_first: bool = False
    joined: str | None = None
    key: CallKey | None = None
    max_wait: timedelta | None = None


class FallbackCalls:
    """Answers such calls, for one server."""

    def __init__(self, parts: ServingParts) -> None:
        self._parts = parts

    async def answer(self, call: ToolCall) -> HandlerResult:
        """Answer one request of a call.

        Raises:
            RpcError: What the tool raised, or why the request is refused.
            StoreError: The task could not be kept.
        """
        joins = call.joined is not None
        waiting = WaitingRequest(self._parts, call.ctx, call.caller, call.ways, at_end=plain_answer, joins=joins)
        brought = None if waiting.leg is None else waiting.leg.brought
        if brought is not None and brought.task_id is not None:
            # Refused with an error of the protocol: to a model, it would sound as if the tool had not been called.
            with ExitStack() as waits:
                with refusing():
                    waits.enter_context(self._parts.limiting.waiting(call.owner, again=True))
                return await self._resume(call, waiting, brought.task_id)
        if call.settle is not None and waiting.leg is not None:
            settled = await call.settle()
            if isinstance(settled, InputRequiredResult):
                return await waiting.ask_before(settled.model_dump(by_alias=True, mode="json", exclude_none=True))
            if settled is not None:
                return settled
        with self._parts.limiting.waiting(call.owner):
            return await self._begin(call, waiting)

    async def wait_for(
        self,
        record: TaskRecord,
        ctx: RequestContext,
        caller: Caller,
        ways: Fallback,
        at_most: timedelta,
        since: float | None = None,
    ) -> dict[str, Any]:
        """Wait for a task that is there already, for a caller that asks how it is.

        Args:
            since: When its request came, in seconds of the monotonic clock; now, if it is not said.

        Raises:
            UnknownTask: The task is gone.
            LimitExceeded: As many requests of its owner wait as may.
        """
        waiting = WaitingRequest(self._parts, ctx, caller, ways, at_end=told_answer, at_most=at_most, since=since)
        with self._parts.limiting.waiting(record.owner):
            return await waiting.go_on(record)

    async def _begin(self, call: ToolCall, waiting: WaitingRequest) -> HandlerResult:
        task_id = new_task_id()
        with ExitStack() as opened:
            # Before the task is there: its tool may be at work before we hear of it.
            opened.enter_context(waiting.open(task_id))
            try:
                answer = await self._launch(call, waiting, task_id)
            except anyio.get_cancelled_exc_class():
                waiting.caller_left(task_id)
                raise
            if isinstance(answer, Question):
                return await waiting.ask_before(answer.question)
            try:
                return await waiting.answer(cast(TaskRecord, answer))
            finally:
                self._forget(call, waiting)

    async def _launch(self, call: ToolCall, waiting: WaitingRequest, task_id: str) -> CallAnswer:
        # One that was asked something first has its own key, and is not the same as another whose answers may differ.
        nonce = waiting.nonce
        joined = None if nonce is not None else call.joined
        return await answer_call(
            self._parts.runtime(),
            LaunchSpec(
                request=_request(call),
                owner=call.owner,
                retention=call.retention,
                poll_interval=call.poll_interval,
                session=session_of(call.caller),
                task_id=task_id,
                key=nonce,
            ),
            asks_first=call.asks_first and waiting.leg is not None and joined is None,
            joined=joined,
            key=call.key,
            goes_on=call.ways.when_caller_leaves == "continue",
        )

    def _forget(self, call: ToolCall, waiting: WaitingRequest) -> None:
        # Another request may have been given the task, where there is a key, or wait for it by its id.
        has_key = call.joined is not None or call.key is not None or waiting.nonce is not None
        given = waiting.given
        if given is None or waiting.time.waited > FORGET_WITHIN or has_key or waiting.others_wait(given.id):
            return
        # The answer does not wait for it.
        self._parts.later.do(self._parts.runtime().discard(given))

    async def _resume(self, call: ToolCall, waiting: WaitingRequest, task_id: str) -> HandlerResult:
        try:
            record = await waiting.find(task_id, call.owner)
            if record is None:
                # The store is away. The task is not, and to answer with an error would have the client start it twice.
                return await waiting.give_word(self._as_known(call, task_id))
            return await waiting.go_on(record)
        except UnknownTask as exc:
            # Kept for as long as was promised, and gone since.
            raise refused_state("its task is gone") from exc

    def _as_known(self, call: ToolCall, task_id: str) -> TaskRecord:
        """The task by what its call says of it."""
        now = self._parts.runtime().now()
        return TaskRecord(id=task_id, owner=call.owner, name=call.request.name, created_at=now, updated_at=now)


def _request(call: ToolCall) -> TaskRequest:
    """What the run is told of the call: how long its questions may stay open, and who may answer them."""
    request = replace(call.request, max_wait=call.max_wait or call.ways.answer_within)
    # Where there are no sessions, what an older client said of itself is not kept, and it cannot be asked. Others can:
    # whoever has the id of the task.
    is_unknown = request.client_info is None and request.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
    if not (call.ways.model_may_answer or is_unknown):
        return request
    # A model fills in forms, and whoever else has the id may follow a link as well.
    answerable: dict[str, Any] = {"form": {}, "url": {}} if is_unknown else {"form": {}}
    elicitation = request.client_capabilities.get("elicitation")
    declared = cast("dict[str, Any]", elicitation) if isinstance(elicitation, dict) else {}
    return replace(
        request,
        client_info=request.client_info or dict(UNKNOWN_CLIENT),
        client_capabilities={**request.client_capabilities, "elicitation": {**declared, **answerable}},
    )


# ---- schema
# The output schema of a tool, made to allow the handle as well.


HANDLE_SCHEMA: Final[JsonObject] = MappingProxyType(
    {
        "type": "object",
        "title": "StillRunning",
        "description": "The tool has not finished: this is not its result. The text says how to get that.",
        "properties": {
            "taskId": {"type": "string", "description": "The id of the running task."},
            "status": {"type": "string", "description": "Where the task stands."},
            "statusMessage": {"type": "string", "description": "The same, for people."},
        },
        "required": ["taskId", "status", "statusMessage"],
    }
)
"""What `words` gives as the structured content of a call that was answered before its tool had finished."""

_OWN: Final = "#/anyOf/0"
"""Where the tool's own schema is in the wider one."""

_REFERENCES: Final = ("$ref", "$dynamicRef")

_DATA: Final = frozenset({"const", "enum", "default", "example", "examples"})
"""Keywords whose values are data, where a `$ref` is a word like any other."""

_BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords whose values hold schemas by names, which may be anything: a property can be called `default`."""


def widened(schema: JsonObject) -> dict[str, Any]:
    """A schema that allows what this one does, and the handle. The one that is given stays as it is."""
    own = _moved(schema)
    wider: dict[str, Any] = {}
    if (dialect := own.pop("$schema", None)) is not None:
        # Only the root of a document may say which JSON Schema it is written in.
        wider["$schema"] = dialect
    if own.get("type") == "object":
        # Before 2026-07-28 the root of every output schema says so, and clients insist on it.
        wider["type"] = "object"
    return {**wider, "anyOf": [own, _moved(HANDLE_SCHEMA)]}


def _moved(schema: JsonObject) -> dict[str, Any]:
    """A copy of the schema in which local references lead to where it is going to be."""
    own_id = schema.get("$id")
    if isinstance(own_id, str) and not own_id.startswith("#"):
        # A document of its own, wherever it is put: what it calls its root still is.
        return dict(schema)
    return {name: _keyword(name, value) for name, value in schema.items()}


def _keyword(name: str, value: Any) -> Any:
    if name in _DATA:
        return value
    if name in _REFERENCES and isinstance(value, str):
        # The root, or a path from it. `#name` is an anchor, and is found wherever it is.
        return f"{_OWN}{value[1:]}" if value == "#" or value.startswith("#/") else value
    if name in _BY_NAME and isinstance(value, Mapping):
        return {key: _subschema(item) for key, item in cast("JsonObject", value).items()}
    return _subschema(value)


def _subschema(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _moved(cast("JsonObject", value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_subschema(item) for item in cast("Sequence[Any]", value)]
    return value


# ---- listing
# `tools/list` for callers that speak no tasks: schemas that allow the handle, and the companion tools.


logger: Final = get_logger(__name__)

_Tool: TypeAlias = dict[str, Any]


class Listing:
    """Shows callers the tools as these callers need them.

    Args:
        ways: How calls of the server's tools are answered whose callers speak no tasks.
    """

    def __init__(self, protocol: TasksProtocol, ways: ToolWays, companions: Companions) -> None:
        self._protocol = protocol
        self._ways = ways
        self._companions = companions
        self._reported: set[str] = set()

    async def show(self, caller: Caller, result: dict[str, Any]) -> dict[str, Any]:
        """The result of `tools/list` as this caller is to see it: the very same if nothing is different."""
        listed = cast("list[_Tool]", result.get("tools", []))
        is_modern = self._protocol.speaks(caller.protocol_version)
        tools = listed if self._protocol.takes_tasks(caller) else await self._wider(listed, is_modern=is_modern)
        tools = self._with(tools, await self._companions.tools(caller), is_last=result.get("nextCursor") is None)
        shown = result if tools is listed else {**result, "tools": tools}
        if is_modern and (tools is not listed or result.get("cacheScope") == "public") and await self._varies():
            # Otherwise somebody between may give to one caller what was made for another.
            return {**shown, "cacheScope": "private"}
        return shown

    async def _wider(self, listed: list[_Tool], *, is_modern: bool) -> list[_Tool]:
        """The tools with schemas that allow the handle, where they may answer with one.

        Those that are to give no word before the end do so too when the server stops, or the tool is stopped.
        """
        wider: dict[int, _Tool] = {}
        for place, tool in enumerate(listed):
            schema = tool.get("outputSchema")
            ways = await self._ways.of(tool["name"]) if isinstance(schema, Mapping) else None
            if ways is not None and answers_for(ways, is_modern):
                wider[place] = {**tool, "outputSchema": widened(cast("Mapping[str, Any]", schema))}
        return [wider.get(place, tool) for place, tool in enumerate(listed)] if wider else listed

    def _with(self, tools: list[_Tool], companions: Sequence[_Tool], *, is_last: bool) -> list[_Tool]:
        names = {tool["name"] for tool in companions}
        if hidden := {tool["name"] for tool in tools} & names:
            # Refused at start; this one was added since. A name that is there twice makes some hosts refuse all tools.
            self._report(hidden)
            tools = [tool for tool in tools if tool["name"] not in hidden]
        return [*tools, *companions] if companions and is_last else tools

    async def _varies(self) -> bool:
        """Whether callers of the newest wire are shown different tools."""
        return any(answers_for(ways, True) for ways in await self._ways.all())

    def _report(self, hidden: set[str]) -> None:
        for name in sorted(hidden - self._reported):
            logger.error(
                "the server has a tool %r, and so is called a companion tool of tasks, which is listed and called in "
                'its place: rename one of them, with Tasks(companion_prefix="my_") or in the server',
                name,
            )
        self._reported |= hidden


_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)


class FallbackRoom:
    """Answers for callers that speak no tasks, on one server.

    Args:
        open_calls: Where runs find the calls that are open on them.
        ways: How calls of the server's tools are answered.
        hosts: What the author knows of hosts, beside and above what is known here.
        shown: Who is shown the companion tools.
        prefix: What their names begin with.
        is_stopping: Whether the process has been told to stop.
    """

    def __init__(
        self,
        parts: EraParts,
        *,
        open_calls: OpenCalls,
        ways: ToolWays,
        hosts: Mapping[str, Host],
        shown: ShownTo,
        prefix: str,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._protocol = parts.protocol
        self._ways = ways
        self._shown = shown
        self._has_warned = False
        self._keys = StateKeys(parts.runtime)
        self._legs = Legs(self._keys, owner=parts.protocol.owner, now=lambda: parts.runtime().now())
        later = Later()
        known = {**HOSTS, **hosts}
        unknown = known.pop(ANY_HOST, UNKNOWN_HOST)
        self._companions = Companions(
            parts.runtime, parts.protocol, ways, self._wait_for, hosts=known, shown=shown, prefix=prefix
        )
        self._calls = FallbackCalls(
            ServingParts(
                runtime=parts.runtime,
                open_calls=open_calls,
                limiting=parts.protocol.limiting,
                hosts=KnownHosts(by_name=known, unknown=unknown),
                stopping=parts.stopping,
                is_stopping=is_stopping,
                companions=self._companions.names_for,
                seal=self._legs.seal,
                answers=BroughtAnswers(parts.runtime, later),
                later=later,
                gone=GoneCallers(parts.stopping, later),
            )
        )
        self._listing = Listing(parts.protocol, ways, self._companions)

    def start(self, server: MCPServer[Any] | Server[Any]) -> None:
        """The server starts: see what its clients say and are answered."""
        put_around_boundary(server.middleware, self._legs.outside, self.inside)

    async def prepare(self, tools: Iterable[str]) -> None:
        """The server is about to start: see that its tools have no names of the companion tools, and that there is a
        key, which the first call that needs one may not have the time to make.

        Raises:
            UsageError: It has; the message says what to do.
        """
        await self._companions.check_names(tools)
        await self._warn_of_unanswerable()
        try:
            await self._keys.prepare()
        except StoreError as exc:
            logger.warning("the keys for requestState are not there yet: %s", exc)

    async def _warn_of_unanswerable(self) -> None:
        """Say once that models may answer what they have no tool to answer with."""
        if self._shown != "never" or self._has_warned:
            return
        if any(ways.model_may_answer for ways in await self._ways.all()):
            self._has_warned = True
            logger.warning(
                'model_may_answer=True has no effect with Tasks(companions="never"): a model answers with a companion '
                "tool, and there is none. What a tool asks that the client cannot be asked stays open for somebody else"
            )

    async def rotate_key(self) -> None:
        """Seal what calls bring along under a new key from now on."""
        await self._keys.rotate()

    async def inside(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware after the SDK's boundary for states: what is listed, and what a tool's own state was."""
        if ctx.method == "tools/list":
            result = await call_next(ctx)
            return await self._listing.show(caller_of(ctx), result) if isinstance(result, dict) else result
        return await self._legs.inside(ctx, call_next)

    async def answer(self, call: ToolCall) -> HandlerResult:
        """Answer one request of a call of a tool.

        Raises:
            RpcError: What the tool raised, or why the request is refused.
            StoreError: The task could not be kept.
        """
        try:
            return _worded(call.ctx, await self._calls.answer(call))
        except LimitExceeded as exc:
            return self.beyond_limit(exc, call.request.name, call.ctx, call.caller)

    def beyond_limit(self, exc: LimitExceeded, tool: str, ctx: RequestContext, caller: Caller) -> HandlerResult:
        """What a call is answered with that may not become a task: nothing was started. A model reads the result of its
        call, and seldom an error of the protocol."""
        self._protocol.refused(caller, ctx.method, exc)
        return _worded(ctx, beyond_limit(tool, exc))

    def is_companion(self, name: str) -> bool:
        """Whether a tool of that name may be one of ours."""
        return self._companions.is_companion(name)

    async def answer_companion(self, params: CallToolRequestParams, ctx: RequestContext) -> HandlerResult | None:
        """Answer a call of a companion tool; None if it is not one here."""
        caller = caller_of(ctx)
        try:
            answer = await self._companions.answer(params.name, params.arguments or {}, ctx, caller)
            return None if answer is None else _worded(ctx, answer)
        except (RpcError, TasksError) as exc:
            self._protocol.refused(caller, "companion", exc)
            raise to_mcp_error(exc) from exc

    async def _wait_for(
        self, record: TaskRecord, ctx: RequestContext, caller: Caller, seconds: float, since: float
    ) -> dict[str, Any]:
        ways = await self._ways.of(record.name) or Fallback()
        return await self._calls.wait_for(record, ctx, caller, ways, timedelta(seconds=seconds), since)


def _worded(ctx: RequestContext, result: HandlerResult) -> HandlerResult:
    """The result with the mark that the newest era puts on every result."""
    if not isinstance(result, dict) or "resultType" in result or ctx.protocol_version not in _MODERN:
        return result
    return {"resultType": "complete", **result}
