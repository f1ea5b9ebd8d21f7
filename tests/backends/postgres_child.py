"""A process with a Postgres store of its own: `python postgres_child.py URL open|hint TASK`."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime

from mcp_tasks.model.record import TaskRecord, TaskRequest
from mcp_tasks.stores.base import Hint
from mcp_tasks.stores.postgres import PostgresStore


async def main(url: str, what: str, task_id: str) -> None:
    store = PostgresStore(url)
    # All children come to this line, and go on together.
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await store.open()
    if what == "hint":
        now = datetime.now(UTC)
        record = TaskRecord(id=task_id, owner=None, name="render", created_at=now, updated_at=now)
        await store.create(record, TaskRequest(name="render", arguments={}))
        await store.notifier().publish(Hint(task_id, 1))
    await store.heartbeat(task_id, namespace="demo")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
