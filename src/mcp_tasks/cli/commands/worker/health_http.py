"""The least of HTTP that probes and scrapers need: GET a page, and be gone.

It answers one request per connection, of a few kilobytes at most and within a few seconds, on so many connections at a
time. Whoever asks for more is turned away; what runs in this process is never held up by who asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, TypeAlias

from mcp_tasks.quiet import get_logger

logger: Final = get_logger(__name__)

LONGEST_HEAD: Final = 8 * 1024
"""Bytes of a request line and its headers. Probes send a few hundred."""

TIME_LIMIT: Final = 5.0
"""Seconds for one request and its answer."""

MOST_CONNECTIONS: Final = 64
"""At a time. A machine has a handful of probes."""

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What one page says."""

    body: str
    status: HTTPStatus = HTTPStatus.OK
    kind: str = TEXT


Page: TypeAlias = Callable[[], Awaitable[Answer]]


@asynccontextmanager
async def serving(host: str, port: int, pages: Mapping[str, Page]) -> AsyncGenerator[int]:
    """Serve pages by their path while the block lasts; gives the port, which was chosen if 0 was asked for.

    Raises:
        OSError: The address cannot be listened at.
    """
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None  # noqa: S101 - each is served in one
        connections.add(connection)
        try:
            async with asyncio.timeout(TIME_LIMIT):
                writer.write(await _answered(reader, pages if len(connections) <= MOST_CONNECTIONS else None))
                await writer.drain()
                writer.write_eof()
                # Closed with something unread, the connection would be reset, and the answer lost on its way.
                await reader.read(LONGEST_HEAD)
        except (TimeoutError, OSError):
            # Too slow, or gone.
            pass
        finally:
            connections.discard(connection)
            writer.close()

    server = await asyncio.start_server(connected, host, port, limit=LONGEST_HEAD)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(connections):
            task.cancel()


async def _answered(reader: asyncio.StreamReader, pages: Mapping[str, Page] | None) -> bytes:
    """The answer to the request that is read; without pages there is no room for it."""
    if pages is None:
        return _bytes(_refused(HTTPStatus.SERVICE_UNAVAILABLE))
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return _bytes(_refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
    except asyncio.IncompleteReadError:
        return _bytes(_refused(HTTPStatus.BAD_REQUEST))
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return _bytes(_refused(HTTPStatus.BAD_REQUEST))
    answer = await _answer(words[0], words[1].partition("?")[0], pages)
    return _bytes(answer, with_body=words[0] != "HEAD")


async def _answer(method: str, path: str, pages: Mapping[str, Page]) -> Answer:
    if path not in pages:
        return _refused(HTTPStatus.NOT_FOUND, f"there is {', '.join(pages)}")
    if method not in ("GET", "HEAD"):
        return _refused(HTTPStatus.METHOD_NOT_ALLOWED)
    try:
        return await pages[path]()
    except Exception:
        logger.exception("%s could not be answered", path)
        return _refused(HTTPStatus.INTERNAL_SERVER_ERROR)


def _refused(status: HTTPStatus, why: str = "") -> Answer:
    return Answer(body=f"{status.phrase}{why and ': '}{why}\n", status=status)


def _bytes(answer: Answer, *, with_body: bool = True) -> bytes:
    body = answer.body.encode()
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.kind}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + (body if with_body else b"")
