"""Processes that share a store: `python -m tests.local.lineage STORE FOLDER QUEUES [TASK | die]`.

They have two tools. The parent is in the queue `parents`; it starts a child, whose result is kept for a second, and
waits for it. The child is in the queue `children`. With `die`, the process is killed the moment the child is in the
store, before the parent writes down that it started one. With a task, the process runs until that task has ended.
Without either, it runs until the child has ended and is gone from the store.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer

from harness.processes import crash
from mcp_tasks import Settings, Tasks, current_task
from mcp_tasks.errors import ResultExpired
from mcp_tasks.model.record import TaskRecord
from mcp_tasks.stores.url import store_from_url

STORE, FOLDER, QUEUES, *WANTED = sys.argv[1:]
DIES = WANTED == ["die"]

store = store_from_url(STORE)
create = store.create


async def create_and_die(record: TaskRecord, *arguments: Any, **options: Any) -> TaskRecord:
    """Have the task in the store; a child is the last thing that this process does."""
    created = await create(record, *arguments, **options)
    if created.parent is not None:
        note(f"started {created.id}")
        crash()
    return created


if DIES:
    store.create = create_and_die  # type: ignore[method-assign]

settings = Settings(lease_duration=timedelta(seconds=2), sweep_interval=timedelta(milliseconds=100))
tasks = Tasks(store, settings=settings, queues=QUEUES.split(","), namespace="lineage")
server = MCPServer("lineage", **tasks.wiring())


def note(what: str) -> None:
    """Write down what was done, so that a kill does not take it away."""
    with (Path(FOLDER) / "log").open("a") as log:
        log.write(f"{what}\n")


def noted(what: str) -> str | None:
    """The task of which it was written down that this was done."""
    lines = (Path(FOLDER) / "log").read_text().splitlines()
    return next((line.split()[1] for line in lines if line.startswith(f"{what} ")), None)


@server.tool()
@tasks.task(recover="rerun", queue="parents")
async def parent() -> dict[str, Any]:
    note("parent")
    task = await tasks.start("child", ttl=timedelta(seconds=1))
    try:
        await task.wait()
    except ResultExpired as exc:
        return {"child": task.id, "error": str(exc)}
    return {"child": task.id}


@server.tool()
@tasks.task(recover="rerun", queue="children")
async def child() -> str:
    note(f"ran {current_task().id}")
    return "paid"


async def main() -> None:
    """Run what there is to be run."""
    async with tasks.running(server):
        if DIES:
            task = await tasks.start("parent")
            print(task.id, flush=True)
            await anyio.sleep_forever()
        if WANTED:
            result = await tasks.handle(WANTED[0]).wait(60)
            print(json.dumps(result.structured_content), flush=True)
        else:
            while (ran := noted("ran")) is None or await store.get(ran) is not None:  # noqa: ASYNC110 - nor has a task
                await anyio.sleep(0.01)


if __name__ == "__main__":
    anyio.run(main)
