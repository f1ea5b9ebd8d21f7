"""`TasksClient`: the object a host author adds to the official SDK's `Client`.

async with Client(url, extensions=[TasksClient()]) as client:
    result = await client.call_tool("render", {...})       # however long it takes
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp.client.session import ClientSession
from mcp_types import CallToolResult
from pydantic import BaseModel, ConfigDict

from mcp_tasks.client.handle import OnAbandon, OnProgress, TaskHandle
from mcp_tasks.client.ledger import Ledger
from mcp_tasks.client.poller import Patience
from mcp_tasks.client.push import PushHub
from mcp_tasks.client.requests import CreateTaskResult
from mcp_tasks.wire.models import EXTENSION_ID


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOptions:
    """How one call treats the task that it may become."""

    timeout: timedelta | float | None = None
    on_progress: OnProgress | None = None
    on_abandon: OnAbandon = "cancel"
    want_handle: bool = False


call_options: ContextVar[CallOptions | None] = ContextVar("mcp_tasks_call_options", default=None)


class HandleWanted(Exception):
    """The call became a task, and its caller wants to have it in hand."""

    def __init__(self, handle: TaskHandle) -> None:
        self.handle = handle
        super().__init__(f"{handle!r} was asked for")


class TasksClient(ClientExtension):
    """Makes calls that become tasks work like any other call.

    Args:
        ledger: A file (or a `Ledger`) in which started tasks are remembered over restarts.
        server: What the ledger calls the server; by default the name it gives itself.
        push: Listen for changes where the server offers that; polling stays as the backstop.
        on_abandon: What becomes of a task when the call that waits for it is cancelled.
        on_progress: Called with the progress of any task that a call waits for.
        patience: How long a server may be out of reach before a wait ends.
    """

    identifier = EXTENSION_ID

    def __init__(
        self,
        *,
        ledger: Ledger | str | Path | None = None,
        server: str | None = None,
        push: bool = True,
        on_abandon: OnAbandon = "cancel",
        on_progress: OnProgress | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.ledger = Ledger(ledger) if isinstance(ledger, str | Path) else ledger
        self._server = server
        self._push = push
        self.defaults = CallOptions(on_abandon=on_abandon, on_progress=on_progress)
        self._patience = patience
        self._hubs: WeakKeyDictionary[ClientSession, PushHub] = WeakKeyDictionary()

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """A task is a result this client can finish."""
        return [ResultClaim(result_type="task", model=CreateTaskResult, resolve=self._resolve)]

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        """States of tasks that a server pushes."""
        if not self._push:
            return []
        return [NotificationBinding(method="notifications/tasks", params_type=_AnyParams, handler=self._deliver)]

    def handle(self, session: ClientSession, task_id: str, *, tool: str = "") -> TaskHandle:
        """A handle of a task of the server at the other end of `session`."""
        return TaskHandle(
            session,
            task_id,
            server=self.server_name(session),
            tool=tool,
            hub=self._hub(session),
            ledger=self.ledger,
            patience=self._patience,
        )

    def pending(self, session: ClientSession) -> list[TaskHandle]:
        """Handles of the tasks that the ledger still has of this server."""
        if self.ledger is None:
            return []
        entries = self.ledger.pending(server=self.server_name(session))
        return [self.handle(session, entry.task_id, tool=entry.tool) for entry in entries]

    def server_name(self, session: ClientSession) -> str:
        """What the ledger calls the server of this session."""
        info = session.server_info
        return self._server if self._server is not None else (info.name if info is not None else "")

    def options(self) -> CallOptions:
        """How the call under way treats its task."""
        return call_options.get() or self.defaults

    def _hub(self, session: ClientSession) -> PushHub | None:
        if not self._push:
            return None
        if session not in self._hubs:
            self._hubs[session] = PushHub(session)
        return self._hubs[session]

    async def _resolve(self, created: CreateTaskResult, ctx: ClaimContext) -> CallToolResult:
        handle = self.handle(ctx.session, created.task_id, tool=ctx.tool_name)
        if self.ledger is not None:
            self.ledger.add(handle.id, server=self.server_name(ctx.session), tool=ctx.tool_name)
        options = self.options()
        if options.want_handle:
            raise HandleWanted(handle)
        return await handle.result(options.timeout, on_progress=options.on_progress, on_abandon=options.on_abandon)

    async def _deliver(self, params: _AnyParams) -> None:
        # A binding is not told on which session a notification came; ids are unique, so whoever has it is meant.
        data = params.model_dump(by_alias=True)
        for hub in list(self._hubs.values()):
            hub.deliver(data)


class _AnyParams(BaseModel):
    model_config = ConfigDict(extra="allow")
