"""What encryption costs: creating a task and getting one, in a store with a key and in one without, side by side.

    python -m bench.encryption                 SQLite files in a temporary directory
    python -m bench.encryption --rounds 20

CPU of the whole process per operation, the writer's thread included; medians of rounds that take turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import anyio

from bench.options import at_least
from bench.store import make_record, make_request
from mcp_tasks.encryption import Cipher, Keyring, new_key
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.sqlite import SqliteStore

OPERATIONS = 500
WRITERS = 16


async def cpu_of(act: Callable[[int], Awaitable[object]]) -> float:
    """Microseconds of CPU that one of many took, with some under way at a time."""

    async def work(start: int) -> None:
        for number in range(start, OPERATIONS, WRITERS):
            await act(number)

    began = time.process_time()
    async with anyio.create_task_group() as group:
        for start in range(WRITERS):
            group.start_soon(work, start)
    return (time.process_time() - began) / OPERATIONS * 1e6


async def round_of(folder: Path, name: str, cipher: Cipher | None) -> tuple[float, float]:
    """One round: what creating cost, and what getting did."""
    store = SqliteStore(folder / f"{name}.db", codec=Codec(cipher))
    await store.open()
    records, request = [make_record() for _ in range(OPERATIONS)], make_request(200)
    creating = await cpu_of(lambda number: store.create(records[number], request))
    getting = await cpu_of(lambda number: store.get(records[number].id))
    await store.close()
    return creating, getting


async def main(rounds: int) -> None:
    """Print the table."""
    ring, found = Keyring(new_key()), dict[str, list[tuple[float, float]]](plain=[], encrypted=[])
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, cipher in (("plain", None), ("encrypted", ring)):
                found[name].append(await round_of(Path(folder), name, cipher))
    print("| | plain µs | encrypted µs | ratio |\n|---|---|---|---|")
    for place, name in enumerate(("create", "get")):
        plain, encrypted = (median(pair[place] for pair in found[kind]) for kind in ("plain", "encrypted"))
        ratio = median(two[place] / one[place] for one, two in zip(found["plain"], found["encrypted"], strict=True))
        print(f"| {name} | {plain:.0f} | {encrypted:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=at_least(1), default=15)
    anyio.run(main, parser.parse_args().rounds)
