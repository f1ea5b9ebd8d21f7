"""A second process for the tests of the keys.

    python -m tests.fallback.keys_child PATH

It prints `ready` once the store is open, and for each line that it gets a token with its own number in it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from mcp_tasks.fallback.request_state import StateKeys
from mcp_tasks.stores.sqlite import SqliteStore
from tests.unit.running import make_runtime


async def seal(path: Path) -> None:
    """Seal something for each line of the standard input."""
    store = SqliteStore(path)
    await store.open()
    runtime = make_runtime({}, store=store, namespace="demo")
    keys = StateKeys(lambda: runtime)
    print("ready", flush=True)
    while await anyio.to_thread.run_sync(sys.stdin.readline):
        print(await keys.seal(str(os.getpid()).encode()), flush=True)
    await store.close()


if __name__ == "__main__":
    anyio.run(seal, Path(sys.argv[1]))
