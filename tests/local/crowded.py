"""Workers that share a store and a limit: `python -m tests.local.crowded STORE FOLDER [OWNER]`.

Two tasks of one owner may be at work at a time. With an owner, the process starts more parents than that, each of which
waits for two children, and ends when all have ended. Without, it runs tasks until the file `done` is there.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

import anyio
from mcp.server import MCPServer

from mcp_tasks import Settings, Tasks, current_task

STORE, FOLDER, *OWNER = sys.argv[1:]

settings = Settings(max_at_work_per_owner=2, sweep_interval=timedelta(milliseconds=100))
tasks = Tasks(STORE, settings=settings, namespace="crowded")
server = MCPServer("crowded", **tasks.wiring())


def note(what: str) -> None:
    """Write down what is done, in the order in which it happens in all processes."""
    with (Path(FOLDER) / "log").open("a") as log:
        log.write(f"{what}\n")


@server.tool()
@tasks.task(recover="fail")
async def parent() -> str:
    children = [await tasks.start("child", ttl=timedelta(minutes=1)) for _ in range(2)]
    await asyncio.gather(*(child.wait() for child in children))
    return "done"


@server.tool()
@tasks.task(recover="fail")
async def child() -> str:
    note(f"begins {current_task().id}")
    await anyio.sleep(0.05)
    note(f"ends {current_task().id}")
    return "done"


async def main() -> None:
    """Start tasks and wait for them, or run those of the other process."""
    done = Path(FOLDER) / "done"
    async with tasks.running(server):
        if OWNER:
            parents = [await tasks.start("parent", owner=OWNER[0], ttl=timedelta(minutes=1)) for _ in range(5)]
            for each in parents:
                await each.wait(60)
            done.touch()
        while not done.exists():  # noqa: ASYNC110 - a file has no event
            await anyio.sleep(0.01)


if __name__ == "__main__":
    anyio.run(main)
