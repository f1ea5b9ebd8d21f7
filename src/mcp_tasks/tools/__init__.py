"""Running an author's tool from its record, and what is asked before its body.

Above the runtime and the wire's errors, below the server: nothing here knows how a call came in or how its answer
goes out.

    host.py          a server of the SDK as the source of tools
    body.py          one run of a tool, over
    channel.py       the client as that tool sees it, with
    open_calls.py    the calls that are still open for it,
    clients.py       who the client is, and
    bus.py           the server's own events
    before_body.py   parameters that the SDK asks for before it enters the tool
    creation.py      the task of a call, and what the call is answered with
    client_stream.py where a client of an older era is asked, through raw.py
"""

from mcp_tasks.tools.body import ToolBody
from mcp_tasks.tools.creation import CallAnswer, InlineResult, Question, answer_call
from mcp_tasks.tools.host import LowLevelHost, MCPServerHost, ToolHost

__all__ = [
    "CallAnswer",
    "InlineResult",
    "LowLevelHost",
    "MCPServerHost",
    "Question",
    "ToolBody",
    "ToolHost",
    "answer_call",
]
