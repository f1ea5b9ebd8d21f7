"""A server for several processes: `uvicorn farm:app` serves it, `mcp-tasks worker farm:server` runs its tools.

Whatever differs between the places where it runs is in the environment:

MCP_TASKS_URL      where tasks are kept, for all processes the same
REQUEST_STATE_KEY  32 random bytes or more, for all processes the same
ALLOWED_HOSTS      the names under which clients reach it, with commas
RUNS_TOOLS         "no" where workers do that
"""

from __future__ import annotations

import os

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, RequestStateSecurity
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mcp_tasks import Tasks

tasks = Tasks(runs_tools=os.environ.get("RUNS_TOOLS") != "no")
server = MCPServer(
    "render-farm",
    # What a client brings back with its answers may come to another replica.
    request_state_security=RequestStateSecurity(keys=[os.environ["REQUEST_STATE_KEY"]]),
    **tasks.wiring(),
)


@server.tool()
@tasks.task(recover="rerun", queue="gpu", max_at_work=8)
async def render(frames: int, ctx: Context) -> str:
    """Render some frames, one a second."""
    for frame in range(1, frames + 1):
        await ctx.report_progress(frame, frames, f"frame {frame}")
        await anyio.sleep(1)
    return f"{frames} frames, by process {os.getpid()}"


@server.tool()
@tasks.task(recover="rerun", priority=10)
def preview(scene: str) -> str:
    """Show how a scene will look."""
    return f"{scene} in small, by process {os.getpid()}"


@server.custom_route("/live", methods=["GET"])
async def live(_: Request) -> Response:
    """For whoever looks whether this process serves."""
    return PlainTextResponse("ok\n")


# For Prometheus (mcp-tasks[prometheus]). It asks for no token: the proxy passes on nothing but /mcp.
server.custom_route("/metrics", methods=["GET"])(tasks.metrics.endpoint)


_hosts = [host.strip() for host in os.environ["ALLOWED_HOSTS"].split(",")]
app = server.streamable_http_app(
    transport_security=TransportSecuritySettings(
        allowed_hosts=_hosts,
        allowed_origins=[f"{scheme}://{host}" for host in _hosts for scheme in ("http", "https")],
    )
)
