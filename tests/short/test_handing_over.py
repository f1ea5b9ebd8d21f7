"""What is not answered the short way goes the other: as it came, and for a reason that is counted."""

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from types import MethodType
from typing import Any, TypeAlias, cast

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
from mcp_tasks.server.fast_path.requests import Handover
from tests.short.comparing import Tally, compare
from tests.short.raw import Answer, exchange
from tests.short.requests import CAPABILITIES_KEY, GOOD, Flaw, Step
from tests.short.servers import STAND_IN, Setup, Twins, twins
from tests.unit.running import MeddledStore

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
async def pair() -> AsyncGenerator[Twins]:
    async with twins() as pair:
        yield pair


async def _both(pair: Twins, step: Step) -> tuple[Answer, dict[str, int], dict[str, int]]:
    """Send a request both ways, to tasks of its own; gives the answer, and what was counted of it."""
    tally = Tally()
    answer = await compare(pair, next(_numbers), [step], tally)
    return answer, dict(tally.answered), dict(tally.handed_over)


@pytest.mark.parametrize("what", HANDED_OVER)
async def test_it_is_handed_over_as_it_came(pair: Twins, what: str) -> None:
    reason, step = HANDED_OVER[what]
    _, answered, handed_over = await _both(pair, step)
    assert (answered, handed_over) == ({}, {reason: 1})


async def test_an_answer_that_does_not_fit_is_refused_by_who_found_out(pair: Twins) -> None:
    misfit = Step("tasks/update", {"taskId": f"{STAND_IN}asks", "inputResponses": {"who": {"action": 7}}}, None)
    answer, answered, handed_over = await _both(pair, misfit)
    assert answer.message["error"]["code"] == -32602
    assert (answered, handed_over) == ({"tasks/update": 1}, {})


LARGE: dict[str, tuple[Step, list[Flaw], bool]] = {
    "in one piece": (GET, [Flaw("body", "over 256 KiB")], False),
    "too large by its last piece": (GET, [Flaw("body", "over 256 KiB"), Flaw("pieces", [262_000])], False),
    "too large before its last": (CALL, [*[Flaw("body", "large argument")] * 3, Flaw("pieces", [9, 270_000])], False),
    "as large as may be": (GET, [Flaw("body", "256 KiB"), Flaw("pieces", [9, 262_000])], True),
    "never sent": (GET, [Flaw("cut off", [])], False),
}
"""Bodies that are larger than their headers say, or smaller, and whether they are answered the short way."""


@pytest.mark.parametrize("what", LARGE)
async def test_a_body_in_pieces_is_handed_over_whole(pair: Twins, what: str) -> None:
    step, flaws, is_answered = LARGE[what]
    flaws = [*flaws, Flaw("set header", (b"content-length", b"9"))]
    answer, _, handed_over = await _both(pair, Step(step.method, step.params, step.name, flaws))
    assert handed_over == ({} if is_answered else {Handover.BODY: 1})
    assert what == "never sent" or answer.message["result"]["status"] in ("working", "completed")


async def test_what_the_server_refuses_for_its_size_is_refused() -> None:
    async with twins(Setup(max_body=1_000)) as pair:
        for flaw in (Flaw("body", "3 KB"), Flaw("set header", (b"content-length", b"1001"))):
            answer, _, _ = await _both(pair, Step(GET.method, GET.params, GET.name, [flaw]))
            assert answer.status == 413


async def test_a_flaw_of_one_request_is_not_held_against_the_next(pair: Twins) -> None:
    # A host that no other test names: nothing is known of these headers before.
    host = Flaw("set header", (b"host", b"fresh:1"))
    await _both(pair, Step(GET.method, GET.params, GET.name, [host, Flaw("repeat header", b"mcp-name")]))
    _, answered, _ = await _both(pair, Step(GET.method, GET.params, GET.name, [host]))
    assert answered == {"tasks/get": 1}


# Servers with something of their author's own


@dataclass
class Served:
    server: MCPServer[Any] | Server[Any]
    tasks: Tasks
    store: MeddledStore
    app: Any

    @property
    def low(self) -> Server[Any]:
        return self.server if isinstance(self.server, Server) else self.server.session_manager.app

    async def ask(self, step: Step) -> Answer:
        return await exchange(self.app, step.draft(auth=False).sent("a", 0))

    @property
    def counts(self) -> tuple[dict[str, int], dict[Handover, int]]:
        """What was answered the short way, and what was handed over."""
        return dict(self.tasks.short_way.answered), dict(self.tasks.short_way.handed_over)


