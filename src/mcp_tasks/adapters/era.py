"""An era of the protocol that is older than the extension, as the SDK's door sees it: the seam it is passed in at.

The newest era is served by the extension itself. What an older one has instead (its own capabilities, methods, messages
to the client) comes as one object, which sees every message of its versions first. Nothing else knows of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol, TypeAlias

from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult

from mcp_tasks.protocol import TasksProtocol
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.tools.open_calls import OpenCalls

RequestContext: TypeAlias = ServerRequestContext[Any, Any]

Support: TypeAlias = Literal["forbidden", "optional", "required"]
"""Whether a call of something may, must or must not be a task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What the author said of one tool, prompt or resource, as far as a call that asks for a task needs it.

    Attributes:
        support: Whether the call may be a task.
        retention: How long a task is kept after its end unless the call says otherwise; None for good.
        max_retention: The longest that a call may ask for; None for no limit.
        poll_interval: The interval to suggest to clients, if the author fixed one.
        immediate_response: What a host may tell its model at once, in place of the result.
        problem_with: Why arguments will be refused, as far as can be known before the call; None if they will not.
        may_refuse: Whether arguments may be refused that `problem_with` lets pass, when the call begins.
        is_refusal: Whether the text of a failure says that they were, so that the tool was never entered.
    """

    support: Support
    retention: timedelta | None = None
    max_retention: timedelta | None = None
    poll_interval: timedelta | None = None
    immediate_response: str | None = None
    problem_with: Callable[[Mapping[str, Any]], str | None] = lambda _: None
    may_refuse: Callable[[Mapping[str, Any]], bool] = lambda _: False
    is_refusal: Callable[[str], bool] = lambda _: False


class Offers(Protocol):
    """What of a server may be called as a task."""

    def methods(self) -> frozenset[str]:
        """The methods whose calls may be tasks: `tools/call`, and `prompts/get` and `resources/read` where offered."""
        ...

    async def find(self, method: str, name: str) -> Offer | None:
        """The offer for the tool or prompt of that name, or the resource of that URI; None if there is none."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EraParts:
    """What an era is given of the server that it serves.

    Attributes:
        stopping: Returns once the process is told to stop.
        exiting: Returns once the process has to exit. While a request awaits it, a stop waits for that request, as long
            as it waits for running tools.
        open_calls: How what a tool sends to its client reaches that.
        send_input: Whether callers may answer with `tasks/sendInput`, which is in no version of the protocol.
    """

    runtime: Callable[[], TaskRuntime]
    protocol: TasksProtocol
    offers: Offers
    stopping: Callable[[], Awaitable[object]]
    exiting: Callable[[], Awaitable[object]]
    open_calls: OpenCalls
    send_input: bool = False


class Era(Protocol):
    """Tasks of an older era, on a server of the SDK."""

    @property
    def versions(self) -> frozenset[str]:
        """The versions of the protocol that it serves."""
        ...

    def start(self, server: MCPServer[Any] | Server[Any]) -> None:
        """The server starts; called each time its lifespan is entered, before it serves anybody."""
        ...

    def introduce(self, ctx: RequestContext, result: dict[str, Any]) -> None:
        """Add to the answer to `initialize`, which has settled on one of these versions, what the era has to say."""
        ...

    async def serve(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Serve one message of these versions, notifications too: answer it, or hand it on, changed or not.

        All but `initialize`, during which the version is not known yet.

        It is on the path of every message, so what has nothing to do with tasks must cost next to nothing.
        """
        ...
