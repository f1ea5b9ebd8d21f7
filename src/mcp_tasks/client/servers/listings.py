"""Listings of tools on their way to the SDK, without the schemas that it had better not be given.

The SDK checks results against the `outputSchema` of their tool, by a validator that works for as long as a schema asks
it to: a server could hold the command up for ever. Of such a tool nothing is checked here, and the result is shown as
it is.
"""

from __future__ import annotations

from typing import Any, cast

from mcp_types import JSONRPCMessage, JSONRPCResponse

from mcp_tasks.wire.tame import is_tame


class TameListings:
    """Takes such schemas out of what a server lists."""

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """What is sent is not looked at."""
        return message

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """A listing of tools loses the schemas that are not tame."""
        tools: Any = message.result.get("tools") if isinstance(message, JSONRPCResponse) else None
        for tool in cast("list[Any]", tools) if isinstance(tools, list) else ():
            if isinstance(tool, dict) and not is_tame(cast("dict[str, Any]", tool).get("outputSchema", True)):
                del tool["outputSchema"]
        return message
