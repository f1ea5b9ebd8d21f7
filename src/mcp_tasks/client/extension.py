"""`TasksClient`: the object a host author adds to the official SDK's `Client`, or to FastMCP's.

    tasks = TasksClient()
    async with Client(reconnecting_http(url), extensions=[tasks]) as client:
        result = await client.call_tool("render", {...})       # however long it takes
        handle = await tasks.start(client, "render", {...})    # or the task in hand

The verbs take the client, because one `TasksClient` may be given to several.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult
from pydantic import BaseModel, ConfigDict

from mcp_tasks.client.callbacks import AT_ONCE, PER_TASK, Callbacks
from mcp_tasks.client.connected import (
    ConnectedClient,
    extensions_of,
    transport_of,
)
from mcp_tasks.client.eras import HostedTasks, Hosting, has_older_tasks, host_over
from mcp_tasks.client.handle import (
    OnAbandon,
    OnProgress,
    TaskHandle,
    check_on_abandon,
    check_on_progress,
)
from mcp_tasks.client.handles import NO_ADDRESS, Handles, new
from mcp_tasks.client.ledger import Ledger
from mcp_tasks.client.links import Link, Switchboard
from mcp_tasks.client.poller import Patience
from mcp_tasks.client.port import OlderTasks
from mcp_tasks.client.repeating import honours_keys
from mcp_tasks.client.requests import CreatedTask
from mcp_tasks.client.starting import start_call
from mcp_tasks.client.tool_name import CallOptions, HandleWanted, ToolName, options_of
from mcp_tasks.client.transport import INTRODUCTION, TASK_NOTIFICATION, ServerTransport, transport_in
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.values import check_flag, check_instance, check_text
from mcp_tasks.encryption import Cipher
from mcp_tasks.errors import InvalidOption, InvalidResponse, UsageError
from mcp_tasks.wire.models import EXTENSION_ID
from mcp_tasks.wire.parse import TaskSnapshot, parse_task

_NO_HOST = (
    "this TasksClient hosts tasks, and the transport of this client does not know of it: connect with "
    "Client(tasks.host(transport), extensions=[tasks]), where transport is one of ours"
)

_NO_WIRE = (
    "this server speaks {version}, whose tasks the SDK's own transports cannot carry: connect with "
    "Client(reconnecting_http(url), ...), Client(stdio_transport(parameters), ...) or, for any other transport, "
    "Client(with_tasks(transport), ...), all from mcp_tasks.client"
)


class TasksClient(ClientExtension):
    """Makes calls that become tasks work like any other call.

    Args:
        ledger: A file (or a `Ledger`) that keeps the ids of started tasks across restarts.
        cipher: Encrypts the ledger that a path names (`mcp_tasks.encryption.Keyring`); a `Ledger` is given its own.
        server: The address under which the ledger keeps the tasks of the server. Our transports know it. With any
            other transport it must be given, and holds for every client that this object is given to.
        identity: Who you are to the server, in a name of your choosing, if one ledger serves several users. Do not
            derive it from a token: tokens change, and the tasks would no longer be found.
        push: Listen for changes where the server supports it; polling stays as the fallback.
        on_abandon: What becomes of a task when a wait for it ends before it does: it goes on ("leave"), or is
            cancelled.
        on_progress: Called with the progress of every task that a call waits for.
        patience: How long a server may be unreachable before a wait ends.
        max_callbacks: How many callbacks (elicitation, sampling, roots) work at a time for questions of tasks, those
            that are hosted included.
        max_callbacks_per_task: How many questions one task may ask in all. With the next one the wait for it ends.
        hosting: Take requests of 2025-11-25 servers for sampling and elicitation as tasks, within these limits. The
            transport must be told as well: `Client(tasks.host(transport), extensions=[tasks])`.

    Raises:
        InvalidOption: An argument has a value that it cannot have.
    """

    identifier = EXTENSION_ID

    def __init__(
        self,
        *,
        ledger: Ledger | str | Path | None = None,
        cipher: Cipher | None = None,
        server: str | None = None,
        identity: str = "",
        push: bool = True,
        on_abandon: OnAbandon = "leave",
        on_progress: OnProgress | None = None,
        patience: Patience | None = None,
        max_callbacks: int = AT_ONCE,
        max_callbacks_per_task: int = PER_TASK,
        hosting: Hosting | None = None,
    ) -> None:
        check_on_abandon(on_abandon)
        check_on_progress(on_progress)
        check_flag("push", push)
        if patience is not None:
            check_instance("patience", patience, Patience)
        if hosting is not None:
            check_instance("hosting", hosting, Hosting)
        if server is not None:
            check_text("server", server)
        if not isinstance(identity, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"identity must be a string, got {identity!r}")
        if ledger is not None and not isinstance(ledger, str | Path | Ledger):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"ledger must be the path of a file, or a Ledger; got {ledger!r}")
        if cipher is not None and not isinstance(ledger, str | Path):
            raise InvalidOption(
                "cipher is for a ledger that a path names; give it to the Ledger: Ledger(path, cipher=...)"
            )
        self.ledger: Ledger | None = Ledger(ledger, cipher=cipher) if isinstance(ledger, str | Path) else ledger
        self.identity: str = identity
        self._server = server
        self._push = push
        self._on_progress = on_progress
        self._patience = patience
        self._switchboard = Switchboard(push=push)
        callbacks = Callbacks(max_callbacks, max_callbacks_per_task)
        self._handles = Handles(
            switchboard=self._switchboard,
            ledger=self.ledger,
            server=server,
            identity=identity,
            patience=patience,
            on_abandon=on_abandon,
            callbacks=callbacks,
        )
        self._begun: Link | None = None
        self._hosted = None if hosting is None else HostedTasks(hosting, turns=callbacks.wait_for_turn)
        self._hosts_over: WeakSet[ServerTransport] = WeakSet()

    def host(self, transport: ServerTransport) -> ServerTransport:
        """Host tasks for the server at the other end of a transport, which is to be given to the client.

        Raises:
            UsageError: There is no `hosting`, or it has a ledger and the server has no address.
        """
        if self._hosted is None:
            raise UsageError("this TasksClient hosts no tasks; make it with TasksClient(hosting=Hosting(...))")
        if self._hosted.hosting.ledger is not None and not (self._server or transport.address):
            raise UsageError(NO_ADDRESS)
        host_over(transport, self._hosted, server=self._server, identity=self.identity)
        self._hosts_over.add(transport)
        return transport

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Claims the `task` result of a call. The SDK asks once per client, and before it asks for notifications.

        Raises:
            UsageError: There is a ledger, and this client's server has no address; or tasks are to be hosted, and its
                transport does not know.
        """
        if self._hosted is not None and not any(transport.is_unused for transport in self._hosts_over):
            raise UsageError(_NO_HOST)
        # A client is made with its transport: if none of ours waits for its client, this client has another one.
        if self.ledger is not None and self._server is None and not ServerTransport.is_any_unused():
            raise UsageError(NO_ADDRESS)
        self._begun = self._switchboard.begin()
        resolve = partial(self._resolve, self._begun)
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=resolve)]

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        """Binds the states of tasks that a server pushes, and the introduction of our own transports."""
        link, self._begun = self._begun or self._switchboard.begin(), None
        introduced = NotificationBinding(method=INTRODUCTION, params_type=_AnyParams, handler=self._introduced)
        if not self._push:
            return [introduced]
        handler = partial(self._deliver, link)
        return [introduced, NotificationBinding(method=TASK_NOTIFICATION, params_type=_AnyParams, handler=handler)]

    async def call(
        self,
        client: ConnectedClient,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout: timedelta | float | None = None,
        on_progress: OnProgress | None = None,
        on_abandon: OnAbandon | None = None,
        ttl: timedelta | None = None,
        idempotency_key: str | None = None,
    ) -> CallToolResult:
        """`client.call_tool` with options for the task that the call may become.

        What is not given is as this `TasksClient` was made.

        Args:
            timeout: How long to wait for the task. Time in which a callback works on an answer does not count.
            on_progress: Called with the task's progress as it changes.
            on_abandon: What becomes of the task if this wait ends before the task does.
            ttl: How long to keep the task, for servers of 2025-11-25; newer ones decide that themselves.
            idempotency_key: As for `start`.

        Raises:
            InvalidOption: An argument has a value that it cannot have. Nothing was sent.
            UsageError: The client was not given this `TasksClient`, its transport cannot carry the tasks of this
                server, or there is a ledger and the server's address is not known. Nothing was sent.
            CallLost: The call got no answer. It is an `MCPError` that says whether the call may have been made.
            TasksError: As `TaskHandle.result` raises them.
            MCPError: The call failed.
        """
        options = CallOptions(
            timeout=timeout,
            on_progress=on_progress,
            on_abandon=on_abandon,
            want_handle=True,
            ttl=ttl,
            idempotency_key=idempotency_key,
            arguments=arguments,
        )
        started = await start_call(self._handles, client, self._check(client), ToolName(name, options), arguments)
        if isinstance(started, CallToolResult):
            return started
        result = await self._finish(started, options)
        if not result.is_error:
            await client.session.validate_tool_result(name, result)
        return result

    async def start(
        self,
        client: ConnectedClient,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        read_timeout_seconds: float | None = None,
        progress_callback: ProgressFnT | None = None,
        ttl: timedelta | None = None,
        idempotency_key: str | None = None,
    ) -> TaskHandle | CallToolResult:
        """Call a tool and return at once: a handle, or the result if the server answered inline.

        Args:
            read_timeout_seconds: That of `client.call_tool`, for a server that answers inline.
            progress_callback: That of `client.call_tool`, for a server that answers inline.
            ttl: How long to keep the task, for servers of 2025-11-25; newer ones decide that themselves.
            idempotency_key: The call made again under the same key, by whoever you are to the server, comes to the
                same task, if the server honours keys (`honours_keys`). By default each call has a key of its own there,
                and is made again by itself, under that key, if its answer is lost with the connection.

        Raises:
            InvalidOption: An argument has a value that it cannot have. Nothing was sent.
            UsageError: The client was not given this `TasksClient`, its transport cannot carry the tasks of this
                server, or there is a ledger and the server's address is not known. Nothing was sent.
            CallLost: The call got no answer. It is an `MCPError` that says whether the call may have been made.
            MCPError: The call failed.
        """
        options = CallOptions(want_handle=True, ttl=ttl, idempotency_key=idempotency_key, arguments=arguments)
        older, tool = self._check(client), ToolName(name, options)
        return await start_call(self._handles, client, older, tool, arguments, read_timeout_seconds, progress_callback)

    def honours_keys(self, client: ConnectedClient) -> bool:
        """Whether the server says that it honours idempotency keys: only then is it safe to make a call again."""
        return honours_keys(client.session)

    def resume(self, client: ConnectedClient, task_id: str, *, tool: str = "") -> TaskHandle:
        """A handle of a task by its id: from another process, or another day. Nothing is sent.

        Args:
            tool: The name of the tool, if you know it; the handle shows it.

        Raises:
            UsageError: The client was not given this `TasksClient`, its transport cannot carry the tasks of this
                server, or there is a ledger and the server's address is not known.
        """
        return self._handles.resumed(self._check(client), client, task_id, tool)

    def pending(self, client: ConnectedClient) -> list[TaskHandle]:
        """Handles of the tasks of this server that the ledger has not seen end. Without a ledger there are none.

        Raises:
            UsageError: The client was not given this `TasksClient`, its transport cannot carry the tasks of this
                server, or the server's address is not known.
        """
        older = self._check(client)
        if self.ledger is None:
            return []
        address = self._handles.address(client.session, transport_of(client))
        entries = self.ledger.pending(server=address, identity=self.identity)
        found = [
            self._handles.of_client(older, client, entry.task_id, entry.tool) for entry in entries if entry.attributed
        ]
        for handle in found:
            handle.life.resumed()
        return found

    async def list(self, client: ConnectedClient) -> AsyncIterator[TaskSnapshot]:
        """The tasks that a server of 2025-11-25 lists for this client, page by page and without their outcomes.

        Raises:
            UsageError: The client was not given this `TasksClient`, its transport cannot carry the tasks of this
                server, or the server does not list tasks. Newer servers never do: a ledger has those you started.
            InvalidResponse: The server answered with something that is not a list of tasks.
            MCPError: The server refuses.
        """
        older = self._check(client)
        if older is None:
            raise UsageError("this server does not list tasks: its protocol has no such request; see pending()")
        async for snapshot in older.tasks():
            yield snapshot

    def _check(self, client: ConnectedClient) -> OlderTasks | None:
        """Find out before anything is sent whether the client is ours, its transport can carry the tasks of its
        server, and the ledger will know its server. Returns the tasks of an older era, if that is what it has."""
        extensions = extensions_of(client)
        # Of a client that does not show its extensions, no more can be seen than that some client has this one.
        if not (self._switchboard.is_used if extensions is None else any(each is self for each in extensions)):
            raise UsageError("this client was not given this TasksClient; make it with Client(..., extensions=[tasks])")
        if extensions is None:
            self._switchboard.expect_new_sessions()
        transport = transport_of(client)
        if self.ledger is not None:
            self._handles.address(client.session, transport)
        if not has_older_tasks(client.session):
            return None
        if transport is None or transport.older is None or not transport.older.is_spoken:
            raise UsageError(_NO_WIRE.format(version=client.session.protocol_version))
        return transport.older

    async def _resolve(self, link: Link, created: CreatedTask, ctx: ClaimContext) -> CallToolResult:
        link.prove(ctx.session)
        options = options_of(ctx.tool_name)
        try:
            handle = self._handles.over_session(
                ctx.session,
                created.task_id,
                tool=str(ctx.tool_name),
                transport=transport_in(created.meta),
                created=_state_of(created),
            )
        except UsageError as exc:
            raise UsageError(f"task {created.task_id} goes on, but is not in the ledger: {exc}") from None
        new(handle, options.arguments)
        if options.want_handle:
            raise HandleWanted(handle)
        return await self._finish(handle, options)

    async def _finish(self, handle: TaskHandle, options: CallOptions) -> CallToolResult:
        return await handle.result(
            options.timeout, on_progress=options.on_progress or self._on_progress, on_abandon=options.on_abandon
        )

    async def _introduced(self, params: _AnyParams) -> None:
        """A transport of ours says that it is the one of a client that has this extension."""
        transport = transport_in((params.model_extra or {}).get("_meta"))
        if transport is not None:
            transport.introduce(partial(self._finish_older, transport))

    async def _finish_older(self, transport: ServerTransport, created: TaskSnapshot, tool: str) -> JsonObject:
        """See the task to its end that a plain `client.call_tool` became in an older era."""
        server = "" if self.ledger is None else self._server or transport.address
        if transport.older is None or (self.ledger is not None and not server):
            raise UsageError(f"task {created.id} goes on, but is not in the ledger: {NO_ADDRESS}")
        port = transport.older.task(created.id)
        handle = self._handles.over(port, created.id, tool=tool, server=server, created=created)
        result = await self._finish(new(handle), CallOptions())
        return result.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"result_type"})

    async def _deliver(self, link: Link, params: _AnyParams) -> None:
        self._switchboard.deliver(link, params.model_extra or {})


def _state_of(created: CreatedTask) -> TaskSnapshot | None:
    """The task as the server made it; None if its outcome is missing, or other fields are: a look tells."""
    try:
        return parse_task(created.model_dump(by_alias=True, mode="json"))
    except InvalidResponse:
        return None


class _AnyParams(BaseModel):
    model_config = ConfigDict(extra="allow")
