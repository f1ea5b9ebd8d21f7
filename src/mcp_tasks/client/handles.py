"""The handles that one `TasksClient` gives out: each over the connection of its task, with what the ledger needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp.client.session import ClientSession

from mcp_tasks.client.callbacks import Callbacks
from mcp_tasks.client.connected import ConnectedClient, transport_of
from mcp_tasks.client.handle import OnAbandon, TaskHandle
from mcp_tasks.client.ledger import Ledger
from mcp_tasks.client.links import Switchboard
from mcp_tasks.client.modern import ModernTask
from mcp_tasks.client.poller import Patience
from mcp_tasks.client.port import OlderTasks, TaskPort
from mcp_tasks.client.task_ledger import TaskLedger
from mcp_tasks.client.transport import ServerTransport
from mcp_tasks.errors import UsageError
from mcp_tasks.wire.parse import TaskSnapshot

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
