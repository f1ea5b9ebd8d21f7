"""A process whose wall clock is wrong: a server, or a worker. Its tools write down that they were entered.

python -m tests.backends.wrong_clock_child ROLE HOURS URL FOLDER [PORT]

Roles: `first` serves and runs tools, `server` only serves, `worker` only runs tools.
"""

import sys
from datetime import timedelta

from harness.wrong_clock import be_off

if hours := float(sys.argv[2]):
    be_off(timedelta(hours=hours))

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

from harness.serving import serving_until_told
from mcp_tasks import Settings, Tasks, current_task

HOUR = timedelta(hours=1)


class Sure(BaseModel):
    sure: bool


def build(url: str, folder: Path, role: str, *, is_right: bool) -> tuple[MCPServer, Tasks]:
    # With the right clock nothing is swept, so that it is known who did it.
    settings = Settings(sweep_interval=HOUR if is_right else timedelta(milliseconds=200))
    tasks = Tasks(url, default_ttl=HOUR, settings=settings, runs_tools=role != "server")
    server = MCPServer("clocks", **tasks.wiring())

    @server.tool()
    @tasks.task()
    async def pay(job: str) -> str:
        with (folder / "paid").open("a") as file:
            file.write(f"{job}\n")
        return datetime.now(UTC).isoformat()

    @server.tool()
    @tasks.task(ttl=timedelta(milliseconds=1))
    async def soon_gone() -> str:
        return "its result expires at once"

    @server.tool()
    @tasks.task(recover="rerun", park_after=timedelta(0))
    async def nap(seconds: float) -> str:
        await current_task().sleep(timedelta(seconds=seconds))
        return "awake"

    @server.tool()
    @tasks.task(recover="rerun", park_after=timedelta(0))
    async def ask_for_two_hours(ctx: Context) -> str:
        answer = await current_task().ask(ctx.elicit("Sure?", Sure), timeout=2 * HOUR)
        return answer.action

    @server.tool()
    @tasks.task(recover="rerun", park_after=timedelta(0), max_wait=12 * HOUR)
    async def ask_for_half_a_day(ctx: Context) -> str:
        return (await ctx.elicit("Sure?", Sure)).action

    return server, tasks


def main() -> None:
    role, hours, url, folder, *port = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING)
    server, tasks = build(url, Path(folder), role, is_right=hours == "0")
    if role == "worker":
        asyncio.run(tasks.work(server))
    else:
        asyncio.run(serving_until_told(server.streamable_http_app(stateless_http=True), port=int(port[0])))


if __name__ == "__main__":
    main()
