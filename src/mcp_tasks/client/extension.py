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
    OlderTasks,
    PushHub,
    TaskPort,
    check_key,
    honours_keys,
    in_time,
    make_once,
)
from mcp_tasks.client.eras import HostedTasks, Hosting, has_older_tasks, host_over
from mcp_tasks.client.handle import OnAbandon, OnProgress, TaskHandle, check_on_abandon, check_on_progress, tool_result
from mcp_tasks.client.ledger import Ledger, TaskLedger
from mcp_tasks.client.poller import Patience
from mcp_tasks.client.transport import INTRODUCTION, TASK_NOTIFICATION, ServerTransport, transport_in
from mcp_tasks.encryption import Cipher
from mcp_tasks.errors import InvalidOption, InvalidResponse, UsageError
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.values import check_duration, check_flag, check_instance, check_text, seconds_of
from mcp_tasks.protocol.shapes import EXTENSION_ID, TaskSnapshot, parse_task

# ---- tool name
# What one call wants of the task that it may become, on its way through the SDK and back.


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOptions:
    """How one call treats the task that it may become. None means as the `TasksClient` was made.

    Attributes:
        arguments: What the tool is called with, for the ledger: a claim is not told.
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
        check_on_abandon(self.on_abandon)
        check_on_progress(self.on_progress)
        check_key(self.idempotency_key)
        if self.ttl is not None:
            check_duration("ttl", self.ttl, zero=True)


class ToolName(str):
    """A tool's name that carries the options of the one call it is given to.

    Anything kept beside the call (a context variable, the running asyncio task) would be found by calls that are made
    inside its callbacks as well.
    """

    options: CallOptions

    def __new__(cls, name: str, options: CallOptions) -> Self:
        tool = super().__new__(cls, name)
        tool.options = options
        return tool


def options_of(name: str) -> CallOptions:
    """The options that ride on a tool's name; the defaults for a plain name."""
    return name.options if isinstance(name, ToolName) else CallOptions()


class HandleWanted(Exception):
    """The call became a task, and its caller wants the handle."""

    def __init__(self, handle: TaskHandle) -> None:
        self.handle = handle
        super().__init__(f"the caller of {handle!r} wants the handle")


# ---- connected
# What the verbs of `TasksClient` need of a client: the SDK's own, or one that others have built on the SDK's session.


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


# ---- links
# Which session a notification came on.


class Link:
    """One client that has the extension, and its session once that is proven."""

    def __init__(self) -> None:
        self._session: ref[ClientSession] | None = None

    @property
    def is_proven(self) -> bool:
        """Whether the session is known, be it gone by now."""
        return self._session is not None

    @property
    def session(self) -> ClientSession | None:
        """The client's session, if it is known and still there."""
        return None if self._session is None else self._session()

    def prove(self, session: ClientSession) -> None:
        """What comes through this link comes on this session: the client's only one, or its newest."""
        self._session = ref(session)


class Connection:
    """What is known of one session."""

    def __init__(self, hub: PushHub | None) -> None:
        self.hub = hub
        self.transport: ServerTransport | None = None


class Switchboard:
    """Hands what is pushed to the sessions it came on."""

    def __init__(self, *, push: bool) -> None:
        self._push = push
        self._sessions_change = False
        self._links: WeakSet[Link] = WeakSet()
        self._connections: WeakKeyDictionary[ClientSession, Connection] = WeakKeyDictionary()

    def begin(self) -> Link:
        """The link of another client."""
        link = Link()
        self._links.add(link)
        return link

    def expect_new_sessions(self) -> None:
        """Among the clients is one that may be entered again."""
        self._sessions_change = True

    @property
    def is_used(self) -> bool:
        """Whether there is a client that has the extension."""
        return bool(self._links)

    def connection(self, session: ClientSession, transport: ServerTransport | None = None) -> Connection:
        """What is known of a session; `transport` adds to it."""
        if session not in self._connections:
            self._connections[session] = Connection(PushHub(session) if self._push else None)
        connection = self._connections[session]
        connection.transport = connection.transport or transport
        return connection

    def deliver(self, link: Link, params: Mapping[str, Any]) -> None:
        """Hand on a notification that came through a link."""
        self._try_to_prove(link, transport_in(params.get("_meta")))
        connection = None if link.session is None else self._connections.get(link.session)
        if connection is not None and connection.hub is not None and connection.hub.awaits(params):
            connection.hub.deliver(params)
            return
        if link.is_proven and not self._sessions_change:
            return
        for _, connection in self._unproven():
            if connection.hub is not None:
                connection.hub.hint(params)

    def _try_to_prove(self, link: Link, transport: ServerTransport | None) -> None:
        if link.is_proven:
            return
        unproven = self._unproven()
        over_it = [session for session, known in unproven if transport is not None and known.transport is transport]
        # With no other client left whose session is unknown, a session of an unknown client is this one's.
        others = [other for other in self._links if other is not link]
        is_last = not others if self._sessions_change else all(other.is_proven for other in others)
        candidates = over_it or ([session for session, _ in unproven] if is_last else [])
        if len(candidates) == 1:
            link.prove(candidates[0])

    def _unproven(self) -> list[tuple[ClientSession, Connection]]:
        """The sessions that no link is known to have."""
        taken = [link.session for link in self._links]
        return [(session, known) for session, known in self._connections.items() if session not in taken]


# ---- handles
# The handles that one `TasksClient` gives out: each over the connection of its task, with what the ledger needs.


