"""A server without a wire, in a process of its own, that is killed: `python -m tests.local.family FOLDER [TASK]`.

It starts a parent task, or waits for one that an earlier process started. The parent starts a child, which goes on once
the file `gate` is there, and answers through a question.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

from mcp_tasks import Tasks, current_task

FOLDER = Path(sys.argv[1])

tasks = Tasks(f"sqlite:///{FOLDER / 'tasks.db'}", concurrency=1)
server = MCPServer("family", **tasks.wiring())


class Name(BaseModel):
    """What the child asks for."""

    name: str


def note(what: str) -> None:
    """Write down what was done, so that a kill does not take it away."""
    with (FOLDER / "log").open("a") as log:
        log.write(f"{what}\n")


@server.tool()
@tasks.task(recover="rerun")
async def parent() -> dict[str, Any]:
    note("parent")
    child = await tasks.start("child", ttl=timedelta(hours=1))
    result = await child.wait()
    return {"child": child.id, "said": result.structured_content}


@server.tool()
@tasks.task(recover="rerun")
async def child(ctx: Context) -> str:
    note(f"child of {current_task().owner}")
    while not (FOLDER / "gate").exists():  # noqa: ASYNC110 - a file has no event
        await anyio.sleep(0.01)
    answer = await ctx.elicit("Who?", Name)
    return f"{answer.action} {getattr(answer, 'data', None)}"


async def main() -> None:
    """Start a task and stay, or wait for one to end."""
    async with tasks.running(server):
        if len(sys.argv) == 2:
            print((await tasks.start("parent", owner="alice", session="s1")).id, flush=True)
            await anyio.sleep_forever()
        task = tasks.handle(sys.argv[2])
        children = (await tasks.list(parent=task.id)).tasks
        for each in children:
            handle = tasks.handle(each.id)
            await handle.until_asked(30)
            await handle.send_input("accept", {"name": "Ann"})
        result = await task.wait(30)
        print(json.dumps({"result": result.structured_content, "children": [each.id for each in children]}))


if __name__ == "__main__":
    anyio.run(main)
