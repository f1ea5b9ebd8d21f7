"""Two servers that differ in one thing only: whether requests go the short way. They share a store and a clock.

Tasks in every state come in pairs: one for each way, equal but for their ids.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.mcpserver import Context, Resolve
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import Field
from starlette.types import ASGIApp

from harness.auth import USERS, owner_of, server_with
from harness.server import UNPACED, Name, resolve_name
from mcp_tasks import Settings, Tasks
from mcp_tasks.model.json import encode_json
from mcp_tasks.model.record import (
    InputBook,
    InputRequest,
    JournalEntry,
    Outcome,
    Progress,
    TaskRecord,
    TaskRequest,
    TaskStatus,
)
from mcp_tasks.server.options import TaskMode
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.testing import FakeClock

NAME = "twins"

STILL = Settings(lease_duration=timedelta(hours=1), sweep_interval=timedelta(hours=1), drain_timeout=timedelta(0))
"""Nothing happens to a task but what a request does to it."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What servers may differ in that answers depend on."""

    auth: bool = False
    json_response: bool = False
    guarded: bool = False
    needs_name: bool = False
    max_body: int = 4 * 1024 * 1024
    low_level: bool = False
    default_mode: TaskMode | None = None


@dataclass(frozen=True)
class Written:
    """One write to the store, with the id of its task taken out: the two ways give different ones."""

    verb: str
    record: TaskRecord
    beside: object


class WatchedStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[Written] = []

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        # With the exact values of the request: to Python, 1 is 1.0 and true.
        told = [options.get("key"), options.get("key_until_end"), repr(request)]
        self.written.append(Written("create", replace(record, id="", writes=()), told))
        return await super().create(record, request, **options)

    async def save(self, record: TaskRecord, *, expected: int, entries: Any = (), **options: Any) -> TaskRecord:
        noted: list[JournalEntry] = list(entries)
        told = [expected, repr(noted), repr(options.get("outcome"))]
        self.written.append(Written("save", replace(record, id="", writes=()), told))
        return await super().save(record, expected=expected, entries=entries, **options)

    async def delete(self, task_id: str, *, expected: int, now: datetime | None = None) -> None:
        self.written.append(Written("delete", TaskRecord.__new__(TaskRecord), expected))
        await super().delete(task_id, expected=expected, now=now)


def build(tasks: Tasks, *, auth: bool = False) -> MCPServer[Any]:
    """A server with a tool of every kind that is called in its own way."""
    server = server_with(tasks, NAME, USERS if auth else None)
    _add_tools(server, tasks)
    return server


def _add_tools(server: MCPServer[Any], tasks: Tasks) -> None:
    async def marked(value: Any = None, number: int = 0) -> str:
        return f"{value} {number}"

    def add(name: str, **options: Any) -> None:
        tasks.task(name=name, **options)(marked)
        server.add_tool(marked, name=name)

    server.add_tool(marked, name="plain")
    add("marked")
    tasks.task(name="repeatable")(marked)
    server.add_tool(marked, name="repeatable", annotations=ToolAnnotations(idempotent_hint=True))
    add("required", mode="required", ttl=timedelta(minutes=5))
    add("forbidden", mode="forbidden")
    add("graceful", grace=timedelta(milliseconds=2))
    add("limited", max_at_work=1, queue="slow", priority=7, poll_interval=timedelta(seconds=3), version="2")
    add("kept", ttl=None)
    add("joined", join_running=True)
    tasks.mark("größe")
    server.add_tool(marked, name="größe")

    @server.tool()
    @tasks.task()
    async def typed(count: int, scene: str = "forest") -> str:
        return f"{count} {scene}"

    @server.tool()
    @tasks.task()
    async def routed(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "eu") -> str:
        return region

    @server.tool()
    @tasks.task()
    async def resolving(who: Annotated[Name, Resolve(resolve_name)]) -> str:
        return who.name

    @server.tool()
    async def talking(ctx: Context) -> str:
        """Not a task, and its answer is a stream if its caller wants to hear of progress."""
        await ctx.report_progress(1, 2, "half")
        return "said"


