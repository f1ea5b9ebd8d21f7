"""Who a client is, parsed by the SDK once for each kind of client, and not once for each of its tasks."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import TypeAlias

from mcp.server.connection import Connection

from mcp_tasks.core import TaskRequest
from mcp_tasks.core.json_bytes import decode_json
from mcp_tasks.wire.plain_json import encode_plain

ROOM = 256 * 1024
"""Bytes of text that are kept with what was parsed from them, which may take twenty times that. A server has few kinds
of clients, and each says little of itself; but what it says is up to the client."""


ClientKey: TypeAlias = tuple[str, bytes, bytes]
"""Version, client info and capabilities: equal for clients that say the same of themselves."""


class ClientCache:
    """The clients that were seen last, within `room` bytes of what they say of themselves."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._used = 0
        self._known: OrderedDict[ClientKey, Connection] = OrderedDict()

    def client_of(self, request: TaskRequest) -> Connection:
        """The client that made the request. To be read only: other tasks have the same."""
        key = (
            request.protocol_version,
            encode_plain(request.client_info),
            encode_plain(dict(request.client_capabilities)),
        )
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        version, info, capabilities = key
        client = Connection.from_envelope(version, decode_json(info), decode_json(capabilities))
        self._keep(key, client)
        return client

    def _keep(self, key: ClientKey, client: Connection) -> None:
        if _size(key) > self._room:
            return
        self._known[key] = client
        self._used += _size(key)
        while self._used > self._room:
            oldest, _ = self._known.popitem(last=False)
            self._used -= _size(oldest)


def _size(key: ClientKey) -> int:
    return sum(map(sys.getsizeof, key))
