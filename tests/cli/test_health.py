"""The pages of a worker: of bounded size, in bounded time, and true."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

import pytest

from mcp_tasks.cli.commands import worker as health_http
from mcp_tasks.cli.commands.worker import Answer, Page, Recent, serving

pytestmark = pytest.mark.anyio


async def _hello() -> Answer:
    return Answer(body="hello\n")


async def _broken() -> Answer:
    raise ValueError("secret")


PAGES: Mapping[str, Page] = {"/hello": _hello, "/broken": _broken}


async def _exchange(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /hello?full=1 HTTP/1.0\r\n\r\n", 200),
        (b"GET /hello/ HTTP/1.1\r\n\r\n", 404),
        (b"GET http://elsewhere/hello HTTP/1.1\r\n\r\n", 404),
        (b"POST /hello HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /hello HTTP/2\r\n\r\n", 400),
        (b"GET /hello\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
    ],
)
async def test_one_request_is_answered_and_the_connection_closed(sent: bytes, status: int) -> None:
    async with serving("127.0.0.1", 0, PAGES) as port:
        answer = await _exchange(port, sent)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode())
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"secret" not in answer
    assert (body == b"hello\n") == (status == 200)


async def test_head_has_no_body() -> None:
    async with serving("127.0.0.1", 0, PAGES) as port:
        answer = await _exchange(port, b"HEAD /hello HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 6\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_who_does_not_finish_asking_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_http, "TIME_LIMIT", 0.05)
    async with serving("127.0.0.1", 0, PAGES) as port:
        assert await _exchange(port, b"GET /hello HTTP/1.1\r\nHost:") == b""


async def test_more_than_so_many_at_a_time_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_http, "MOST_CONNECTIONS", 1)
    async with serving("127.0.0.1", 0, PAGES) as port:
        _, idle = await asyncio.open_connection("127.0.0.1", port)
        idle.write(b"GET ")
        await idle.drain()
        answer = await _exchange(port, b"GET /hello HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503 ")
        idle.close()
        await idle.wait_closed()


async def test_however_many_ask_at_once_there_is_one_look() -> None:
    looks: list[int] = []

    async def look() -> int:
        looks.append(1)
        await asyncio.sleep(0)
        return len(looks)

    recent = Recent(look)
    assert await asyncio.gather(*(recent.get() for _ in range(20))) == [1] * 20
