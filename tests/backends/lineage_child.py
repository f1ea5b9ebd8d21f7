"""Processes that share a store: `python -m tests.backends.lineage_child STORE FOLDER QUEUES [TASK | die]`.

They have two tools. The parent is in the queue `parents`; it starts a child, whose result is kept for a second, and
waits for it. The child is in the queue `children`. With `die`, the process is killed the moment the child is in the
store, before the parent records that it started one. With a task, the process runs until that task has ended.
Without either, it runs until the child has ended and is gone from the store.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer

from harness.processes import crash
from harness.waiting import eventually
from mcp_tasks import Settings, Tasks, current_task
from mcp_tasks.errors import ResultExpired
from mcp_tasks.model import TaskRecord
from mcp_tasks.stores.url import store_from_url

STORE, FOLDER, QUEUES, *WANTED = sys.argv[1:]
DIES = WANTED == ["die"]
LIMIT = 60.0

store = store_from_url(STORE)
create = store.create
log = Path(FOLDER) / "log"


async def create_and_die(record: TaskRecord, *arguments: Any, **options: Any) -> TaskRecord:
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


def note(line: str) -> None:
    with log.open("a") as lines:
        lines.write(f"{line}\n")


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


async def child_has_expired() -> bool:
    ran = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("ran ")]
    return bool(ran) and await store.get(ran[0]) is None


async def main() -> None:
    async with tasks.running(server):
        if DIES:
            print((await tasks.start("parent")).id, flush=True)
            await anyio.sleep(LIMIT)  # sleep: until the child is in the store
        elif WANTED:
            result = await tasks.handle(WANTED[0]).wait(LIMIT)
            print(json.dumps(result.structured_content), flush=True)
        else:
            await eventually(child_has_expired, LIMIT)


if __name__ == "__main__":
    anyio.run(main)
