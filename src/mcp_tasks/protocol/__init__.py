"""The rules of the wire, for any door: who calls, in which era, what may be asked for, and what is answered.

Nothing here knows how a request came in. An adapter (see `mcp_tasks.adapters`) builds a `Caller`, calls a method of
`TasksProtocol`, and sends on what comes back. What differs between eras is a `Dialect`.
"""

from mcp_tasks.protocol.caller import Caller, Identity
from mcp_tasks.protocol.dialect import Dialect, Dialects
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.listen import Listening
from mcp_tasks.protocol.message import Message
from mcp_tasks.protocol.methods import TasksProtocol
from mcp_tasks.protocol.modern import ModernDialect
from mcp_tasks.protocol.texts import Texts

__all__ = [
    "Caller",
    "Dialect",
    "Dialects",
    "Identity",
    "Listening",
    "Message",
    "ModernDialect",
    "RpcError",
    "TasksProtocol",
    "Texts",
]
