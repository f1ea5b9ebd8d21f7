"""What is not answered the short way goes the other: as it came, and for a reason that is counted."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from types import MethodType
from typing import Any, cast

import pytest
from mcp.server import MCPServer, Server
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, compose_tool_call_handler
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, RequestParams, TextContent, Tool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.server import QUICK
from mcp_tasks import Tasks
from mcp_tasks.errors import StoreUnavailable, TaskUnreadable
from mcp_tasks.model.record import TaskRecord, TaskRequest
from mcp_tasks.protocol.shapes import AnyParams
from mcp_tasks.server.fast_path.requests import Handover
from mcp_tasks.stores.memory import MemoryStore
from tests.short.comparing import go
from tests.short.drafts import CAPABILITIES_KEY, Flaw, Step
from tests.short.raw import Answer, exchange
from tests.short.requests import GOOD
from tests.short.servers import Setup, Stage
from tests.short.standing import STAND_IN, put

SETUP = Setup()
_numbers = count()

GET, CALL, UPDATE, CANCEL = GOOD
NOTHING: dict[str, Any] = {}
LISTEN = Step("subscriptions/listen", {"notifications": {"taskIds": [f"{STAND_IN}done"]}}, None)


def _with(step: Step, what: str, to: object = None) -> Step:
    return Step(step.method, step.params, step.name, [Flaw(what, to)])


def _calling(tool: str, **arguments: Any) -> Step:
    return Step("tools/call", {"name": tool, "arguments": arguments}, tool)


HANDED_OVER: dict[str, tuple[Handover, Step]] = {
    "a GET": (Handover.OTHER_WIRE, _with(GET, "verb", "GET")),
    "an older version": (Handover.OTHER_WIRE, _with(GET, "version", "2025-11-25")),
    "a version that is not known": (Handover.OTHER_WIRE, _with(GET, "version", "2027-01-01")),
    "another method": (Handover.OTHER_METHOD, Step("tools/list", {}, None)),
    "a tool that is not marked": (Handover.OTHER_METHOD, _calling("plain")),
    "no name for a tool": (Handover.HEADERS, _with(CALL, "drop header", b"mcp-name")),
    "a name that comes twice": (Handover.HEADERS, _with(GET, "repeat header", b"mcp-name")),
    "a client that takes no JSON": (Handover.HEADERS, _with(GET, "set header", (b"accept", b"text/event-stream"))),
    "another type of content": (Handover.HEADERS, _with(GET, "set header", (b"content-type", b"text/plain"))),
    "an encoding of the transfer": (Handover.HEADERS, _with(GET, "add header", (b"transfer-encoding", b"chunked"))),
    "an argument in a header": (Handover.HEADERS, _with(CALL, "add header", (b"mcp-param-value", b"v"))),
    "a length that is too large": (Handover.HEADERS, _with(GET, "set header", (b"content-length", b"99999999"))),
    "no stream for a listener": (Handover.HEADERS, _with(LISTEN, "set header", (b"accept", b"application/json"))),
    "a batch": (Handover.BODY, _with(GET, "body", "batch")),
    "no JSON": (Handover.BODY, _with(GET, "body", "halved")),
    "a notification": (Handover.BODY, _with(GET, "drop member", "id")),
    "a large body": (Handover.HEADERS, _with(GET, "body", "over 256 KiB")),
    "a client that leaves": (Handover.BODY, _with(GET, "cut off", [5, 9])),
    "no _meta": (Handover.BODY, _with(GET, "no meta")),
    "a client that says nothing of itself": (Handover.ENVELOPE, _with(GET, "drop meta", CAPABILITIES_KEY)),
    "another method in a header": (Handover.ENVELOPE, _with(GET, "set header", (b"mcp-method", b"tasks/cancel"))),
    "a trace that is no text": (Handover.ENVELOPE, _with(GET, "meta", ("baggage", 1))),
    "a name that is encoded": (Handover.PARAMS, _with(CALL, "encode name")),
    "another name in a header": (Handover.PARAMS, _with(CALL, "name", "kept")),
    "a call that goes on": (Handover.PARAMS, _with(CALL, "param", ("requestState", "x"))),
    "answers on a call": (Handover.PARAMS, _with(CALL, "param", ("inputResponses", NOTHING))),
    "an older way to ask for a task": (Handover.PARAMS, _with(CALL, "param", ("task", {"ttl": 1}))),
    "arguments that are null": (Handover.PARAMS, _with(CALL, "param", ("arguments", None))),
    "an argument that belongs into a header": (Handover.PARAMS, _calling("routed", region="us")),
    "a stream of other things, too": (
        Handover.PARAMS,
        Step("subscriptions/listen", {"notifications": {"taskIds": [], "toolsListChanged": True}}, None),
    ),
    "a client that takes no tasks": (Handover.CALL, _with(CALL, "meta", (CAPABILITIES_KEY, NOTHING))),
    "a tool that is never a task": (Handover.CALL, _calling("forbidden")),
    "a tool with a grace": (Handover.CALL, _calling("graceful")),
    "a tool whose calls are joined": (Handover.CALL, _calling("joined")),
    "a tool that asks before its body": (Handover.CALL, _calling("resolving")),
    "arguments that the tool does not take": (Handover.CALL, _calling("typed", count="many")),
    "a task that is not there": (Handover.REFUSED, _with(GET, "param", ("taskId", f"{STAND_IN}nowhere"))),
    "another's task": (Handover.REFUSED, Step("tasks/cancel", {"taskId": f"{STAND_IN}of-bob"}, None)),
    "a listener without tasks": (Handover.REFUSED, _with(LISTEN, "meta", (CAPABILITIES_KEY, NOTHING))),
}
"""What is sent, and why it is handed over. The reasons that have to do with a server are further down."""


@pytest.fixture(scope="module")
def stage() -> Generator[Stage]:
    """Servers for all tests that change nothing of them."""
    stage = Stage()
    yield stage
    stage.close()


def _both(stage: Stage, step: Step, setup: Setup = SETUP) -> tuple[Answer, Counter[str], Counter[Handover]]:
    """Send a request both ways, to tasks of its own; gives the answer, and what was counted of it."""
    pair, number = stage.pair(setup), next(_numbers)
    counts = pair.short.tasks.short_way
    answered, handed_over = Counter(counts.answered), Counter(counts.handed_over)

    async def compare() -> Answer:
        await put(pair, number)
        short, short_writes = await go(pair, pair.short, "a", number, step)
        long, long_writes = await go(pair, pair.long, "b", number, step)
        assert short.told() == long.told()
        assert short_writes == long_writes
        return short

    return stage.run(compare()), counts.answered - answered, counts.handed_over - handed_over


@pytest.mark.parametrize("what", HANDED_OVER)
def test_it_is_handed_over_as_it_came(stage: Stage, what: str) -> None:
    reason, step = HANDED_OVER[what]
    _, answered, handed_over = _both(stage, step)
    assert (answered, handed_over) == (Counter(), Counter({reason: 1}))


def test_an_answer_that_does_not_fit_is_refused_by_who_found_out(stage: Stage) -> None:
    misfit = Step("tasks/update", {"taskId": f"{STAND_IN}asks", "inputResponses": {"who": {"action": 7}}}, None)
    answer, answered, handed_over = _both(stage, misfit)
    assert answer.message["error"]["code"] == -32602
    assert (answered, handed_over) == (Counter({"tasks/update": 1}), Counter())


def test_every_reason_is_met_by_a_test_here() -> None:
    met = {reason for reason, _ in HANDED_OVER.values()}
    assert met | {Handover.SERVER, Handover.LISTENERS, Handover.FAILED} == set(Handover)


def test_a_body_that_is_larger_than_it_says_is_handed_over_whole(stage: Stage) -> None:
    flaws = [Flaw("body", "over 256 KiB"), Flaw("set header", (b"content-length", b"9"))]
    answer, _, handed_over = _both(stage, Step(GET.method, GET.params, GET.name, flaws))
    assert handed_over == {Handover.BODY: 1}
    assert answer.message["result"]["status"] == "completed"


@pytest.mark.parametrize("flaw", [Flaw("body", "3 KB"), Flaw("set header", (b"content-length", b"1001"))])
def test_what_the_server_refuses_for_its_size_is_refused(stage: Stage, flaw: Flaw) -> None:
    answer, _, _ = _both(stage, Step(GET.method, GET.params, GET.name, [flaw]), Setup(max_body=1_000))
    assert answer.status == 413


def test_a_flaw_of_one_request_is_not_held_against_the_next(stage: Stage) -> None:
    # A host that no other test names: nothing is known of these headers before.
    host = Flaw("set header", (b"host", b"fresh:1"))
    _both(stage, Step(GET.method, GET.params, GET.name, [host, Flaw("repeat header", b"mcp-name")]))
    _, answered, _ = _both(stage, Step(GET.method, GET.params, GET.name, [host]))
    assert answered == {"tasks/get": 1}


# Servers with something of their author's own


@dataclass
class Served:
    """A server, and what was sent to it."""

    server: MCPServer[Any]
    tasks: Tasks
    store: FailingStore
    app: Any

    async def ask(self, step: Step) -> Answer:
        return await exchange(self.app, step.draft(auth=False).sent("a", 0))


class FailingStore(MemoryStore):
    """Fails in the way that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self.creations = 0

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        self.creations += 1
        self._fail()
        return await super().create(record, request, **options)

    async def get(self, task_id: str) -> TaskRecord | None:
        self._fail()
        return await super().get(task_id)

    async def versions(self, task_ids: Any) -> dict[str, int]:
        self._fail()
        return await super().versions(task_ids)

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


