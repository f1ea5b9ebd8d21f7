"""Clients that host tasks: the person behind one, servers of ours in processes of their own, and one of 2025-11-25 that
says what a test wants it to say."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.session import ClientRequestContext
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    TextContent,
)

from harness.forking import piped
from harness.processes import ENVIRONMENT, ROOT
from harness.rpc import LEGACY, PATIENCE
from harness.schema import check_legacy_result
from harness.serving import ServerProcess
from harness.waiting import eventually
from mcp_tasks.client import Hosting, ServerTransport, TasksClient, stdio_transport, with_tasks
from tests.client.peer import MemoryPeer

RELATED = "io.modelcontextprotocol/related-task"

ELICIT: dict[str, Any] = {
    "message": "Approve?",
    "requestedSchema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
}
SAMPLE: dict[str, Any] = {"messages": [{"role": "user", "content": {"type": "text", "text": "Hello"}}], "maxTokens": 10}

_RESULTS = {"tasks/get": "GetTaskResult", "tasks/cancel": "CancelTaskResult", "tasks/list": "ListTasksResult"}


class Refused(Exception):
    def __init__(self, error: Mapping[str, Any]) -> None:
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")
        super().__init__(f"{self.code}: {self.message}")


class RawServer(MemoryPeer):
    """The server's end of one connection. What the client answers is checked against the schema."""

    def __init__(self, version: str = LEGACY) -> None:
        super().__init__(tasks=None, version=version)
        self._arrived = asyncio.Event()

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with anyio.fail_after(PATIENCE):
            answer = await (await self.send(method, params))
        check_legacy_result("JSONRPCErrorResponse" if "error" in answer else "JSONRPCResultResponse", answer)
        if "error" in answer:
            raise Refused(answer["error"])
        if method in _RESULTS:
            check_legacy_result(_RESULTS[method], answer["result"])
        return answer["result"]

    async def create(self, method: str = "elicitation/create", ttl: Any = 60_000, **fields: Any) -> dict[str, Any]:
        params = {**(ELICIT if method == "elicitation/create" else SAMPLE), **fields}
        params["task"] = {} if ttl is ... else {"ttl": ttl}
        result = await self.ask(method, params)
        check_legacy_result("CreateTaskResult", result)
        return result["task"]

    async def status(self, task_id: str) -> str:
        return (await self.ask("tasks/get", {"taskId": task_id}))["status"]

    async def until(self, task_id: str, status: str) -> dict[str, Any]:
        with anyio.fail_after(PATIENCE):
            while True:
                task = await self.ask("tasks/get", {"taskId": task_id})
                if task["status"] == status:
                    return task
                await anyio.sleep(0.01)

    async def until_none_is_left(self) -> None:
        async def is_empty() -> bool:
            return (await self.ask("tasks/list"))["tasks"] == []

        await eventually(is_empty)

    async def notification(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        with anyio.fail_after(PATIENCE):
            while True:
                for message in self.requests:
                    if wanted(message):
                        return message
                self._arrived.clear()
                await self._arrived.wait()

    def take(self, message: dict[str, Any]) -> None:
        if message.get("method") == "initialize":
            check_legacy_result("InitializeRequest", message)
        super().take(message)
        self._arrived.set()


class Host:
    """The program that has the client: the person who is asked, and the model."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.meta: list[Any] = []
        self.cancelled = 0
        self.answered = 0
        self.ready = asyncio.Event()
        self.answer: ElicitResult | ErrorData = ElicitResult(action="accept", content={"ok": True})
        self.first_answers: list[ElicitResult] = []
        self.report: float | None = None

    async def elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        self.asked.append(params.message)
        self.meta.append(context.meta)
        try:
            if self.report is not None and context.meta is not None:
                token = context.meta.get("progress_token", "")
                await context.session.send_progress_notification(token, self.report)  # pyright: ignore[reportDeprecated]
            await self.ready.wait()
        except asyncio.CancelledError:
            if self.report is not None and context.meta is not None:
                token = context.meta.get("progress_token", "")
                with anyio.CancelScope(shield=True):
                    await context.session.send_progress_notification(token, 99)  # pyright: ignore[reportDeprecated]
            self.cancelled += 1
            raise
        self.answered += 1
        return self.first_answers.pop(0) if self.first_answers else self.answer

    async def sample(self, context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
        self.asked.append("sample")
        await self.ready.wait()
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="Hi"), model="m")


def hosted(
    transport: ServerTransport,
    host: Host,
    tasks: TasksClient | None = None,
    *,
    mode: Any = "legacy",
    samples: bool = True,
) -> Client:
    tasks = tasks or TasksClient(hosting=Hosting())
    return Client(
        tasks.host(transport),
        mode=mode,
        extensions=[tasks],
        elicitation_callback=host.elicit,
        sampling_callback=host.sample if samples else None,
    )


@asynccontextmanager
async def connected(
    host: Host,
    *,
    tasks: TasksClient | None = None,
    server: RawServer | None = None,
    address: str = "raw:one",
    hosting: Hosting | None = None,
    samples: bool = True,
) -> AsyncGenerator[RawServer]:
    raw = server or RawServer()
    client_tasks = tasks or TasksClient(hosting=hosting or Hosting())
    async with hosted(with_tasks(raw.transport(), address=address), host, client_tasks, samples=samples):
        await raw.notification(lambda message: message["method"] == "notifications/initialized")
        yield raw


SERVER = "tests.hosted.asking_server"


def over_stdio(*options: str) -> ServerTransport:
    command, *arguments = piped(SERVER, "stdio", *options)
    return stdio_transport(StdioServerParameters(command=command, args=arguments, cwd=ROOT, env=ENVIRONMENT))


def http_server(*options: str) -> ServerProcess:
    return ServerProcess(SERVER, "http", "{port}", *options)
