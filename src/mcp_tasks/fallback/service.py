"""Calls of clients without tasks, on one server: the middleware, the listing of tools, and the answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, cast

import anyio
from mcp.server import MCPServer, Server
from mcp.server.context import CallNext, HandlerResult
from mcp_types import CallToolRequestParams, InputRequiredResult

from mcp_tasks._utils import BackgroundTasks
from mcp_tasks.errors import LimitExceeded, StoreError, TasksError, TaskUnreadable, UnknownTask
from mcp_tasks.fallback.companions import Companions, answers_for, session_of
from mcp_tasks.fallback.messages import beyond_limit, widened
from mcp_tasks.fallback.options import ANY_HOST, HOSTS, UNKNOWN_HOST, Host, ShownTo
from mcp_tasks.fallback.request_state import RequestStates, StateKeys, put_around_boundary, refused_state
from mcp_tasks.fallback.waiting import CallStream, ResumedAnswers, WaitingRequest, ask_plainly
from mcp_tasks.model.options import Fallback, TaskOptions
from mcp_tasks.model.record import TaskRecord, TaskRequest
from mcp_tasks.protocol.errors import RpcError, refusing
from mcp_tasks.protocol.limits import Limiting
from mcp_tasks.protocol.methods import actor_of
from mcp_tasks.protocol.owners import Caller
from mcp_tasks.protocol.versions import version_of
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.launch import LaunchSpec, new_task_id
from mcp_tasks.server.catalog import Catalogue
from mcp_tasks.server.creation import CallAnswer, Question, answer_call
from mcp_tasks.server.questions import ClientQuestions
from mcp_tasks.server.sdk import EraParts, RequestContext, caller_of
from mcp_tasks.server.tool_runner import UNKNOWN_CLIENT, OpenCalls, to_mcp_error

logger: Final = get_logger(__name__)

FORGET_WITHIN: Final = timedelta(seconds=5)
"""If a call is answered with its tool's result within this time, its task is deleted: its caller knows of no task, and
had no time to lose the answer."""

LEFT: Final = "The caller went away"

STOP_GRACE: Final = 2.0
"""Seconds to tell a shutdown from a disconnect. A server that stops cancels its requests first, as if their callers had
left, gives them a second to tell clients that do not read any more, and only then ends its lifespan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A call of a tool by a client without tasks.

    Attributes:
        spec: The task of the call.
        options: The options of the tool.
        settle: Runs the call up to the tool's body, if the SDK asks for parameters before it; returns the answer to the
            call, or None if the body was reached.
        joined: The key under which equal calls get the same task.
    """

    ctx: RequestContext
    caller: Caller
    spec: LaunchSpec
    options: TaskOptions
    settle: Callable[[], Awaitable[HandlerResult | None]] | None = None
    joined: str | None = None


class FallbackService:
    """Answers calls of clients without tasks, on one server.

    Args:
        open_calls: Where runs find the calls that wait for them.
        catalogue: The tools of the server.
        hosts: The author's table of hosts, which adds to ours and replaces its entries.
        shown: Which clients see the companion tools.
        prefix: The start of the companion tools' names.
        is_stopping: Whether the process has been told to stop.

    Attributes:
        streams: The open calls on which clients can be asked, by task.
    """

    def __init__(
        self,
        parts: EraParts,
        *,
        open_calls: OpenCalls,
        catalogue: Catalogue,
        hosts: Mapping[str, Host],
        shown: ShownTo,
        prefix: str,
        is_stopping: Callable[[], bool],
    ) -> None:
        self.runtime: Callable[[], TaskRuntime] = parts.runtime
        self.open_calls: OpenCalls = open_calls
        self.limiting: Limiting = parts.protocol.limiting
        self.stopping: Callable[[], Awaitable[object]] = parts.stopping
        self.is_stopping: Callable[[], bool] = is_stopping
        self.hosts: dict[str, Host] = {**HOSTS, **hosts}
        self.unknown_host: Host = self.hosts.pop(ANY_HOST, UNKNOWN_HOST)
        self.background: BackgroundTasks = BackgroundTasks(
            lambda exc: logger.debug("background cleanup failed: %s", what(exc))
        )
        self.streams: dict[str, list[CallStream]] = {}
        self.questions: ClientQuestions = ClientQuestions(
            parts.runtime, ask_plainly, self.streams.get, outlive_streams=True
        )
        self.answers: ResumedAnswers = ResumedAnswers(parts.runtime, self.background)
        self._keys = StateKeys(parts.runtime)
        self.states: RequestStates = RequestStates(
            self._keys, owner=parts.protocol.owners.of, now=lambda: parts.runtime().now()
        )
        self.companions: Companions = Companions(
            parts.runtime, parts.protocol, catalogue, self._wait_for, hosts=self.hosts, shown=shown, prefix=prefix
        )
        self._protocol = parts.protocol
        self._catalogue = catalogue
        self._has_warned = False
        self._hidden: set[str] = set()
        self._watched: set[str] = set()

    def start(self, server: MCPServer[Any] | Server[Any]) -> None:
        """Put our middleware into a server that starts."""
        put_around_boundary(server.middleware, self.states.outside, self._inside)

    async def prepare(self, tools: Iterable[str]) -> None:
        """Check the names of the server's tools, and make the key of request states, before the server starts.

        Raises:
            UsageError: A tool has the name of a companion tool.
        """
        await self.companions.check_names(tools)
        may_warn = self.companions.shown == "never" and not self._has_warned
        if may_warn and any(options.model_may_answer for options in await self._catalogue.fallbacks()):
            self._has_warned = True
            logger.warning(
                'model_may_answer=True has no effect with Tasks(companions="never"): a model answers with a companion '
                "tool, and there is none. Questions that the client cannot be asked stay open"
            )
        try:
            # The first call that needs a key may not have the time to make it.
            await self._keys.prepare()
        except StoreError as exc:
            logger.warning("the keys for requestState are not there yet: %s", exc)

    async def rotate_key(self) -> None:
        """Seal request states with a new key from now on."""
        await self._keys.rotate()

    # Calls

    async def answer(self, call: ToolCall) -> HandlerResult:
        """Answer one request of a call.

        Raises:
            RpcError: What the tool raised, or why the request is refused.
            StoreError: The task could not be kept.
        """
        try:
            return _complete(call.ctx, await self._answer(call))
        except LimitExceeded as exc:
            return self.beyond_limit(exc, call.spec.request.name, call.ctx, call.caller)

    def beyond_limit(self, exc: LimitExceeded, tool: str, ctx: RequestContext, caller: Caller) -> HandlerResult:
        """The answer to a call that a limit refuses: a result, because models seldom read errors of the protocol."""
        self._protocol.refused(caller, ctx.method, exc)
        return _complete(ctx, beyond_limit(tool, exc))

    def companion_names(self) -> frozenset[str]:
        """The names that the companion tools may have."""
        return self.companions.names()

    async def answer_companion(self, params: CallToolRequestParams, ctx: RequestContext) -> HandlerResult | None:
        """Answer a call of a companion tool; None if there is none of that name here."""
        caller = caller_of(ctx)
        try:
            answer = await self.companions.answer(params.name, params.arguments or {}, ctx, caller)
            return None if answer is None else _complete(ctx, answer)
        except (RpcError, TasksError) as exc:
            self._protocol.refused(caller, "companion", exc)
            raise to_mcp_error(exc) from exc

    async def _answer(self, call: ToolCall) -> HandlerResult:
        waiting = WaitingRequest(self, call.ctx, call.caller, call.options.fallback, joins=call.joined is not None)
        state = None if waiting.trip is None else waiting.trip.state
        if state is not None and state.task_id is not None:
            # Refused with an error of the protocol: a result would sound to a model as if the tool was not called.
            with ExitStack() as waits:
                with refusing():
                    waits.enter_context(self.limiting.waiting(call.spec.owner, again=True))
                return await self._resume(call, waiting, state.task_id)
        if call.settle is not None and waiting.trip is not None:
            settled = await call.settle()
            if isinstance(settled, InputRequiredResult):
                return await waiting.ask_before(settled.model_dump(by_alias=True, mode="json", exclude_none=True))
            if settled is not None:
                return settled
        with self.limiting.waiting(call.spec.owner):
            return await self._begin(call, waiting)

    async def _begin(self, call: ToolCall, waiting: WaitingRequest) -> HandlerResult:
        task_id = new_task_id()
        # Before there is a task: its tool may run before `launch` returns.
        with waiting.open(task_id):
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
                self._discard_task(call, waiting)

    async def _launch(self, call: ToolCall, waiting: WaitingRequest, task_id: str) -> CallAnswer:
        # After questions, a call has a key of its own, and does not join calls whose answers may differ.
        nonce = waiting.nonce
        joined = None if nonce is not None else call.joined
        return await answer_call(
            self.runtime(),
            replace(
                call.spec,
                request=_request(call),
                session=session_of(call.caller),
                task_id=task_id,
                key=call.spec.key or nonce,
            ),
            asks_first=bool(call.options.asks_first) and waiting.trip is not None and joined is None,
            joined=joined,
            goes_on=call.options.fallback.when_caller_leaves == "continue",
        )

    def _discard_task(self, call: ToolCall, waiting: WaitingRequest) -> None:
        """Delete the task of a call that was answered quickly, unless another request may have it or wait for it."""
        has_key = call.joined is not None or call.spec.key is not None or waiting.nonce is not None
        given = waiting.given
        if given is None or waiting.time.waited > FORGET_WITHIN or has_key or waiting.others_wait(given.id):
            return
        # The answer does not wait for it.
        self.background.start(self.runtime().discard(given))

    async def _resume(self, call: ToolCall, waiting: WaitingRequest, task_id: str) -> HandlerResult:
        try:
            record = await waiting.find(task_id, call.spec.owner)
            if record is not None:
                return await waiting.resume(record)
        except UnknownTask as exc:
            # It was kept for as long as promised.
            raise refused_state("its task is gone") from exc
        # The store is unavailable. The task is running: after an error now, the client would start it twice.
        now = self.runtime().now()
        known = TaskRecord(
            id=task_id, owner=call.spec.owner, name=call.spec.request.name, created_at=now, updated_at=now
        )
        return await waiting.answer_early(known)

    async def _wait_for(
        self, record: TaskRecord, ctx: RequestContext, caller: Caller, seconds: float, since: float
    ) -> dict[str, Any]:
        """Wait for the task of a `task_status` call, which came at `since`.

        Raises:
            UnknownTask: The task is gone.
            LimitExceeded: Too many requests of its owner wait.
        """
        options = await self._catalogue.fallback(record.name) or Fallback()
        waiting = WaitingRequest(self, ctx, caller, options, at_most=timedelta(seconds=seconds), since=since)
        with self.limiting.waiting(record.owner):
            return await waiting.resume(record)

    # Background

    def cancel_after_disconnect(self, task_id: str, is_wanted: Callable[[], bool]) -> None:
        """Cancel the task of a caller that left, unless the server stops or another call wants the result.

        In the background: the server waits for its requests to end before it stops, and its tools must go on then.
        """
        self.background.start(self._cancel(self.runtime(), task_id, is_wanted))

    async def _cancel(self, runtime: TaskRuntime, task_id: str, is_wanted: Callable[[], bool]) -> None:
        with anyio.move_on_after(STOP_GRACE):
            await self.stopping()
            return
        if is_wanted():
            return
        try:
            record = await runtime.find(task_id)
            await runtime.cancel(record, LEFT, actor=actor_of(record))
        except UnknownTask:
            # The caller left before there was a task.
            pass
        except StoreError as exc:
            logger.warning("task %s… was not cancelled although its caller left: %s", task_id[:12], exc)

    def watch_questions(self, task_id: str) -> None:
        """Withdraw the questions that clients still have after their calls, once they are answered elsewhere."""
        if task_id not in self._watched and self.questions.is_sent(task_id):
            self._watched.add(task_id)
            self.background.start(self._watch(task_id))

    async def _watch(self, task_id: str) -> None:
        async def see(record: TaskRecord) -> None:
            self.questions.look(record)

        def is_settled(_: TaskRecord) -> bool:
            return not self.questions.is_sent(task_id)

        try:
            async with anyio.create_task_group() as group:

                async def end_with_server() -> None:
                    await self.stopping()
                    group.cancel_scope.cancel()

                group.start_soon(end_with_server)
                try:
                    await self.runtime().follow(task_id, is_settled, see=see, patient=True)
                except (UnknownTask, TaskUnreadable):
                    self.questions.forget(task_id)
                group.cancel_scope.cancel()
        finally:
            self._watched.discard(task_id)

    # tools/list

    async def _inside(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """The middleware after the SDK's boundary for request states."""
        if ctx.method == "tools/list":
            result = await call_next(ctx)
            return await self._list(caller_of(ctx), result) if isinstance(result, dict) else result
        return await self.states.inside(ctx, call_next)

    async def _list(self, caller: Caller, result: dict[str, Any]) -> dict[str, Any]:
        """The result of `tools/list` for this caller: with companion tools, and schemas that allow the handle."""
        listed = cast("list[dict[str, Any]]", result.get("tools", []))
        is_modern = caller.version.has_extension
        tools = listed if caller.takes_tasks else await self._wider(listed, is_modern=is_modern)
        companions = await self.companions.tools(caller)
        names = {tool["name"] for tool in companions}
        if hidden := {tool["name"] for tool in tools} & names:
            # Added since the start, which refuses such names. Some hosts refuse all tools if a name is there twice.
            self._report(hidden)
            tools = [tool for tool in tools if tool["name"] not in hidden]
        if companions and result.get("nextCursor") is None:
            tools = [*tools, *companions]
        shown = result if tools is listed else {**result, "tools": tools}
        may_vary = is_modern and (tools is not listed or result.get("cacheScope") == "public")
        if may_vary and any(answers_for(options, True) for options in await self._catalogue.fallbacks()):
            # Otherwise a cache may give one caller the list that was made for another.
            return {**shown, "cacheScope": "private"}
        return shown

    async def _wider(self, listed: list[dict[str, Any]], *, is_modern: bool) -> list[dict[str, Any]]:
        """The tools, with schemas that allow the handle for those that may be answered with one.

        With `handle=False` they may be, too: when the server or the tool is stopped.
        """
        wider: dict[int, dict[str, Any]] = {}
        for place, tool in enumerate(listed):
            schema = tool.get("outputSchema")
            options = await self._catalogue.fallback(tool["name"]) if isinstance(schema, Mapping) else None
            if options is not None and answers_for(options, is_modern):
                wider[place] = {**tool, "outputSchema": widened(cast("Mapping[str, Any]", schema))}
        return [wider.get(place, tool) for place, tool in enumerate(listed)] if wider else listed

    def _report(self, hidden: set[str]) -> None:
        for name in sorted(hidden - self._hidden):
            logger.error(
                "the server has a tool %r, and so is called a companion tool of tasks, which is listed and called in "
                'its place: rename one of them, with Tasks(companion_prefix="my_") or in the server',
                name,
            )
        self._hidden |= hidden