@asynccontextmanager
async def _served(
    *, extensions: list[Extension] | None = None, options: dict[str, Any] | None = None, **more: Any
) -> AsyncGenerator[Served]:
    store = FailingStore()
    tasks = Tasks(store, settings=QUICK, runs_tools=False, **(options or {}))
    server: MCPServer[Any] = MCPServer(
        "own", version="1", log_level="CRITICAL", **tasks.wiring(extensions=extensions or []), **more
    )

    @server.tool()
    @tasks.task()
    async def marked(value: Any = None) -> str:
        """A task."""
        return str(value)

    app = server.streamable_http_app(
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
    )
    async with app.router.lifespan_context(app):
        yield Served(server, tasks, store, app)


class Noting:
    """Middleware of an author's own."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        self.seen.append(ctx.method)
        return await call_next(ctx)


class Looking(Extension):
    """An extension that looks at calls."""

    identifier = "example.com/looking"

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        return CallToolResult(content=[TextContent(type="text", text="seen")])


class Idle(Extension):
    """An extension that does not."""

    identifier = "example.com/idle"


@pytest.mark.anyio
async def test_middleware_of_the_authors_own_sees_everything() -> None:
    middleware = Noting()
    async with _served(middleware=[middleware]) as served:
        await served.ask(CALL)
        await served.ask(GET)
        assert served.tasks.short_way.handed_over == {Handover.SERVER: 2}
    assert middleware.seen == ["tools/call", "tasks/get"]


@pytest.mark.anyio
async def test_middleware_that_comes_later_sees_everything_from_then_on() -> None:
    middleware = Noting()
    async with _served() as served:
        await served.ask(CALL)
        served.server.middleware.append(middleware)
        await served.ask(CALL)
        served.server.middleware.remove(middleware)
        await served.ask(CALL)
        assert served.tasks.short_way.answered == {"tools/call": 2}
    assert middleware.seen == ["tools/call"]


@pytest.mark.anyio
async def test_another_extension_that_looks_at_calls_sees_them() -> None:
    async with _served(extensions=[Looking()]) as served:
        answer = await served.ask(CALL)
        assert served.tasks.short_way.handed_over == {Handover.SERVER: 1}
    assert answer.message["result"]["content"][0]["text"] == "seen"


@pytest.mark.anyio
async def test_another_extension_that_does_not_is_in_nobodys_way() -> None:
    async with _served(extensions=[Idle()]) as served:
        answer = await served.ask(CALL)
        assert served.tasks.short_way.answered == {"tools/call": 1}
    assert answer.message["result"]["resultType"] == "task"


Handler = Callable[[ServerRequestContext[Any, Any], Any], Awaitable[HandlerResult]]


def _put_around(server: Server[Any], method: str, params: type[RequestParams]) -> list[str]:
    """Put a handler of an author's own around that of a method, as one does it; what it sees is in the list."""
    entry = server.get_request_handler(method)
    assert entry is not None
    inner: Handler = entry.handler
    seen: list[str] = []

    @functools.wraps(inner)
    async def guarded(ctx: ServerRequestContext[Any, Any], params: Any) -> HandlerResult:
        seen.append(ctx.method)
        return await inner(ctx, params)

    server.add_request_handler(method, params, guarded)
    return seen


