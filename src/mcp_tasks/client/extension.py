"""`TasksClient`: the object a host author adds to the official SDK's `Client`, or to FastMCP's.

    tasks = TasksClient()
    async with Client(reconnecting_http(url), extensions=[tasks]) as client:
        result = await client.call_tool("render", {...})       # however long it takes
        handle = await tasks.start(client, "render", {...})    # or the task in hand

The verbs take the client, because one `TasksClient` may be given to several.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, Self, cast, runtime_checkable
from weakref import WeakKeyDictionary, WeakSet, ref

from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult, RequestParamsMeta
from pydantic import BaseModel, ConfigDict

from mcp_tasks.client.answers import AT_ONCE, PER_TASK, Callbacks
from mcp_tasks.client.backend import (
    LONGEST_PAUSE,
    CreatedTask,
    ModernTask,
    PushHub,
    TaskBackend,
    check_key,
    honours_keys,
    in_time,
    make_once,
)
from mcp_tasks.client.handle import OnAbandon, OnProgress, TaskHandle, check_wait_options, tool_result
from mcp_tasks.client.ledger import Ledger, TaskLedger
from mcp_tasks.client.poller import Patience
from mcp_tasks.client.transport import (
    INTRODUCTION,
    TASK_NOTIFICATION,
    HostedTasks,
    Hosting,
    LegacyTasks,
    ServerTransport,
    has_legacy_tasks,
    transport_in,
)
from mcp_tasks.encryption import Cipher
from mcp_tasks.errors import InvalidOption, InvalidResponse, UsageError
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.values import check_duration, check_flag, check_instance, check_text, seconds_of
from mcp_tasks.protocol.shapes import EXTENSION_ID, TaskSnapshot, parse_task

NO_ADDRESS: Final = (
    "the ledger keeps tasks by the address of their server, and the address of this server is not known: connect with "
    "Client(reconnecting_http(url), ...) or Client(stdio_transport(parameters), ...), or give it as "
    "TasksClient(ledger=..., server='https://...')"
)

_NO_HOST = (
    "this TasksClient hosts tasks, and the transport of this client does not know of it: connect with "
    "Client(tasks.host(transport), extensions=[tasks]), where transport is one of ours"
)

_NO_WIRE = (
    "this server speaks {version}, whose tasks the SDK's own transports cannot carry: connect with "
    "Client(reconnecting_http(url), ...), Client(stdio_transport(parameters), ...) or, for any other transport, "
    "Client(with_tasks(transport), ...), all from mcp_tasks.client"
)


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
    """The extensions that a client was given; None if it does not show them."""
    return client.extensions or () if isinstance(client, Client) else None


def transport_of(client: ConnectedClient) -> ServerTransport | None:
    """The transport of a client, if it is one of ours and the client shows it."""
    server: object = client.server if isinstance(client, Client) else None
    return server if isinstance(server, ServerTransport) else None


# ---- options of a call


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOptions:
    """How one call treats the task that it may become. None means as the `TasksClient` was made.

    Attributes:
        arguments: What the tool is called with, for the ledger: the SDK does not tell a claim.
    """

    timeout: timedelta | float | None = None
    on_progress: OnProgress | None = None
    on_abandon: OnAbandon | None = None
    want_handle: bool = False
    ttl: timedelta | None = None
    idempotency_key: str | None = None
    arguments: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        # Here, because here nothing has been sent yet.
        seconds_of(self.timeout)
        check_wait_options(self.on_abandon, self.on_progress)
        check_key(self.idempotency_key)
        if self.ttl is not None:
            check_duration("ttl", self.ttl, zero=True)


class ToolName(str):
    """A tool's name that carries the options of the one call it is given to.

    Options that are kept beside the call (in a context variable, or by the running asyncio task) would also apply to
    calls that are made inside its callbacks.
    """

    options: CallOptions

    def __new__(cls, name: str, options: CallOptions) -> Self:
        tool = super().__new__(cls, name)
        tool.options = options
        return tool


class HandleWanted(Exception):
    """The call became a task, and its caller wants the handle."""

    def __init__(self, handle: TaskHandle) -> None:
        self.handle = handle
        super().__init__(f"the caller of {handle!r} wants the handle")


# ---- links
# Which session a notification came on.


class Link:
    """One client that has the extension, and its session once that is proven."""

    def __init__(self) -> None:
        self._session: ref[ClientSession] | None = None

    @property
    def is_proven(self) -> bool:
        """Whether the session is known, even if it is gone by now."""
        return self._session is not None

    @property
    def session(self) -> ClientSession | None:
        """The client's session, if it is known and still there."""
        return None if self._session is None else self._session()

    def prove(self, session: ClientSession) -> None:
        """Messages that come through this link come on this session: the client's only one, or its newest."""
        self._session = ref(session)