def _complete(ctx: RequestContext, result: HandlerResult) -> HandlerResult:
    """The result with the `resultType` that 2026-07-28 asks for."""
    is_modern = version_of(ctx.protocol_version).marks_results
    if not isinstance(result, dict) or "resultType" in result or not is_modern:
        return result
    return {"resultType": "complete", **result}


def _request(call: ToolCall) -> TaskRequest:
    """The request for the run, with how long its questions may stay open and who may answer them."""
    request = replace(call.spec.request, max_wait=call.options.max_wait or call.options.fallback.answer_within)
    # Without sessions, the handshake of an older client is not kept, and it cannot be asked. Others that have the id of
    # the task can answer.
    is_unknown = request.client_info is None and not version_of(request.protocol_version).describes_client
    if not (call.options.fallback.model_may_answer or is_unknown):
        return request
    # A model fills in forms; another client that has the id may open a link as well.
    answerable: dict[str, Any] = {"form": {}, "url": {}} if is_unknown else {"form": {}}
    elicitation = request.client_capabilities.get("elicitation")
    declared = cast("dict[str, Any]", elicitation) if isinstance(elicitation, dict) else {}
    return replace(
        request,
        client_info=request.client_info or dict(UNKNOWN_CLIENT),
        client_capabilities={**request.client_capabilities, "elicitation": {**declared, **answerable}},
    )