@pytest.mark.anyio
async def test_handlers_of_the_authors_own_are_called() -> None:
    async with _served() as served:
        app = served.server.session_manager.app
        called = _put_around(app, "tools/call", CallToolRequestParams)
        got = _put_around(app, "tasks/get", AnyParams)
        await served.ask(CALL)
        await served.ask(GET)
        await served.ask(CANCEL)
        assert served.tasks.short_way.handed_over == {Handover.SERVER: 2, Handover.REFUSED: 1}
    assert (called, got) == (["tools/call"], ["tasks/get"])


@asynccontextmanager
async def _served_lowlevel(after: Callable[[Server[Any]], None]) -> AsyncGenerator[tuple[Tasks, Any]]:
    """A low-level server, with what is done to it after it was given its tasks."""

    async def call(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[])

    async def tools(ctx: ServerRequestContext[Any, Any], params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="marked", input_schema={"type": "object"})])

    tasks = Tasks(MemoryStore(), settings=QUICK, runs_tools=False)
    server: Server[Any] = Server("own", version="1", on_call_tool=call, on_list_tools=tools)
    tasks.mark("marked")
    tasks.attach(server)
    after(server)
    app = server.streamable_http_app(
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
    )
    async with app.router.lifespan_context(app):
        yield tasks, app


