"""Raw JSON-RPC over the pipes of a server's process. There are no headers and no statuses."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import count
from typing import Any, Final

from mcp_tasks.cli.credentials import environment_for_servers
from mcp_tasks.client.servers.address import ServerAddress
from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor.wire import ANSWER_TIMEOUT, Reply, Silence, handshake, parse_object, request_of

LINE_LIMIT: Final = 64 * 2**20
"""Bytes in one message: results can be large."""

STOP_LIMIT: Final = 5.0
"""Seconds for the process to end when its input does."""


@asynccontextmanager
async def stdio_wire(target: ServerAddress) -> AsyncGenerator[StdioWire]:
    """A way to a server whose process runs for as long as this is entered.

    Raises:
        OSError: Its command cannot be started.
    """
    pipe = asyncio.subprocess.PIPE
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *target.argv,
            stdin=pipe,
            stdout=pipe,
            stderr=log,
            cwd=target.folder,
            env=environment_for_servers(),
            limit=LINE_LIMIT,
            start_new_session=True,
        )
        if process.stdin is None or process.stdout is None:
            raise OSError("the process has no pipes")
        wire = StdioWire(process.stdout, process.stdin)
        reading = asyncio.ensure_future(wire.read())
        try:
            yield wire
        finally:
            process.stdin.close()
            await _end(process)
            await reading


class StdioWire:
    """The pipes of a server's process."""

    over_http = False

    def __init__(self, coming: asyncio.StreamReader, going: asyncio.StreamWriter) -> None:
        self._coming = coming
        self._going = going
        self._numbers = count(1)
        self._waiting: dict[Any, asyncio.Future[JsonObject]] = {}
        self._others: asyncio.Queue[JsonObject] = asyncio.Queue()

    async def send(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        declare: bool = True,
        headers: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
    ) -> Reply:
        """Send a request and give what came back; there are no headers."""
        return await self._ask(request_of(next(self._numbers), method, params, declare=declare))

    async def shake_hands(self) -> Reply:
        """Send an `initialize`."""
        return await self._ask(handshake(next(self._numbers)))

    @asynccontextmanager
    async def listen(self, task_ids: Sequence[str]) -> AsyncGenerator[AsyncIterator[JsonObject]]:
        """Open a listen stream: what comes and answers no other request."""
        params = {"notifications": {"taskIds": list(task_ids)}}
        request = request_of(next(self._numbers), "subscriptions/listen", params)
        await self._write(request)

        async def messages() -> AsyncGenerator[JsonObject]:
            while True:
                yield await self._others.get()

        try:
            async with aclosing(messages()) as coming:
                yield coming
        finally:
            cancelled = {"requestId": request["id"], "reason": "enough seen"}
            await self._write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})

    async def read(self) -> None:
        """Read what comes until the process closes its end."""
        while line := await self._coming.readline():
            message = parse_object(line)
            if message is None:
                continue
            answer = self._waiting.pop(message.get("id"), None) if "method" not in message else None
            if answer is None:
                self._others.put_nowait(message)
            elif not answer.done():
                answer.set_result(message)
        for answer in self._waiting.values():
            answer.cancel()

    async def _ask(self, request: JsonObject) -> Reply:
        answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._waiting[request["id"]] = answer
        try:
            await self._write(request)
            return Reply(message=await asyncio.wait_for(answer, ANSWER_TIMEOUT))
        except TimeoutError as exc:
            raise Silence(f"no answer within {ANSWER_TIMEOUT:g} s") from exc
        except asyncio.CancelledError:
            if answer.cancelled() and self._coming.at_eof():
                raise Silence("the server ended") from None
            raise

    async def _write(self, message: JsonObject) -> None:
        try:
            self._going.write(json.dumps(message).encode() + b"\n")
            await self._going.drain()
        except OSError as exc:
            raise Silence("the server ended") from exc


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(process.wait(), STOP_LIMIT)
    except TimeoutError:
        process.kill()
        await process.wait()
