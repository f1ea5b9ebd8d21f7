"""A worker that reads an id and says so, and never gets as far as claiming the task."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from mcp_tasks.engines import RemoteEngine, Slot
from mcp_tasks.engines.docket import DocketCarrier


async def main(url: str, prefix: str) -> None:
    async def execute(task_id: str, slot: Slot) -> None:
        print(task_id, flush=True)
        await asyncio.sleep(60)

    carrier = DocketCarrier(url, prefix=prefix, redelivery=timedelta(seconds=1))
    await RemoteEngine(carrier).start(execute)
    await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