LOWLEVEL_CALL = Step("tools/call", {"name": "marked"}, "marked")


@pytest.mark.anyio
async def test_calls_of_a_lowlevel_server_are_answered_here() -> None:
    async with _served_lowlevel(lambda _: None) as (tasks, app):
        answer = await exchange(app, LOWLEVEL_CALL.draft(auth=False).sent("a", 0))
        assert tasks.short_way.answered == {"tools/call": 1}
    assert answer.message["result"]["resultType"] == "task"


@pytest.mark.anyio
async def test_a_handler_that_comes_after_the_tasks_of_a_lowlevel_server_is_called() -> None:
    seen: list[list[str]] = []

    def guard(server: Server[Any]) -> None:
        seen.append(_put_around(server, "tools/call", CallToolRequestParams))

    async with _served_lowlevel(guard) as (tasks, app):
        await exchange(app, LOWLEVEL_CALL.draft(auth=False).sent("a", 0))
        assert tasks.short_way.handed_over == {Handover.SERVER: 1}
    assert seen == [["tools/call"]]


@pytest.mark.anyio
async def test_an_extension_that_is_composed_around_the_tasks_of_a_lowlevel_server_sees_calls() -> None:
    def intercept(server: Server[Any]) -> None:
        entry = server.get_request_handler("tools/call")
        assert entry is not None
        composed = compose_tool_call_handler([Looking()], entry.handler)
        server.add_request_handler("tools/call", CallToolRequestParams, composed)

    async with _served_lowlevel(intercept) as (tasks, app):
        await exchange(app, LOWLEVEL_CALL.draft(auth=False).sent("a", 0))
        assert tasks.short_way.handed_over == {Handover.SERVER: 1}


