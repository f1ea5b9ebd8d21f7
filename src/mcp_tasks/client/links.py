"""Which session a notification came on.

The SDK hands a notification to an extension without saying on which session it came, and one `TasksClient` may be
given to several clients. A server must not speak for the tasks of another, so a pushed state is believed only if it is
known to have come on the session of its task; otherwise it is a hint to look, at the server that the task belongs to.

The SDK asks the extension for its claims and its bindings once for each client. Each time is a `Link`, and what comes
through a link comes from the one session of that client. Three things prove which one that is: a call that became a
task (the claim is resolved with its session), a transport of ours (its messages carry it), and that no other is left.

Clients that are not the SDK's, such as FastMCP's, may be entered again and then have another session behind the same
link. What comes through it for a task that its old session does not wait for is a hint as well; and that no other is
left proves something only where there is no other client at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from mcp.client.session import ClientSession

from mcp_tasks.client.push import PushHub
from mcp_tasks.client.transport import ServerTransport, transport_in


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
