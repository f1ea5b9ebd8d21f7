"""What the verbs of `TasksClient` need of a client: the SDK's own, or one that others have built on the SDK's session.

FastMCP's client is such a one. It takes extensions as the SDK's does, and its calls reach the claims of an extension by
the same way, but it shows neither what it was given nor its transport, and its `call_tool` has other arguments and
another result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from mcp import Client
from mcp.client.extension import ClientExtension
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult, RequestParamsMeta

from mcp_tasks.client.tool_name import ToolName
from mcp_tasks.client.transport import ServerTransport
from mcp_tasks.errors import UsageError


@runtime_checkable
class ConnectedClient(Protocol):
    """A client with a session of the SDK's: the SDK's `Client`, or FastMCP's."""

    @property
    def session(self) -> ClientSession:
        """The session, while the client is connected."""
        ...


@runtime_checkable
class _RawCalls(Protocol):
    """A client that gives the SDK's results by a method beside its `call_tool`, as FastMCP's does."""

    async def call_tool_mcp(
        self,
        name: str,
        arguments: dict[str, Any],
        progress_handler: ProgressFnT | None = None,
        timeout: float | None = None,
    ) -> CallToolResult: ...


def extensions_of(client: ConnectedClient) -> Sequence[ClientExtension] | None:
    """The extensions that a client was given; None if it does not say."""
    return client.extensions or () if isinstance(client, Client) else None


def timeout_of(client: ConnectedClient) -> float | None:
    """How many seconds a client waits for the answer to a request; None for no limit, or one that is not shown."""
    return client.read_timeout_seconds if isinstance(client, Client) else None


def takes_meta(client: ConnectedClient) -> bool:
    """Whether a call of the client can be given a `_meta`."""
    return isinstance(client, Client)


def transport_of(client: ConnectedClient) -> ServerTransport | None:
    """The transport of a client, if it is one of ours and the client shows it."""
    server: object = client.server if isinstance(client, Client) else None
    return server if isinstance(server, ServerTransport) else None


async def call_over(
    client: ConnectedClient,
    tool: ToolName,
    arguments: dict[str, Any] | None,
    timeout: float | None = None,
    progress: ProgressFnT | None = None,
    meta: Mapping[str, Any] | None = None,
) -> CallToolResult:
    """Call a tool in the client's own way, questions before the task included.

    Args:
        meta: What goes into the `_meta` of the call, where the client takes some.

    Raises:
        UsageError: It is no client that is known here.
    """
    if isinstance(client, Client):
        return await client.call_tool(tool, arguments, timeout, progress, meta=cast("RequestParamsMeta | None", meta))
    if isinstance(client, _RawCalls):
        return await client.call_tool_mcp(tool, arguments or {}, progress_handler=progress, timeout=timeout)
    raise UsageError(f"tools can be called by the SDK's Client and by FastMCP's, not by {type(client).__name__}")