class Connection:
    """The push hub and the transport of one session, as far as they are known."""

    def __init__(self, hub: PushHub | None) -> None:
        self.hub = hub
        self.transport: ServerTransport | None = None


class Switchboard:
    """Delivers notifications to the sessions they came on."""

    def __init__(self, *, push: bool) -> None:
        self._push = push
        self._links: WeakSet[Link] = WeakSet()
        self._connections: WeakKeyDictionary[ClientSession, Connection] = WeakKeyDictionary()
        self.sessions_change: bool = False
        """Whether a client may be entered again, with another session."""

    def begin(self) -> Link:
        """The link of another client."""
        link = Link()
        self._links.add(link)
        return link

    @property
    def is_used(self) -> bool:
        """Whether a client has the extension."""
        return bool(self._links)

    def connection(self, session: ClientSession, transport: ServerTransport | None = None) -> Connection:
        """The connection of a session; `transport` is added to it if it was not known."""
        if session not in self._connections:
            self._connections[session] = Connection(PushHub(session) if self._push else None)
        connection = self._connections[session]
        connection.transport = connection.transport or transport
        return connection

    def deliver(self, link: Link, params: Mapping[str, Any]) -> None:
        """Deliver a notification that came through a link."""
        self._try_to_prove(link, transport_in(params.get("_meta")))
        connection = None if link.session is None else self._connections.get(link.session)
        if connection is not None and connection.hub is not None and connection.hub.awaits(params):
            connection.hub.deliver(params)
        elif not link.is_proven or self.sessions_change:
            for _, other in self._unproven():
                if other.hub is not None:
                    other.hub.hint(params)

    def _try_to_prove(self, link: Link, transport: ServerTransport | None) -> None:
        if link.is_proven:
            return
        unproven = self._unproven()
        over_it = [session for session, known in unproven if transport is not None and known.transport is transport]
        # If no other client's session is unknown, a session that belongs to no link is this one's.
        others = [other for other in self._links if other is not link]
        is_last = not others if self.sessions_change else all(other.is_proven for other in others)
        candidates = over_it or ([session for session, _ in unproven] if is_last else [])
        if len(candidates) == 1:
            link.prove(candidates[0])

    def _unproven(self) -> list[tuple[ClientSession, Connection]]:
        """The sessions that no link is known to have."""
        taken = [link.session for link in self._links]
        return [(session, known) for session, known in self._connections.items() if session not in taken]


