"""A server process on the other end of two pipes, and a client that sends it raw lines."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import IO, Any

import anyio

from harness.forking import piped
from harness.processes import ENVIRONMENT, PIPE, STOP_LIMIT, start_async
from harness.rpc import PATIENCE, Reply, loads, notification

LINE_LIMIT = 64 * 2**20


class StdioWire:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.others: list[dict[str, Any]] = []
        """What came and answers no request of ours, in order: notifications, requests, errors without an id."""
        self._waiting: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self._arrived = asyncio.Event()

    async def send(self, message: Mapping[str, Any], *, capabilities: Mapping[str, Any] | None = None) -> Reply:
        answer = asyncio.get_running_loop().create_future()
        self._waiting[message["id"]] = answer
        await self.write(json.dumps(message))
        with anyio.fail_after(PATIENCE):
            return Reply(message=await answer)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        await self.write(json.dumps(notification(method, params)))

    async def write(self, line: str | bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((line.encode() if isinstance(line, str) else line) + b"\n")
        await self.process.stdin.drain()

    async def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        with anyio.fail_after(PATIENCE):
            while True:
                for message in self.others:
                    if wanted(message):
                        return message
                self._arrived.clear()
                await self._arrived.wait()

    async def pushed(self) -> AsyncGenerator[dict[str, Any]]:
        """The other messages, from the first on, as they come."""
        seen = 0
        while True:
            self._arrived.clear()
            for message in self.others[seen:]:
                seen += 1
                yield message
            if len(self.others) == seen:
                await self._arrived.wait()

    async def read(self) -> None:
        """Read what comes until the process closes its end."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            message = loads(line)
            answer = self._waiting.pop(message.get("id"), None) if "method" not in message else None
            if answer is not None:
                answer.set_result(message)
            else:
                self.others.append(message)
                self._arrived.set()


@asynccontextmanager
async def stdio_process(
    *arguments: str, module: str = "harness.furnished", stderr: IO[Any] | None = None
) -> AsyncGenerator[StdioWire]:
    """A server process that serves stdio while the block lasts; it must end by itself when its input does."""
    command = piped(module, "stdio", *arguments)
    process = await start_async(command, env=ENVIRONMENT, stdin=PIPE, stdout=PIPE, stderr=stderr, limit=LINE_LIMIT)
    wire = StdioWire(process)
    reading = asyncio.create_task(wire.read())
    try:
        yield wire
        assert process.returncode is None, f"the server ended by itself with {process.returncode}"
    finally:
        await _end(process)
        await reading


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), STOP_LIMIT)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
