"""The server of the demo: an ordinary MCP server with three tools that take their time."""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from pathlib import Path

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations
from pydantic import BaseModel

from mcp_tasks import Tasks, current_task

SAFE_TO_RUN_AGAIN = ToolAnnotations(idempotent_hint=True)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--db", type=Path, required=True)
parser.add_argument("--log", type=Path, required=True, help="a line for every piece of work that is really done")
options = parser.parse_args()

tasks = Tasks(f"sqlite:///{options.db}")
server = MCPServer("render-farm", **tasks.wiring(), log_level="ERROR")


class Publish(BaseModel):
    """What a person is asked."""

    publish: bool


def work(what: str) -> str:
    """Leave a trace of work that was really done, and by which process."""
    with Path(options.log).open("a") as log:
        log.write(f"{what} {os.getpid()}\n")
    return what


async def draw(frame: int) -> str:
    """Draw one frame."""
    await anyio.sleep(0.25)
    return work(f"frame-{frame}")


@server.tool(annotations=SAFE_TO_RUN_AGAIN)
@tasks.task(ttl=timedelta(hours=1))
async def render(frames: int, ctx: Context) -> str:
    """Render a film. A frame is a step: it is drawn once, however often the server dies."""
    for frame in range(1, frames + 1):
        await current_task().step(f"frame-{frame}", draw, frame)
        await ctx.report_progress(frame, frames, f"frame {frame}")
    return f"{frames} frames rendered"


@server.tool(annotations=SAFE_TO_RUN_AGAIN)
@tasks.task(ttl=timedelta(hours=1))
async def release(version: str, ctx: Context) -> str:
    """Build something, ask a person, publish. The question waits as long as it takes."""
    await current_task().step("build", work, f"build-{version}")
    await ctx.report_progress(1, 3, "built, waiting for approval")
    answer = await ctx.elicit(f"Publish version {version}?", Publish)
    if answer.action != "accept" or not answer.data.publish:
        return f"{version} was not published"
    await ctx.report_progress(2, 3, "approved, publishing")
    await anyio.sleep(1)
    await current_task().step("publish", work, f"publish-{version}")
    return f"{version} published"


@server.tool()
@tasks.task(ttl=timedelta(hours=1))
async def charge_card(amount: int, ctx: Context) -> str:
    """Something that must never happen twice, so it is not started again after a crash."""
    for second in range(1, 11):
        await ctx.report_progress(second, 10, f"charging {amount} EUR")
        await anyio.sleep(1)
    work(f"charge-{amount}")
    return f"{amount} EUR charged"


if __name__ == "__main__":
    server.run("streamable-http", port=options.port)
