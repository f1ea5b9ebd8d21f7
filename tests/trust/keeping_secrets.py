"""A server whose tools are told secrets, ask for some and say some; in a process of its own.

python -m tests.trust.keeping_secrets FOLDER URL FD
"""

from __future__ import annotations

import logging
import sys
from datetime import timedelta
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from harness.serving import serve_app
from mcp_tasks import Tasks, current_task
from mcp_tasks.runtime import Settings

MARK = "SECRET"
"""What every secret begins with."""

SETTINGS = Settings(drain_timeout=timedelta(0), stop_timeout=timedelta(seconds=1), lease_duration=timedelta(seconds=3))


class Pin(BaseModel):
    pin: str


def build(folder: Path, url: str) -> MCPServer:
    tasks = Tasks(url, default_ttl=timedelta(minutes=5), settings=SETTINGS)
    server = MCPServer("bank", **tasks.wiring())

    @server.tool()
    @tasks.task(recover="rerun")
    async def pay(card: str, ctx: Context) -> str:
        await ctx.report_progress(1, 2, f"{MARK}-progress")
        charged = await current_task().step(f"charge {MARK}-step-name", lambda: f"{MARK}-step-value")
        answer = await ctx.elicit(f"{MARK}-question", Pin)
        (folder / "answered").touch()
        while not (folder / "gate").exists():  # noqa: ASYNC110 - another process opens it
            await anyio.sleep(0.05)
        assert charged == f"{MARK}-step-value"
        return f"{MARK}-result {card} {answer.data.pin if answer.action == 'accept' else ''}"

    @server.tool()
    @tasks.task()
    async def fail(card: str) -> str:
        raise ToolError(f"{MARK}-error {card}")

    @server.tool()
    @tasks.task()
    async def crash(card: str) -> str:
        raise ValueError(f"{MARK}-crash {card}")

    @server.tool()
    @tasks.task()
    async def refuse(card: str) -> str:
        raise MCPError(-32000, f"{MARK}-rpc-error {card}", {"card": card})

    @server.tool()
    @tasks.task()
    async def odd(card: str) -> int:
        return f"{MARK}-odd {card}"  # type: ignore[return-value]

    @server.tool()
    @tasks.task(ttl=timedelta(seconds=1))
    async def brief(card: str) -> str:
        return f"{MARK}-brief {card}"

    return server


def log_to(folder: Path) -> None:
    """Ours at DEBUG, and all others at INFO: at DEBUG the SDK logs messages as they come."""
    for name, level, file in (("mcp_tasks", logging.DEBUG, "ours.log"), ("", logging.INFO, "all.log")):
        handler = logging.FileHandler(folder / file)
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(level)
    logging.getLogger("mcp_tasks").propagate = False


def main(folder: Path, url: str, fd: int) -> None:
    log_to(folder)
    # Its logs are ours: all of them are searched.
    serve_app(build(folder, url).streamable_http_app(), fd=fd, log_config=None, log_level=None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
