"""The ways in to the tasks of a server, put together: the SDK's door with the older eras, the answers for callers that
speak no tasks, and the short way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcp.server import MCPServer, Server
from mcp.server.extension import Extension

from mcp_tasks.adapters.asgi import ShortWay
from mcp_tasks.adapters.era import EraParts
from mcp_tasks.adapters.reading import Readers
from mcp_tasks.adapters.sdk import SdkAdapter
from mcp_tasks.core.limits import Limits
from mcp_tasks.fallback.hosts import Host
from mcp_tasks.fallback.room import FallbackRoom
from mcp_tasks.fallback.ways import ShownTo
from mcp_tasks.protocol import Dialects, ModernDialect, TasksProtocol
from mcp_tasks.protocol.limiting import Limiting
from mcp_tasks.protocol.owners import Owners
from mcp_tasks.protocol.stream_ends import StreamEnds
from mcp_tasks.server.called_tools import CalledTools
from mcp_tasks.server.calls import Augment, Calls
from mcp_tasks.server.catalogue import Catalogue
from mcp_tasks.server.eras import older_eras
from mcp_tasks.server.lifecycle import Lifecycle
from mcp_tasks.server.offers import ServedOffers


class Doors:
    """What requests come in by, for one `Tasks` object. The arguments are those that an author gives to it.

    Attributes:
        adapter: The SDK's door.
        calls: Which calls of tools become tasks.
        fallback: The answers for callers that speak no tasks.
        short_way: What answers before the SDK sees a request; there even if it is not put before anything.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        lifecycle: Lifecycle,
        *,
        owners: Owners,
        require_name_header: bool,
        send_input: bool,
        limits: Limits,
        augment: Augment | None,
        hosts: Mapping[str, Host],
        companions: ShownTo,
        companion_prefix: str,
        short_way: bool,
        max_listeners: int,
    ) -> None:
        protocol = TasksProtocol(
            lifecycle.runtime,
            dialects=Dialects([ModernDialect()]),
            owners=owners,
            limiting=Limiting(limits, free=owners.local),
            require_name_header=require_name_header,
            stream_ends=StreamEnds(limits.stream_life),
        )
        parts = EraParts(
            runtime=lifecycle.runtime,
            protocol=protocol,
            offers=ServedOffers(catalogue, limits.ttl),
            stopping=lifecycle.stopping,
            exiting=lifecycle.exiting,
            open_calls=lifecycle.open_calls,
            send_input=send_input,
        )
        eras = older_eras(parts)
        tools = CalledTools(catalogue, augments=augment is not None)
        self.adapter: SdkAdapter = SdkAdapter(protocol, lifecycle.stopping, eras)
        self.fallback: FallbackRoom = FallbackRoom(
            parts,
            open_calls=lifecycle.open_calls,
            ways=tools,
            hosts=hosts,
            shown=companions,
            prefix=companion_prefix,
            is_stopping=lifecycle.is_stopping,
        )
        self.calls: Calls = Calls(catalogue, protocol, self.adapter, lifecycle.runtime, self.fallback, augment)
        self.short_way: ShortWay = ShortWay(
            protocol, self.calls, self.adapter.is_own, lifecycle.stopping, max_listeners
        )
        lifecycle.counts = self.short_way.counts
        self._harmless: frozenset[str] = frozenset()
        lifecycle.middleware = self.adapter.middleware
        lifecycle.check_start = lambda: self.fallback.prepare(tools.names())
        # The last to be put before the SDK's app is the first to see a request.
        lifecycle.on_start = [
            *(era.start for era in eras),
            self.fallback.start,
            *([self._put_short_way] if short_way else []),
            Readers(protocol).put_before,
        ]

    def stand_beside(self, extensions: Sequence[Extension]) -> None:
        """Take note of a server's other extensions: those that intercept no calls leave them to the short way."""
        self._harmless = frozenset(
            each.identifier for each in extensions if type(each).intercept_tool_call is Extension.intercept_tool_call
        )

    def _put_short_way(self, server: MCPServer[Any] | Server[Any]) -> None:
        self.short_way.put_before(server, self._harmless)