def _high_level(tasks: Tasks, extensions: list[Extension], **more: Any) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer(
        "own", version="1", log_level="CRITICAL", **tasks.wiring(extensions=extensions), **more
    )

    @server.tool()
    @tasks.task()
    async def marked(value: Any = None) -> str:
        return str(value)

    return server


def _low_level(tasks: Tasks) -> Server[Any]:
    async def call(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[])

    async def tools(ctx: ServerRequestContext[Any, Any], params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="marked", input_schema={"type": "object"})])

    server: Server[Any] = Server("own", version="1", on_call_tool=call, on_list_tools=tools)
    tasks.mark("marked")
    tasks.attach(server)
    return server


@asynccontextmanager
async def _served(
    *, extensions: list[Extension] | None = None, low_level: bool = False, **more: Any
) -> AsyncGenerator[Served]:
    store = MeddledStore()
    options = {name: more.pop(name) for name in ("short_way", "max_listeners") if name in more}
    tasks = Tasks(store, settings=QUICK, runs_tools=False, **options)
    server = _low_level(tasks) if low_level else _high_level(tasks, extensions or [], **more)
    app = server.streamable_http_app(
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
    )
    async with app.router.lifespan_context(app):
        yield Served(server, tasks, store, app)


class Looking(Extension):
    identifier = "example.com/looking"

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        return CallToolResult(content=[TextContent(type="text", text="seen")])


class Idle(Extension):
    identifier = "example.com/idle"


Seen: TypeAlias = list[str]


