"""A second process for the tests of stores: `python -m tests.backends.child VERB URL`.

It prints `ready` once it runs, and does not go on before it gets a line on its standard input.
"""

import os
import resource
import sys
from contextlib import ExitStack
from secrets import token_hex

import anyio

from harness.processes import PIPE, python, read_line, running, tell
from harness.stored import opened
from mcp_tasks.errors import StoreError, StoreUnavailable
from mcp_tasks.stores.url import store_from_url
from mcp_tasks.testing import make_record, make_request

REQUEST = make_request()
WRITERS = 10
CREATES = 100
NOBODY = 65534
SMALL_FILE = 512 * 1024


def printed_by(verb: str, url: str, processes: int = 1) -> list[str]:
    """The lines of so many processes that begin in the same moment."""
    command = python("tests.backends.child", verb, url)
    with ExitStack() as stack:
        children = [stack.enter_context(running(command, stdin=PIPE, stdout=PIPE, text=True)) for _ in range(processes)]
        for child in children:
            assert read_line(child) == "ready\n"
        for child in children:
            tell(child, "\n")
        printed: list[str] = [child.communicate(timeout=60)[0] for child in children]
        assert [child.returncode for child in children] == [0] * processes
    return [line for text in printed for line in text.splitlines()]


async def create_tasks(url: str) -> None:
    """Create tasks with several writers and print each id once it is acknowledged."""
    async with opened(store_from_url(url)) as store:

        async def write() -> None:
            for _ in range(CREATES // WRITERS):
                print((await store.create(make_record(id=token_hex(8)), REQUEST)).id)

        async with anyio.create_task_group() as group:
            for _ in range(WRITERS):
                group.start_soon(write)


async def open_as_nobody(url: str) -> None:
    """Open the store as a user to whom permission bits apply. Only here: this user may not read all of Python."""
    store = store_from_url(url)
    if os.geteuid() == 0:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    try:
        await store.open()
    except StoreError as exc:
        print(f"{type(exc).__name__}: {exc}")


async def fill_disk(url: str) -> None:
    """Create large tasks until no file may grow any more; then let it grow again and create one more."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    said: list[str] = []
    async with opened(store_from_url(url)) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_FILE, hard))

        async def create() -> None:
            record = make_record(status_message="x" * 10_000)
            try:
                await store.create(record, REQUEST)
            except StoreUnavailable as exc:
                said.append(f"refused {record.id} {type(exc.__cause__).__name__} {await store.get(record.id)}")
            else:
                said.append(f"kept {record.id}")

        while not any(line.startswith("refused") for line in said):
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(create)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await store.create(make_record(id="after"), REQUEST)
    print(*said, "kept after", sep="\n")


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    verbs = {verb.__name__: verb for verb in (create_tasks, open_as_nobody, fill_disk)}
    anyio.run(verbs[sys.argv[1]], sys.argv[2])
