"""Another process for the engine suite: it takes ids, says so, and ends as it is told to.

    python -m mcp_tasks.testing.engine_process MODULE:FUNCTION [ARGUMENT ...] [--claim-nothing]

A run ends when standard input does. With `--claim-nothing` none ever says that its task is claimed.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta

from mcp_tasks.engines.base import Engine, Slot

DRAIN = timedelta(seconds=30)
NOT_CLAIMING = "--claim-nothing"


async def take_ids(engine: Engine, *, claims: bool) -> None:
    """Take ids until told to stop, and drain."""
    loop, told, may_end = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, told.set)
    loop.add_reader(sys.stdin, may_end.set)

    async def execute(task_id: str, slot: Slot) -> None:
        say(f"start {task_id}")
        if claims:
            slot.claimed()
        await may_end.wait()
        say(f"end {task_id}")

    await engine.start(execute)
    say("ready")
    await told.wait()
    draining = asyncio.create_task(engine.drain(DRAIN))
    # It has begun when this is said.
    await asyncio.sleep(0.1)
    say("draining")
    await draining
    await engine.stop(DRAIN)


def say(line: str) -> None:
    """Tell the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    """Make the engine and take ids."""
    made_by, *rest = [argument for argument in arguments if argument != NOT_CLAIMING]
    module, _, function = made_by.partition(":")
    engine = getattr(importlib.import_module(module), function)(*rest)
    asyncio.run(take_ids(engine, claims=NOT_CLAIMING not in arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
