"""The SDK's own client as a wire. It refuses a task as the result of a call, unless an extension claims it."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from mcp import Client
from mcp.client import ClientExtension
from mcp.client.extension import ClaimContext, ResultClaim
from mcp.server import MCPServer, Server
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, Request, Result
from pydantic import ConfigDict

from harness.rpc import EXTENSION, MODERN, Reply, error_response, response


class Anything(Result):
    model_config = ConfigDict(extra="allow")


class ClaimedTask(Result):
    model_config = ConfigDict(extra="allow")

    result_type: Literal["task"] = "task"


class AnyRequest(Request[dict[str, Any], str]):
    """A request of a method that the client does not know."""


class TaskRequest(AnyRequest):
    """A request about a task; over HTTP its id is also in the `Mcp-Name` header."""

    name_param = "taskId"


class ClaimsTasks(ClientExtension):
    identifier = EXTENSION

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=ClaimedTask, resolve=_never)]


async def _never(claimed: ClaimedTask, ctx: ClaimContext) -> CallToolResult:
    raise AssertionError("tests take the task itself")


class ClientWire:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def send(self, message: Mapping[str, Any], *, capabilities: Mapping[str, Any] | None = None) -> Reply:
        try:
            result = await self._send(message["method"], dict(message["params"]))
        except MCPError as exc:
            error = exc.error.model_dump(by_alias=True, mode="json", exclude_none=True)
            return Reply(message=error_response(message["id"], **error))
        dumped = result.model_dump(by_alias=True, mode="json", exclude_unset=True)
        return Reply(message=response(message["id"], {"resultType": "complete", **dumped}))

    async def _send(self, method: str, params: dict[str, Any]) -> Result:
        session = self.client.session
        params.pop("_meta", None)
        if method == "tools/call":
            return await session.call_tool(
                params["name"], params.get("arguments"), allow_claimed=True, allow_input_required=True
            )
        kind = TaskRequest if method.startswith("tasks/") else AnyRequest
        return await session.send_request(kind(method=method, params=params), Anything)


@asynccontextmanager
async def in_memory(
    server: MCPServer[Any] | Server[Any], *, declares: bool = True, **options: Any
) -> AsyncGenerator[ClientWire]:
    extensions = [ClaimsTasks()] if declares else []
    async with Client(server, extensions=extensions, mode=MODERN, **options) as client:
        yield ClientWire(client)