def build_low_level(tasks: Tasks) -> Server[Any]:
    """The same on the SDK's low-level server, as far as it goes: of its tools only the names are known."""

    async def list_tools(ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
        return ListToolsResult(
            tools=[Tool(name=name, input_schema={"type": "object"}) for name in ("marked", "kept", "plain")]
            + [Tool(name="routed", input_schema=schema)]
        )

    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=params.name)])

    server: Server[Any] = Server(NAME, version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    for name in ("marked", "kept", "routed"):
        tasks.mark(name)
    tasks.attach(server)
    return server


@dataclass(frozen=True)
class Way:
    tasks: Tasks
    server: MCPServer[Any] | Server[Any]
    app: ASGIApp


class Twins:
    """The same server twice, alive."""

    def __init__(self, setup: Setup, clock: FakeClock, store: WatchedStore, short: Way, long: Way) -> None:
        self.setup = setup
        self.clock = clock
        self.store = store
        self.short = short
        self.long = long


@asynccontextmanager
async def twins(setup: Setup | None = None) -> AsyncGenerator[Twins]:
    chosen, clock, store = setup or Setup(), FakeClock(), WatchedStore()
    async with AsyncExitStack() as stack:
        ways = [await stack.enter_async_context(_way(chosen, clock, store, short=short)) for short in (True, False)]
        yield Twins(chosen, clock, store, *ways)


@asynccontextmanager
async def _way(setup: Setup, clock: FakeClock, store: WatchedStore, *, short: bool) -> AsyncGenerator[Way]:
    tasks = Tasks(
        store,
        # Whether a request comes too often depends on when it comes, and that is not the same on both ways.
        limits=UNPACED,
        clock=clock,
        settings=STILL,
        runs_tools=False,
        fallback="inline",
        require_name_header=setup.needs_name,
        default_mode=setup.default_mode,
        short_way=short,
    )
    server = build_low_level(tasks) if setup.low_level else build(tasks, auth=setup.auth)
    security = TransportSecuritySettings(allowed_hosts=["farm:*", "127.0.0.1"], allowed_origins=["http://farm"])
    app = server.streamable_http_app(
        json_response=setup.json_response,
        max_request_body_size=setup.max_body,
        transport_security=security
        if setup.guarded
        else TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    async with app.router.lifespan_context(app):
        yield Way(tasks, server, app)


# Tasks

STAND_IN: Final = "twin-_______-"
"""What the id of a task begins with in a request before it is known which of the two ways it goes."""

_FORM = {
    "mode": "form",
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
_ASKED = InputBook().ask(
    {
        "who": InputRequest(method="elicitation/create", params=_FORM),
        "where": InputRequest(method="roots/list", params={"task": {"ttl": 1}}),
    }
)
_TEXT = {"content": [{"type": "text", "text": "Grüße \U0001f600"}], "isError": False}
_STRANGE: Mapping[str, Any] = {
    "content": [],
    "structuredContent": {"null": None, "big": 2**70, "float": 1.0, "small": 1e-300, "\u2028": ["\x00"]},
}


@dataclass(frozen=True, kw_only=True)
class State:
    """A state that a task may be in, as what differs from a new one."""

    fields: Mapping[str, Any]
    outcome: Outcome | None = None
    expires: timedelta = timedelta(hours=2)
    token: str | None = "alice"


def _ended(status: TaskStatus, told: object = None, meta: object = None, **fields: Any) -> State:
    outcome = (
        None if told is None else Outcome(body=encode_json(told), meta=None if meta is None else encode_json(meta))
    )
    expires = fields.pop("expires", timedelta(hours=2))
    return State(fields={"status": status, "attempt": 1, **fields}, outcome=outcome, expires=expires)


_AT_WORK: Mapping[str, Any] = {"worker": "somebody", "attempt": 1}

STATES: Final[Mapping[str, State]] = {
    "queued": State(fields={}),
    "at-work": State(fields={**_AT_WORK, "poll_interval": timedelta(seconds=7)}),
    "progress": State(fields={**_AT_WORK, "progress": Progress(progress=1, total=3.5, message="some way\u2028")}),
    "forever": State(fields={**_AT_WORK, "retention": None, "status_message": 'quoted "so" \x7f'}),
    "asks": State(fields={"status": TaskStatus.INPUT_REQUIRED, "attempt": 1, "inputs": _ASKED}),
    "asks-at-work": State(fields={**_AT_WORK, "status": TaskStatus.INPUT_REQUIRED, "inputs": _ASKED}),
    "parked": State(fields={"attempt": 1, "wake_at": timedelta(minutes=5)}),
    "done": _ended(TaskStatus.COMPLETED, _TEXT),
    "done-meta": _ended(TaskStatus.COMPLETED, _STRANGE, {"a": {"b": None}}, status_message="all of it"),
    "failed": _ended(TaskStatus.FAILED, {"code": -32099, "message": "no", "data": {"hint": None}}),
    "cancelled": _ended(TaskStatus.CANCELLED, status_message="Cancelled by the client"),
    "huge": _ended(TaskStatus.COMPLETED, {"content": [{"type": "text", "text": "ü" * 300_000}]}),
    "expiring": _ended(TaskStatus.COMPLETED, _TEXT, expires=timedelta(seconds=1)),
    "expired": _ended(TaskStatus.COMPLETED, _TEXT, expires=-timedelta(seconds=1)),
    "elsewhere": State(fields={"namespace": "another"}),
    "prompt": State(fields={"method": "prompts/get"}),
    "of-bob": State(fields={}, token="bob"),
    "of-nobody": State(fields={}, token=None),
}


def task_id(side: str, number: int, state: str) -> str:
    """The id of one of the two; of one length for both, so that requests are of one length too."""
    return f"{_prefix(side, number)}{state}"


def _prefix(side: str, number: int) -> str:
    return f"twin-{side}{number:06d}-"


def for_side(text: bytes, side: str, number: int) -> bytes:
    """What is written with the stand-in, for the tasks of one side."""
    return text.replace(STAND_IN.encode(), _prefix(side, number).encode())


def neutral(text: bytes, side: str, number: int) -> bytes:
    return text.replace(_prefix(side, number).encode(), STAND_IN.encode())


async def put(pair: Twins, number: int, states: Mapping[str, State] = STATES) -> None:
    """Keep a task in each of the states, for either side."""
    now = pair.clock()
    for side in "ab":
        for name, state in states.items():
            record = _record(task_id(side, number, name), state, now, auth=pair.setup.auth)
            request = TaskRequest(name=record.name, arguments={}, method=record.method)
            await pair.store.create(replace(record, version=1), request)
            if state.outcome is not None or record.version > 1:
                await pair.store.save(record, expected=1, outcome=state.outcome)
    pair.store.written.clear()


def _record(identifier: str, state: State, now: datetime, *, auth: bool) -> TaskRecord:
    fields: dict[str, Any] = {"retention": timedelta(hours=3), "namespace": NAME, "version": 2, **state.fields}
    is_ours = state.token is not None and (auth or state.token == "bob")
    record = TaskRecord(
        id=identifier,
        owner=owner_of(state.token) if is_ours and state.token else None,
        name="marked",
        created_at=now - timedelta(hours=4),
        updated_at=now - timedelta(minutes=1),
        **fields,
    )
    if record.wake_at is not None:
        record = replace(record, wake_at=now + timedelta(minutes=5))
    if not record.is_final:
        return record
    kept = record.retention or timedelta(0)
    return replace(record, finished_at=now + state.expires - kept, updated_at=now + state.expires - kept)