NO_ADDRESS: Final = (
    "the ledger keeps tasks by the address of their server, and the address of this server is not known: connect with "
    "Client(reconnecting_http(url), ...) or Client(stdio_transport(parameters), ...), or give it as "
    "TasksClient(ledger=..., server='https://...')"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Handles:
    """Makes them. Its attributes are what the author said, and hold for all."""

    switchboard: Switchboard
    ledger: Ledger | None
    server: str | None
    identity: str
    patience: Patience | None
    on_abandon: OnAbandon
    callbacks: Callbacks

    def over_session(
        self,
        session: ClientSession,
        task_id: str,
        *,
        tool: str = "",
        transport: ServerTransport | None = None,
        created: TaskSnapshot | None = None,
    ) -> TaskHandle:
        """The handle of a task that the SDK's session can speak of.

        Raises:
            UsageError: There is a ledger, and the server's address is not known.
        """
        connection = self.switchboard.connection(session, transport)
        server = "" if self.ledger is None else self.address(session, transport)
        port = ModernTask(session, task_id, hub=connection.hub)
        return self.over(port, task_id, tool=tool, server=server, created=created)

    def over(
        self, port: TaskPort, task_id: str, *, tool: str, server: str, created: TaskSnapshot | None = None
    ) -> TaskHandle:
        """The handle of a task of any era; `created` is the task as the server made it, if it was made just now."""
        return TaskHandle(
            port,
            task_id,
            tool=tool,
            ledger=TaskLedger(self.ledger, task_id, server=server, identity=self.identity),
            patience=self.patience,
            on_abandon=self.on_abandon,
            callbacks=self.callbacks,
            created=created,
        )

    def of_client(
        self,
        older: OlderTasks | None,
        client: ConnectedClient,
        task_id: str,
        tool: str,
        created: TaskSnapshot | None = None,
    ) -> TaskHandle:
        """The handle of a task of a client's server, whose tasks may be of an older era.

        Raises:
            UsageError: There is a ledger, and the server's address is not known.
        """
        transport = transport_of(client)
        if older is None:
            return self.over_session(client.session, task_id, tool=tool, transport=transport, created=created)
        server = "" if self.ledger is None else self.address(client.session, transport)
        return self.over(older.task(task_id), task_id, tool=tool, server=server, created=created)

    def resumed(self, older: OlderTasks | None, client: ConnectedClient, task_id: str, tool: str) -> TaskHandle:
        """The same for one that somebody comes back to."""
        handle = self.of_client(older, client, task_id, tool)
        handle.life.resumed()
        return handle

    def address(self, session: ClientSession, transport: ServerTransport | None) -> str:
        """The address by which the ledger knows the server of this session.

        Raises:
            UsageError: It is not known.
        """
        if self.server is not None:
            return self.server
        known = self.switchboard.connection(session, transport).transport
        if known is None or not known.address:
            raise UsageError(NO_ADDRESS)
        return known.address


def new(handle: TaskHandle, arguments: Mapping[str, Any] | None = None) -> TaskHandle:
    """The handle of a task that a call with these arguments has just become."""
    handle.life.created()
    handle.remember(arguments)
    return handle


# ---- starting
# Calling a tool, up to the task that the call becomes: in the way of the server's era, and made once.


async def start_call(
    handles: Handles,
    client: ConnectedClient,
    older: OlderTasks | None,
    tool: ToolName,
    arguments: dict[str, Any] | None,
    timeout: float | None = None,
    progress: ProgressFnT | None = None,
) -> TaskHandle | CallToolResult:
    """The handle of the task that a call becomes, or the result if the server answers inline.

    Args:
        older: The tasks of an older era, if that is what the server has.
        tool: The tool's name, with the options of the call.
        timeout: Seconds for the server to answer; None for as long as the client waits otherwise.

    Raises:
        CallLost: The call got no answer.
        MCPError: The call failed.
    """

    async def send(meta: dict[str, Any] | None) -> TaskHandle | CallToolResult:
        if older is not None:
            started = await _start_older(handles, client, older, tool, arguments, timeout, meta)
            if started is not None:
                return started
        try:
            return await call_over(client, tool, arguments, timeout, progress, meta)
        except HandleWanted as signal:
            return signal.handle

    async def send_in_time(meta: dict[str, Any] | None) -> TaskHandle | CallToolResult:
        # Who gives a call some seconds has no more of them for waiting until it may be made.
        longest = LONGEST_PAUSE if timeout is None else min(timeout, LONGEST_PAUSE)
        return await in_time(lambda: send(meta), longest)

    return await make_once(
        send_in_time,
        tool=str(tool),
        key=tool.options.idempotency_key,
        is_honoured=takes_meta(client) and honours_keys(client.session),
        patience=handles.patience,
    )


async def _start_older(
    handles: Handles,
    client: ConnectedClient,
    older: OlderTasks,
    tool: ToolName,
    arguments: dict[str, Any] | None,
    timeout: float | None,
    meta: dict[str, Any] | None,
) -> TaskHandle | CallToolResult | None:
    """The same in an older era; None if the tool is not offered as a task."""
    timeout = timeout_of(client) if timeout is None else timeout
    started = await older.start(str(tool), arguments, ttl=tool.options.ttl, timeout=timeout, meta=meta)
    if started is None:
        return None
    if not isinstance(started, TaskSnapshot):
        return tool_result(started, f"the call of {str(tool)!r}")
    return new(handles.of_client(older, client, started.id, str(tool), started), arguments)


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
