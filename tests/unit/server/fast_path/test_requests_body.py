"""The body of a request on the short way: read once, and there again for whoever is handed the request."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from starlette.types import Message

from mcp_tasks.server.fast_path.requests import Body, read_body

pytestmark = pytest.mark.anyio

LEFT: Message = {"type": "http.disconnect"}
AFTER: Message = {"type": "http.disconnect", "after": True}


def _piece(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def _read(messages: Sequence[Message], largest: int = 10) -> Body:
    coming = iter([*messages, AFTER])

    async def receive() -> Message:
        return next(coming)

    return await read_body(receive, largest)


async def _replayed(body: Body) -> list[Message]:
    messages = [await body.replay()]
    while messages[-1]["type"] != "http.disconnect":
        messages.append(await body.replay())
    return messages


async def test_one_piece_is_given_again_as_it_came() -> None:
    message = _piece(b"abc", more=False)
    body = await _read([message])
    assert body.data == b"abc"
    assert await _replayed(body) == [message, AFTER]


async def test_pieces_are_given_again_as_one() -> None:
    body = await _read([_piece(bytes([byte])) for byte in b"abcdef"] + [_piece(b"", more=False)])
    assert body.data == b"abcdef"
    assert await _replayed(body) == [_piece(b"abcdef", more=False), AFTER]


async def test_a_body_that_is_cut_off_is_given_again_with_its_end() -> None:
    body = await _read([_piece(b"ab"), _piece(b"c"), LEFT])
    assert body.data is None
    assert await _replayed(body) == [_piece(b"abc"), LEFT]
    assert await body.replay() == AFTER


async def test_of_a_client_that_sends_nothing_there_is_only_that_it_left() -> None:
    body = await _read([LEFT])
    assert body.data is None
    assert await _replayed(body) == [LEFT]
    assert await body.replay() == AFTER


async def test_what_is_too_large_is_read_no_further_and_goes_on_where_it_was_left() -> None:
    body = await _read([_piece(b"123456"), _piece(b"78901"), _piece(b"2"), _piece(b"3", more=False)])
    assert body.data is None
    assert await _replayed(body) == [_piece(b"12345678901"), _piece(b"2"), _piece(b"3", more=False), AFTER]


async def test_what_is_too_large_by_its_last_piece_ends_with_it() -> None:
    body = await _read([_piece(b"123456"), _piece(b"78901", more=False)])
    assert body.data is None
    assert await _replayed(body) == [_piece(b"12345678901", more=False), AFTER]


async def test_what_is_just_as_large_as_may_be_is_read() -> None:
    body = await _read([_piece(b"12345"), _piece(b"67890", more=False)])
    assert body.data == b"1234567890"
