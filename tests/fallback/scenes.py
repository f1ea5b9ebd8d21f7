"""The ways to the server of these tests: clients, calls that take several requests, stores with moods, processes."""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.session import ClientRequestContext
from mcp_types import (
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    Implementation,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import FileUrl

from harness.forking import piped
from harness.http import HttpWire, http_client, serving
from harness.older import HttpClient, http_session
from harness.processes import ENVIRONMENT, ROOT
from harness.rpc import MODERN, PATIENCE, Reply, Tasking
from harness.serving import ServerProcess
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model.record import TaskRecord
from mcp_tasks.stores import MemoryStore
from tests.fallback.server import FileJobs, Served

MODULE: Final = "tests.fallback.server"
ASKABLE: Final[Mapping[str, Any]] = {"elicitation": {"form": {}}}
MODES: Final = (MODERN, "legacy")

# --- clients of the SDK ---------------------------------------------------------------------------------------------


@dataclass
class Person:
    asked: list[str] = field(default_factory=list[str])

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        return ElicitResult(action="accept", content={"name": "Ada"})


@asynccontextmanager
async def chat(
    target: Any, mode: str, *, name: str = "chat", person: Any = None, **options: Any
) -> AsyncGenerator[Any]:
    """The SDK's client, as a host of that name that speaks no tasks. Typed loosely: its results are looked into."""
    if person is not None:
        options |= {"sampling_callback": _sample, "list_roots_callback": _list_roots}
    info = Implementation(name=name, version="1")
    async with Client(target, mode=mode, client_info=info, elicitation_callback=person, **options) as client:
        yield client


async def _sample(context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="42"), model="none")


async def _list_roots(context: ClientRequestContext) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri=FileUrl("file:///home"))])


def text(result: CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


def facts(result: CallToolResult) -> dict[str, Any]:
    assert isinstance(result.structured_content, dict)
    return cast("dict[str, Any]", result.structured_content)


def handle(result: CallToolResult | Mapping[str, Any], status: str = "working") -> str:
    """The id of the task, in the answer that its tool is still running."""
    if not isinstance(result, CallToolResult):
        result = CallToolResult.model_validate(result, by_name=False)
    assert not result.is_error
    assert "It has not finished, and this is not its result." in text(result)
    told = facts(result)
    assert set(told) == {"taskId", "status", "statusMessage"}
    assert told["status"] == status
    return told["taskId"]


# --- requests by hand -----------------------------------------------------------------------------------------------


@dataclass
class Call:
    """One call of a tool on the newest wire, and the state that its next request is to bring."""

    tool: str
    arguments: Mapping[str, Any]
    state: Any = None

    async def leg(
        self, client: Tasking, answers: Mapping[str, Any] | None = None, *, progress_token: str | None = None
    ) -> Reply:
        """Send the next request of the call; takes the state of its answer, if there is one."""
        params: dict[str, Any] = {"name": self.tool, "arguments": self.arguments}
        if self.state is not None:
            params["requestState"] = self.state
        if answers:
            params["inputResponses"] = answers
        meta = None if progress_token is None else {"progressToken": progress_token}
        reply = await client.ask("tools/call", params, meta=meta)
        if "result" in reply.message and reply.result["resultType"] == "input_required":
            self.state = reply.result["requestState"]
        return reply

    async def begin(self, client: Tasking) -> dict[str, Any]:
        """The first request of a call that is told to come back; gives the questions."""
        result = (await self.leg(client)).result
        assert result["resultType"] == "input_required", result
        return result.get("inputRequests", {})

    async def asked(self, client: Tasking) -> dict[str, Any]:
        """The questions of a call that asks: not with its first request, where the tool had no time to begin."""
        while not (questions := await self.begin(client)):
            pass
        return questions

    async def end(self, client: Tasking, answers: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with anyio.fail_after(PATIENCE):
            result = (await self.leg(client, answers)).result
            while result["resultType"] == "input_required":
                assert not result.get("inputRequests"), result
                result = (await self.leg(client)).result
        return result


@asynccontextmanager
async def legs(url: str, *, token: str | None = None) -> AsyncGenerator[Tasking]:
    """A client of the newest wire that declares no tasks, whose host is called "raw"."""
    async with http_client() as client:
        yield Tasking(HttpWire(url, client, token=token), ASKABLE)


@asynccontextmanager
async def older(url: str, *, token: str | None = None) -> AsyncGenerator[HttpClient]:
    async with http_client() as http, http_session(HttpWire(url, http, token=token)) as client:
        yield client


@asynccontextmanager
async def asking(served: Served) -> AsyncGenerator[Tasking]:
    async with serving(served.server) as wire:
        yield Tasking(wire, ASKABLE)


@asynccontextmanager
async def without_sockets(
    served: Served, *, json_response: bool = False, stateless: bool = False
) -> AsyncGenerator[HttpWire]:
    """A way to the server's app that takes no time of the machine: for simulated time. It gives whole answers."""
    app = served.server.streamable_http_app(json_response=json_response, stateless_http=stateless)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), timeout=None) as client,
    ):
        yield HttpWire("http://127.0.0.1:8000/mcp", client)


# --- stores ---------------------------------------------------------------------------------------------------------


class MoodyStore(MemoryStore):
    """A store that fails in some of its verbs, or does not come to an end with them, for a while. It counts notes."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[str] = set()
        self.may_have_happened = False
        self.notes = 0
        self._held: dict[str, asyncio.Event] = {}

    @contextmanager
    def failing(self, *verbs: str) -> Generator[None]:
        self.away.update(verbs)
        try:
            yield
        finally:
            self.away.difference_update(verbs)

    @contextmanager
    def holding(self, *verbs: str) -> Generator[None]:
        over = asyncio.Event()
        self._held.update(dict.fromkeys(verbs, over))
        try:
            yield
        finally:
            for verb in verbs:
                del self._held[verb]
            over.set()

    async def _read(self, task_id: str, part: Any = None, **options: Any) -> Any:
        await self._be("get")
        if part == "outcome":
            await self._be("outcome")
        return await super()._read(task_id, part, **options)

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        await self._be("save")
        return await super().save(record, **options)

    async def note(self, namespace: str, name: str) -> bytes | None:
        self.notes += 1
        await self._be("note")
        return await super().note(namespace, name)

    async def _be(self, verb: str) -> None:
        if verb in self._held:
            await self._held[verb].wait()
        if verb in self.away:
            raise StoreUnavailable(f"the store is away: {verb}", may_have_happened=self.may_have_happened)


# --- processes ------------------------------------------------------------------------------------------------------


class Place:
    """A folder in which jobs are written down and held up, and the servers that do so."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.jobs = FileJobs(folder)
        self._folder = folder
        self._stack = stack

    def config(self, **said: Any) -> str:
        return json.dumps({"folder": str(self._folder), "store": f"sqlite:///{self._folder / 'tasks.db'}", **said})

    def command(self) -> StdioServerParameters:
        """How a host starts a server that serves its pipes, and keeps its tasks in memory."""
        command, *arguments = piped(MODULE, self.config(store="memory://"))
        return StdioServerParameters(command=command, args=arguments, env=ENVIRONMENT, cwd=ROOT)

    def serve(self) -> ServerProcess:
        return self._stack.enter_context(ServerProcess(MODULE, self.config(fd="{fd}")))


@contextmanager
def place() -> Generator[Place]:
    """A folder for one file of tests; whatever runs on it is ended with it."""
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="mcp-tasks-fallback-"))
        yield Place(Path(folder), stack)