# ---- the extension


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
        check_wait_options(on_abandon, on_progress)
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
        self._on_abandon: OnAbandon = on_abandon
        self._on_progress = on_progress
        self._patience = patience
        self._switchboard = Switchboard(push=push)
        self._callbacks = Callbacks(max_callbacks, max_callbacks_per_task)
        self._begun: Link | None = None
        self._hosted = None if hosting is None else HostedTasks(hosting, turns=self._callbacks.wait_for_turn)
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
        transport.host(self._hosted, server=self._server, identity=self.identity)
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

        async def deliver(params: _AnyParams) -> None:
            self._switchboard.deliver(link, params.model_extra or {})

        return [introduced, NotificationBinding(method=TASK_NOTIFICATION, params_type=_AnyParams, handler=deliver)]

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
        started = await self._start(client, ToolName(name, options), arguments)
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
            idempotency_key: The call made again under the same key, by the same caller, comes to the same task, if the
                server honours keys (`honours_keys`). By default each call has a key of its own there, and is made
                again by itself, under that key, if its answer is lost with the connection.

        Raises:
            InvalidOption: An argument has a value that it cannot have. Nothing was sent.
            UsageError: The client was not given this `TasksClient`, its transport cannot carry the tasks of this
                server, or there is a ledger and the server's address is not known. Nothing was sent.
            CallLost: The call got no answer. It is an `MCPError` that says whether the call may have been made.
            MCPError: The call failed.
        """
        options = CallOptions(want_handle=True, ttl=ttl, idempotency_key=idempotency_key, arguments=arguments)
        return await self._start(client, ToolName(name, options), arguments, read_timeout_seconds, progress_callback)

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
        handle = self._of_client(self._check(client), client, task_id, tool)
        handle.log.info("is taken up again")
        return handle

    def pending(self, client: ConnectedClient) -> list[TaskHandle]:
        """Handles of the tasks of this server that the ledger has not seen end. Without a ledger there are none.

        Raises:
            UsageError: The client was not given this `TasksClient`, its transport cannot carry the tasks of this
                server, or the server's address is not known.
        """
        self._check(client)
        if self.ledger is None:
            return []
        address = self._address(client.session, transport_of(client))
        entries = self.ledger.pending(server=address, identity=self.identity)
        return [self.resume(client, entry.task_id, tool=entry.tool) for entry in entries]

    async def list(self, client: ConnectedClient) -> AsyncIterator[TaskSnapshot]:
        """The tasks that a server of 2025-11-25 lists for this client, page by page and without their outcomes.

        Raises:
            UsageError: The client was not given this `TasksClient`, its transport cannot carry the tasks of this
                server, or the server does not list tasks. Newer servers never do: a ledger has those you started.
            InvalidResponse: The server answered with something that is not a list of tasks.
            MCPError: The server refuses.
        """
        legacy = self._check(client)
        if legacy is None:
            raise UsageError("this server does not list tasks: its protocol has no such request; see pending()")
        async for snapshot in legacy.tasks():
            yield snapshot

    # Before anything is sent

    def _check(self, client: ConnectedClient) -> LegacyTasks | None:
        """Check that the client has this extension, that its transport can carry the tasks of its server, and that the
        ledger knows the server's address. Returns the tasks of 2025-11-25, if the server has those."""
        extensions = extensions_of(client)
        # For a client that does not show its extensions, check that any client has this one.
        if not (self._switchboard.is_used if extensions is None else any(each is self for each in extensions)):
            raise UsageError("this client was not given this TasksClient; make it with Client(..., extensions=[tasks])")
        if extensions is None:
            self._switchboard.sessions_change = True
        transport = transport_of(client)
        if self.ledger is not None:
            self._address(client.session, transport)
        if not has_legacy_tasks(client.session):
            return None
        if transport is None or transport.legacy is None or not transport.legacy.is_spoken:
            raise UsageError(_NO_WIRE.format(version=client.session.protocol_version))
        return transport.legacy

    def _address(self, session: ClientSession, transport: ServerTransport | None) -> str:
        """The server's address for the ledger; empty without a ledger.

        Raises:
            UsageError: It is not known.
        """
        if self.ledger is None or self._server is not None:
            return self._server or ""
        known = self._switchboard.connection(session, transport).transport
        if known is None or not known.address:
            raise UsageError(NO_ADDRESS)
        return known.address

    # Handles

    def _handle(
        self, backend: TaskBackend, task_id: str, tool: str, server: str, created: TaskSnapshot | None = None
    ) -> TaskHandle:
        return TaskHandle(
            backend,
            task_id,
            tool=tool,
            ledger=TaskLedger(self.ledger, task_id, server=server, identity=self.identity),
            patience=self._patience,
            on_abandon=self._on_abandon,
            callbacks=self._callbacks,
            created=created,
        )

    def _over_session(
        self,
        session: ClientSession,
        task_id: str,
        tool: str,
        transport: ServerTransport | None,
        created: TaskSnapshot | None = None,
    ) -> TaskHandle:
        hub = self._switchboard.connection(session, transport).hub
        server = self._address(session, transport)
        return self._handle(ModernTask(session, task_id, hub=hub), task_id, tool, server, created)

    def _of_client(
        self,
        legacy: LegacyTasks | None,
        client: ConnectedClient,
        task_id: str,
        tool: str,
        created: TaskSnapshot | None = None,
    ) -> TaskHandle:
        transport = transport_of(client)
        if legacy is None:
            return self._over_session(client.session, task_id, tool, transport, created)
        return self._handle(legacy.task(task_id), task_id, tool, self._address(client.session, transport), created)

    # Calls

    async def _start(
        self,
        client: ConnectedClient,
        tool: ToolName,
        arguments: dict[str, Any] | None,
        timeout: float | None = None,
        progress: ProgressFnT | None = None,
    ) -> TaskHandle | CallToolResult:
        """The handle of the task that a call becomes, or the result if the server answers inline."""
        legacy = self._check(client)

        async def send(meta: dict[str, Any] | None) -> TaskHandle | CallToolResult:
            if legacy is not None:
                started = await self._start_legacy(legacy, client, tool, arguments, timeout, meta)
                if started is not None:
                    return started
            try:
                if isinstance(client, Client):
                    known = cast("RequestParamsMeta | None", meta)
                    return await client.call_tool(tool, arguments, timeout, progress, meta=known)
                if isinstance(client, _RawCalls):
                    handler = progress
                    return await client.call_tool_mcp(tool, arguments or {}, progress_handler=handler, timeout=timeout)
            except HandleWanted as signal:
                return signal.handle
            raise UsageError(
                f"tools can be called by the SDK's Client and by FastMCP's, not by {type(client).__name__}"
            )

        # A call with a timeout does not wait longer than that until it may be made.
        longest = LONGEST_PAUSE if timeout is None else min(timeout, LONGEST_PAUSE)
        return await make_once(
            lambda meta: in_time(lambda: send(meta), longest),
            tool=str(tool),
            key=tool.options.idempotency_key,
            # Other clients take no `_meta`.
            is_honoured=isinstance(client, Client) and honours_keys(client.session),
            patience=self._patience,
        )

    async def _start_legacy(
        self,
        legacy: LegacyTasks,
        client: ConnectedClient,
        tool: ToolName,
        arguments: dict[str, Any] | None,
        timeout: float | None,
        meta: dict[str, Any] | None,
    ) -> TaskHandle | CallToolResult | None:
        """The same in 2025-11-25; None if the tool is not offered as a task."""
        name = str(tool)
        if timeout is None and isinstance(client, Client):
            timeout = client.read_timeout_seconds
        started = await legacy.start(name, arguments, ttl=tool.options.ttl, timeout=timeout, meta=meta)
        if started is None:
            return None
        if not isinstance(started, TaskSnapshot):
            return tool_result(started, f"the call of {name!r}")
        return _created(self._of_client(legacy, client, started.id, name, started), arguments)

    async def _resolve(self, link: Link, created: CreatedTask, ctx: ClaimContext) -> CallToolResult:
        link.prove(ctx.session)
        options = ctx.tool_name.options if isinstance(ctx.tool_name, ToolName) else CallOptions()
        try:
            # Without its outcome, or other fields: a look tells.
            state = parse_task(created.model_dump(by_alias=True, mode="json"))
        except InvalidResponse:
            state = None
        try:
            transport = transport_in(created.meta)
            handle = self._over_session(ctx.session, created.task_id, str(ctx.tool_name), transport, state)
        except UsageError as exc:
            raise UsageError(f"task {created.task_id} goes on, but is not in the ledger: {exc}") from None
        _created(handle, options.arguments)
        if options.want_handle:
            raise HandleWanted(handle)
        return await self._finish(handle, options)

    async def _finish(self, handle: TaskHandle, options: CallOptions) -> CallToolResult:
        return await handle.result(
            options.timeout, on_progress=options.on_progress or self._on_progress, on_abandon=options.on_abandon
        )

    async def _introduced(self, params: _AnyParams) -> None:
        """A transport of ours introduces itself as that of a client that has this extension."""
        transport = transport_in((params.model_extra or {}).get("_meta"))
        if transport is not None:
            transport.introduce(partial(self._finish_legacy, transport))

    async def _finish_legacy(self, transport: ServerTransport, created: TaskSnapshot, tool: str) -> JsonObject:
        """Wait for the task that a plain `client.call_tool` became in 2025-11-25."""
        server = "" if self.ledger is None else self._server or transport.address
        if transport.legacy is None or (self.ledger is not None and not server):
            raise UsageError(f"task {created.id} goes on, but is not in the ledger: {NO_ADDRESS}")
        handle = self._handle(transport.legacy.task(created.id), created.id, tool, server, created)
        result = await self._finish(_created(handle), CallOptions())
        return result.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"result_type"})