@pytest.mark.anyio
async def test_a_wrapper_around_middleware_of_ours_is_the_authors() -> None:
    seen: list[str] = []
    async with _served() as served:
        middleware = served.server.middleware
        ours = next(at for at, each in enumerate(middleware) if type(each) is MethodType)
        inner = middleware[ours]

        @functools.wraps(inner)
        async def timed(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
            seen.append(ctx.method)
            return await inner(ctx, call_next)

        middleware[ours] = timed
        await served.ask(CALL)
        assert served.tasks.short_way.handed_over == {Handover.SERVER: 1}
    assert seen == ["tools/call"]


@pytest.mark.anyio
async def test_what_an_author_puts_before_the_layer_stays_before_it() -> None:
    seen: list[str] = []
    async with _served() as served:
        manager = served.server.session_manager
        inner = cast(ASGIApp, manager.asgi_app)

        async def guard(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(scope["method"])
            await inner(scope, receive, send)

        manager.asgi_app = cast(Any, guard)
        async with served.tasks.running(served.server):
            # As for a client in memory, the lifespan is entered once more.
            pass
        await served.ask(CALL)
        assert served.tasks.short_way.answered == {"tools/call": 1}
    assert seen == ["POST"]


@pytest.mark.anyio
async def test_hints_for_caches_are_for_other_methods() -> None:
    async with _served(cache_hints={"tools/list": CacheHint(ttl_ms=5)}) as served:
        await served.ask(CALL)
        assert served.tasks.short_way.answered == {"tools/call": 1}


@pytest.mark.anyio
async def test_switched_off_it_is_not_there() -> None:
    async with _served(options={"short_way": False}) as served:
        answer = await served.ask(CALL)
        counts = served.tasks.short_way
        assert (counts.answered, counts.handed_over) == (Counter(), Counter())
    assert answer.message["result"]["resultType"] == "task"


@pytest.mark.anyio
async def test_listeners_beyond_the_limit_are_the_sdks() -> None:
    async with _served(options={"max_listeners": 1}) as served:
        answers = await asyncio.gather(served.ask(LISTEN), served.ask(LISTEN))
        counts = served.tasks.short_way
        assert (counts.answered, counts.handed_over) == ({"subscriptions/listen": 1}, {Handover.LISTENERS: 1})
    assert answers[0].told() == answers[1].told()


# HTTP servers and middleware that put things in another way


Altering = Callable[[Scope, Message], None]
"""What is done to the scope and the first message of a request."""


def _headers_as(shape: Callable[[Any], Any]) -> Altering:
    def alter(scope: Scope, _: Message) -> None:
        scope["headers"] = shape(scope["headers"])

    return alter


def _body_as(shape: Callable[[bytes], Any]) -> Altering:
    def alter(_: Scope, message: Message) -> None:
        message["body"] = shape(message["body"])

    return alter


def _altered(app: ASGIApp, alter: Altering) -> ASGIApp:
    """The app, behind something that gives it requests in another form."""

    async def before(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        alter(scope, message)
        first = iter([message])

        async def received() -> Message:
            return next(first, None) or await receive()

        await app(scope, received, send)

    return before


ALTERED: dict[str, tuple[Altering, bool]] = {
    "headers that are lists": (_headers_as(lambda headers: [[name, value] for name, value in headers]), True),
    "headers of which some are": (_headers_as(lambda headers: [headers[0], *map(list, headers[1:])]), True),
    "headers in a tuple": (_headers_as(tuple), True),
    "headers that can be read once": (_headers_as(iter), True),
    "names that cannot be looked up": (
        _headers_as(lambda headers: [(bytearray(name), value) for name, value in headers]),
        False,
    ),
    "a body that is not of bytes": (_body_as(memoryview), False),
}
"""What comes, and whether it is answered all the same; otherwise it is met with an exception."""


@pytest.mark.parametrize("what", ALTERED)
@pytest.mark.anyio
async def test_requests_in_another_form_are_answered_or_handed_over(what: str) -> None:
    alter, is_answered = ALTERED[what]
    async with _served() as served:
        manager, counts = served.server.session_manager, served.tasks.short_way
        manager.asgi_app = cast(Any, _altered(cast(ASGIApp, manager.asgi_app), alter))
        answer = await served.ask(CALL)
        assert counts.answered == ({"tools/call": 1} if is_answered else {})
        assert counts.handed_over == ({} if is_answered else {Handover.FAILED: 1})
    assert answer.status == 200
    assert b'"resultType":"task"' in answer.body


# Stores that fail

FAILURES: dict[str, Callable[[], Exception]] = {
    "away": lambda: StoreUnavailable("nothing can be read now"),
    "no answer": lambda: StoreUnavailable("no answer", may_have_happened=True),
    "unreadable": lambda: TaskUnreadable("x", "broken"),
    "a defect": lambda: ZeroDivisionError("a defect"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("step", [GET, CANCEL, UPDATE, LISTEN], ids=lambda step: step.method)
@pytest.mark.anyio
async def test_a_store_that_fails_is_told_of_in_the_same_words(step: Step, failure: str) -> None:
    answers: list[Answer] = []
    for short_way in (True, False):
        async with _served(options={"short_way": short_way}) as served:
            served.store.failure = FAILURES[failure]()
            answers.append(await served.ask(step))
            served.store.failure = None
    assert answers[0].told() == answers[1].told()


@pytest.mark.parametrize("failure", ["away", "no answer", "a defect"])
@pytest.mark.anyio
async def test_a_task_that_cannot_be_made_is_tried_once_and_answered_in_the_same_words(failure: str) -> None:
    answers: list[Answer] = []
    for short_way in (True, False):
        async with _served(options={"short_way": short_way}) as served:
            served.store.failure = FAILURES[failure]()
            answers.append(await served.ask(CALL))
            assert served.store.creations == 1
            assert served.tasks.short_way.answered == ({"tools/call": 1} if short_way else {})
            served.store.failure = None
    assert answers[0].told() == answers[1].told()
    assert "error" in answers[0].message


@pytest.mark.anyio
async def test_a_defect_is_handed_over_and_counted_and_the_log_tells_of_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="mcp_tasks.server.fast_path")
    async with _served() as served:
        served.store.failure = FAILURES["a defect"]()
        await served.ask(GET)
        await served.ask(GET)
        served.store.failure = None
        assert served.tasks.short_way.handed_over == {Handover.FAILED: 2}
    told = [record for record in caplog.records if record.name.startswith("mcp_tasks.server.fast_path")]
    assert [record.levelno for record in told] == [logging.WARNING, logging.DEBUG]
    assert [type(record.exc_info[1]).__name__ for record in told if record.exc_info] == ["ZeroDivisionError"] * 2
