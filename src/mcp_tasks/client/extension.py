"""`TasksClient`: the object a host author adds to the official SDK's `Client`.

async with Client(reconnecting_http(url), extensions=[TasksClient()]) as client:
    result = await client.call_tool("render", {...})       # however long it takes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp.client.session import ClientSession
from mcp_types import CallToolResult
from pydantic import BaseModel, ConfigDict

from mcp_tasks.client.handle import OnAbandon, OnProgress, TaskHandle
from mcp_tasks.client.ledger import Ledger
from mcp_tasks.client.links import Link, Switchboard
from mcp_tasks.client.memory import TaskMemory
from mcp_tasks.client.poller import Patience
from mcp_tasks.client.requests import CreateTaskResult
from mcp_tasks.client.transport import TASK_NOTIFICATION, ServerTransport, transport_in
from mcp_tasks.errors import UsageError
from mcp_tasks.wire.models import EXTENSION_ID

_NO_ADDRESS = (
    "the ledger keeps tasks by the address of their server, and the address of this one is not known: connect with "
    "Client(reconnecting_http(url), ...) or Client(stdio_transport(parameters), ...), or say "
    "TasksClient(ledger=..., server='https://...')"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOptions:
    """How one call treats the task that it may become. None is as the `TasksClient` was made."""

    timeout: timedelta | float | None = None
    on_progress: OnProgress | None = None
    on_abandon: OnAbandon | None = None
    want_handle: bool = False


class ToolName(str):
    """A tool's name that carries the options of the one call it is given to.

    The SDK hands the name through to the claim as it was given. Anything kept beside the call (a context variable, the
    running task) would be found by calls that are made inside its callbacks as well.
    """

    options: CallOptions

    def __new__(cls, name: str, options: CallOptions) -> Self:
        tool = super().__new__(cls, name)
        tool.options = options
        return tool


class HandleWanted(Exception):
    """The call became a task, and its caller wants to have it in hand."""

    def __init__(self, handle: TaskHandle) -> None:
        self.handle = handle
        super().__init__(f"{handle!r} was asked for")


class TasksClient(ClientExtension):
    """Makes calls that become tasks work like any other call.

    Args:
        ledger: A file (or a `Ledger`) in which started tasks are remembered over restarts.
        server: The address by which the ledger knows the server. Our transports know it; it must be said where
            another is used, and speaks for every client that this is given to.
        identity: Who you are to the server, in your own words, if one ledger serves several users of it. Do not make
            it from a token: tokens change, and the tasks would be lost with them.
        push: Listen for changes where the server offers that; polling stays as the backstop.
        on_abandon: What becomes of a task when nobody waits for it any more: it goes on ("leave"), or is cancelled.
        on_progress: Called with the progress of any task that a call waits for.
        patience: How long a server may be out of reach before a wait ends.
    """

    identifier = EXTENSION_ID

    def __init__(
        self,
        *,
        ledger: Ledger | str | Path | None = None,
        server: str | None = None,
        identity: str = "",
        push: bool = True,
        on_abandon: OnAbandon = "leave",
        on_progress: OnProgress | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.ledger = Ledger(ledger) if isinstance(ledger, str | Path) else ledger
        self.identity = identity
        self._server = server
        self._push = push
        self._on_abandon: OnAbandon = on_abandon
        self._on_progress = on_progress
        self._patience = patience
        self._switchboard = Switchboard(push=push)
        self._begun: Link | None = None

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """A task is a result this client can finish. Asked for once for each client, before its notifications.

        Raises:
            UsageError: There is a ledger, and this client's server has no address.
        """
        # A client is made with its transport: if none of ours waits for its client, this client has another one.
        if self.ledger is not None and self._server is None and not ServerTransport.is_any_unused():
            raise UsageError(_NO_ADDRESS)
        self._begun = self._switchboard.begin()
        resolve = partial(self._resolve, self._begun)
        return [ResultClaim(result_type="task", model=CreateTaskResult, resolve=resolve)]

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        """States of tasks that a server pushes."""
        link, self._begun = self._begun or self._switchboard.begin(), None
        if not self._push:
            return []
        handler = partial(self._deliver, link)
        return [NotificationBinding(method=TASK_NOTIFICATION, params_type=_AnyParams, handler=handler)]

    def handle(
        self, session: ClientSession, task_id: str, *, tool: str = "", transport: ServerTransport | None = None
    ) -> TaskHandle:
        """A handle of a task of the server at the other end of `session`.

        Raises:
            UsageError: There is a ledger, and the server has no address.
        """
        connection = self._switchboard.connection(session, transport)
        server = "" if self.ledger is None else self.address(session, transport)
        return TaskHandle(
            session,
            task_id,
            tool=tool,
            hub=connection.hub,
            memory=TaskMemory(self.ledger, task_id, server=server, identity=self.identity),
            patience=self._patience,
            on_abandon=self._on_abandon,
        )

    def pending(self, session: ClientSession, transport: ServerTransport | None = None) -> list[TaskHandle]:
        """Handles of the tasks that the ledger still has of this server."""
        if self.ledger is None:
            return []
        entries = self.ledger.pending(server=self.address(session, transport), identity=self.identity)
        return [self.handle(session, entry.task_id, tool=entry.tool) for entry in entries if entry.attributed]

    def address(self, session: ClientSession, transport: ServerTransport | None = None) -> str:
        """The address by which the ledger knows the server of this session.

        Raises:
            UsageError: It has none.
        """
        if self._server is not None:
            return self._server
        known = self._switchboard.connection(session, transport).transport
        if known is None:
            raise UsageError(_NO_ADDRESS)
        return known.address

    async def _resolve(self, link: Link, created: CreateTaskResult, ctx: ClaimContext) -> CallToolResult:
        link.prove(ctx.session)
        options = ctx.tool_name.options if isinstance(ctx.tool_name, ToolName) else CallOptions()
        try:
            handle = self.handle(
                ctx.session, created.task_id, tool=str(ctx.tool_name), transport=transport_in(created.meta)
            )
        except UsageError as exc:
            raise UsageError(f"task {created.task_id} goes on, but was not written down: {exc}") from None
        handle.remember()
        if options.want_handle:
            raise HandleWanted(handle)
        return await handle.result(
            options.timeout, on_progress=options.on_progress or self._on_progress, on_abandon=options.on_abandon
        )

    async def _deliver(self, link: Link, params: _AnyParams) -> None:
        self._switchboard.deliver(link, params.model_extra or {})


class _AnyParams(BaseModel):
    model_config = ConfigDict(extra="allow")