def _append_middleware(server: Any, seen: Seen) -> None:
    async def note(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        seen.append(ctx.method)
        return await call_next(ctx)

    server.middleware.append(note)


def _wrap_our_middleware(server: Any, seen: Seen) -> None:
    at, inner = next((at, each) for at, each in enumerate(server.middleware) if type(each) is MethodType)

    @functools.wraps(inner)
    async def timed(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        seen.append(ctx.method)
        return await inner(ctx, call_next)

    server.middleware[at] = timed


def _wrap_handler(server: Any, seen: Seen, method: str = "tools/call", params: Any = CallToolRequestParams) -> None:
    low = cast("Server[Any]", server if isinstance(server, Server) else server.session_manager.app)
    entry = low.get_request_handler(method)
    assert entry is not None
    inner: Callable[[ServerRequestContext[Any, Any], Any], Awaitable[HandlerResult]] = entry.handler

    @functools.wraps(inner)
    async def guarded(ctx: ServerRequestContext[Any, Any], params: RequestParams) -> HandlerResult:
        seen.append(ctx.method)
        return await inner(ctx, params)

    low.add_request_handler(method, params, guarded)


def _compose_extension(server: Any, seen: Seen) -> None:
    entry = server.get_request_handler("tools/call")
    composed = compose_tool_call_handler([Looking()], entry.handler)
    server.add_request_handler("tools/call", CallToolRequestParams, composed)
    seen.append("tools/call")


@pytest.mark.parametrize(
    ("put_in", "low_level"),
    [
        *((_append_middleware, False), (_wrap_our_middleware, False), (_wrap_handler, False)),
        *((_wrap_handler, True), (_compose_extension, True)),
    ],
)
async def test_what_an_author_puts_in_sees_every_call_from_then_on(
    put_in: Callable[[Any, Seen], None], low_level: bool
) -> None:
    seen: Seen = []
    # Of the tools of a low-level server no schema is known.
    call = Step("tools/call", {"name": "marked"}, "marked") if low_level else CALL
    async with _served(low_level=low_level) as served:
        await served.ask(call)
        assert served.counts == ({"tools/call": 1}, {})
        put_in(served.server, seen)
        await served.ask(call)
        assert served.counts == ({"tools/call": 1}, {Handover.SERVER: 1})
    assert seen == ["tools/call"]


async def test_another_extension_sees_calls_if_it_looks_at_them() -> None:
    async with _served(extensions=[Looking()]) as served:
        answer = await served.ask(CALL)
        assert served.counts == ({}, {Handover.SERVER: 1})
    assert answer.message["result"]["content"][0]["text"] == "seen"
    async with _served(extensions=[Idle()], cache_hints={"tools/list": CacheHint(ttl_ms=5)}) as served:
        await served.ask(CALL)
        assert served.counts == ({"tools/call": 1}, {})


def _before_the_app(served: Served, wrap: Callable[[ASGIApp], ASGIApp]) -> None:
    manager = served.low.session_manager
    manager.asgi_app = cast(Any, wrap(cast(ASGIApp, manager.asgi_app)))


async def test_listeners_beyond_the_limit_are_the_sdks() -> None:
    async with _served(max_listeners=1) as served:
        answers = await asyncio.gather(served.ask(LISTEN), served.ask(LISTEN))
        assert served.counts == ({"subscriptions/listen": 1}, {Handover.LISTENERS: 1})
    assert answers[0].told() == answers[1].told()


# HTTP servers and middleware that put things in another way


ALTERED: dict[str, tuple[Callable[[Scope, Message], Any], bool]] = {
    "headers that are lists": (lambda scope, _: scope.update(headers=[list(each) for each in scope["headers"]]), True),
    "headers in a tuple": (lambda scope, _: scope.update(headers=tuple(scope["headers"])), True),
    "headers that can be read once": (lambda scope, _: scope.update(headers=iter(scope["headers"])), True),
    "names that cannot be looked up": (
        lambda scope, _: scope.update(headers=[(bytearray(name), value) for name, value in scope["headers"]]),
        False,
    ),
    "a body that is not of bytes": (lambda _, message: message.update(body=memoryview(message["body"])), False),
}
"""What comes, and whether it is answered all the same; otherwise it is met with an exception."""


@pytest.mark.parametrize("what", ALTERED)
async def test_requests_in_another_form_are_answered_or_handed_over(what: str) -> None:
    alter, is_answered = ALTERED[what]

    def altered(app: ASGIApp) -> ASGIApp:
        async def before(scope: Scope, receive: Receive, send: Send) -> None:
            message = await receive()
            alter(scope, message)
            first = iter([message])

            async def received() -> Message:
                return next(first, None) or await receive()

            await app(scope, received, send)

        return before

    async with _served() as served:
        _before_the_app(served, altered)
        answer = await served.ask(CALL)
        assert served.counts == (({"tools/call": 1}, {}) if is_answered else ({}, {Handover.FAILED: 1}))
    assert answer.status == 200
    assert b'"resultType":"task"' in answer.body


async def test_a_body_without_end_is_refused() -> None:
    def endless(app: ASGIApp) -> ASGIApp:
        async def before(scope: Scope, receive: Receive, send: Send) -> None:
            async def received() -> Message:
                await asyncio.sleep(0)
                return {"type": "http.request", "body": b" " * 10_000, "more_body": True}

            await app(scope, received, send)

        return before

    async with _served() as served:
        _before_the_app(served, endless)
        assert (await served.ask(CALL)).status == 413


async def test_an_error_in_the_middle_of_a_body_goes_to_where_the_body_comes_from() -> None:
    def refusing(app: ASGIApp) -> ASGIApp:
        async def before(scope: Scope, receive: Receive, send: Send) -> None:
            pieces = iter([{"type": "http.request", "body": b"{", "more_body": True}])

            async def received() -> Message:
                if (piece := next(pieces, None)) is None:
                    raise RuntimeError("the body is refused")
                return piece

            await app(scope, received, send)

        return before

    async with _served() as served:
        _before_the_app(served, refusing)
        answer = await served.ask(CALL)
        assert (answer.raised, served.counts) == ("RuntimeError", ({}, {}))


# Stores that fail

FAILURES: dict[str, Callable[[], Exception]] = {
    "away": lambda: StoreUnavailable("nothing can be read now"),
    "no answer": lambda: StoreUnavailable("no answer", may_have_happened=True),
    "unreadable": lambda: TaskUnreadable("x", "broken"),
    "a defect": lambda: ZeroDivisionError("a defect"),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_store_that_fails_is_told_of_in_the_same_words(failure: str) -> None:
    told: list[list[object]] = []
    for short_way in (True, False):
        async with _served(short_way=short_way) as served:
            served.store.refuse(FAILURES[failure](), "create", "get", "versions")
            answers = [await served.ask(step) for step in (GET, CANCEL, UPDATE, LISTEN, CALL)]
            told.append([answer.told() for answer in answers])
            served.store.before.clear()
            # A task that cannot be made is tried once.
            assert served.store.calls["create"] == 1
            assert ("tools/call" in served.counts[0]) is short_way
            assert b'"error"' in answers[-1].body
    assert told[0] == told[1]


async def test_a_defect_is_handed_over_and_counted_and_the_log_tells_of_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="mcp_tasks.server.fast_path")
    async with _served() as served:
        served.store.refuse(FAILURES["a defect"](), "get", "versions")
        await served.ask(GET)
        await served.ask(GET)
        served.store.before.clear()
        assert served.counts == ({}, {Handover.FAILED: 2})
    told = [record for record in caplog.records if record.name.startswith("mcp_tasks.server.fast_path")]
    assert [record.levelno for record in told] == [logging.WARNING, logging.DEBUG]
    assert [type(record.exc_info[1]).__name__ for record in told if record.exc_info] == ["ZeroDivisionError"] * 2