class _AnyParams(BaseModel):
    model_config = ConfigDict(extra="allow")


def _created(handle: TaskHandle, arguments: Mapping[str, Any] | None = None) -> TaskHandle:
    """Keep the task that a call with these arguments has just become."""
    handle.log.info("was created")
    handle.remember(arguments)
    return handle


# ---- calls
# The verbs of `TasksClient` as functions, for code that has only the `Client` at hand.


async def call_tool(
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
    """`TasksClient.call` of the client's own `TasksClient`."""
    return await tasks_of(client).call(
        client,
        name,
        arguments,
        timeout=timeout,
        on_progress=on_progress,
        on_abandon=on_abandon,
        ttl=ttl,
        idempotency_key=idempotency_key,
    )


async def start_task(
    client: ConnectedClient,
    name: str,
    arguments: dict[str, Any] | None = None,
    *,
    read_timeout_seconds: float | None = None,
    progress_callback: ProgressFnT | None = None,
    ttl: timedelta | None = None,
    idempotency_key: str | None = None,
) -> TaskHandle | CallToolResult:
    """`TasksClient.start` of the client's own `TasksClient`."""
    return await tasks_of(client).start(
        client,
        name,
        arguments,
        read_timeout_seconds=read_timeout_seconds,
        progress_callback=progress_callback,
        ttl=ttl,
        idempotency_key=idempotency_key,
    )


def resume_task(client: ConnectedClient, task_id: str, *, tool: str = "") -> TaskHandle:
    """`TasksClient.resume` of the client's own `TasksClient`."""
    return tasks_of(client).resume(client, task_id, tool=tool)


def pending_tasks(client: ConnectedClient) -> list[TaskHandle]:
    """`TasksClient.pending` of the client's own `TasksClient`."""
    return tasks_of(client).pending(client)


def list_tasks(client: ConnectedClient) -> AsyncIterator[TaskSnapshot]:
    """`TasksClient.list` of the client's own `TasksClient`."""
    return tasks_of(client).list(client)


def tasks_of(client: ConnectedClient) -> TasksClient:
    """The client's own `TasksClient`.

    Raises:
        UsageError: It has none, or does not show its extensions.
    """
    extensions = extensions_of(client)
    if extensions is None:
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        raise UsageError(
            f"a {kind} does not show its extensions; use the methods of its TasksClient: tasks.call(client)"
        )
    for extension in extensions:
        if isinstance(extension, TasksClient):
            return extension
    raise UsageError("this client has no TasksClient; make it with Client(..., extensions=[TasksClient()])")
