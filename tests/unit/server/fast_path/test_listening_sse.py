"""Messages as events of a stream: one line each, whatever is in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings

from mcp_tasks.model.json import LARGE, encode_json
from mcp_tasks.server.fast_path.listening import escaped, event
from mcp_tasks.testing.strategies import json_values

pytestmark = pytest.mark.anyio

EVERYTHING = "".join(map(chr, [*range(0x3000), 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF]))


@given(value=json_values())
@example(value=EVERYTHING)
@example(value={EVERYTHING: "\\\u2028"})
@example(value=["\u2028", "\\u0001\\u0002\\\\u0001\x01\x02\\"])
@settings(deadline=None)
def test_an_event_is_one_line_to_every_reader_and_says_the_same(value: Any) -> None:
    first, second, *rest = event(encode_json(value)).decode("ascii").splitlines()
    assert (first, rest) == ("event: message", [""])
    assert json.loads(second.removeprefix("data: ")) == value


@pytest.mark.parametrize("text", ["x", "ü", "\u2028", "\U0001f600", "ü\U0001f600xyz", EVERYTHING])
async def test_what_is_large_is_escaped_the_same(text: str) -> None:
    # Whichever of its bytes is the last of a piece.
    for shift in range(4):
        value = "s" * shift + text * (3 * LARGE // len(text))
        assert json.loads((await escaped(encode_json(value))).decode("ascii")) == value


async def test_space_between_tokens_stays_space() -> None:
    data = '\t{"a\u2028"\t:\t["\\t",\t1 ]}'.encode()
    assert await escaped(data) == b' {"a\\u2028" : ["\\t", 1 ]}'


async def test_what_is_ascii_is_not_touched() -> None:
    data = encode_json("x" * LARGE * 2)
    assert await escaped(data) is data
