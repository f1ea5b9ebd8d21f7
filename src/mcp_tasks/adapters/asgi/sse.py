"""JSON-RPC messages as server-sent events, written as the SDK writes them: in ASCII.

The events themselves end at CR and LF alone, but many clients split lines wherever Unicode has a line break, such as
U+2028, which JSON may have as it is.
"""

from __future__ import annotations

import asyncio
import codecs
import json
from typing import Final

from mcp_tasks.core.json_bytes import LARGE, encode_json

PING: Final = b": ping\r\n\r\n"
"""A comment: a sign of life."""


def notification(method: str, params: bytes) -> bytes:
    """The event of a notification whose params are JSON already."""
    return event(b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (encode_json(method), params))


def event(message: bytes) -> bytes:
    """The event of a message, which has no line breaks between its tokens."""
    return b"event: message\r\ndata: %b\r\n\r\n" % (message if message.isascii() else _escaped(message))


async def escaped(data: bytes) -> bytes:
    """The same JSON in ASCII. What is large is made in a thread."""
    if data.isascii():
        return data
    return await asyncio.to_thread(_escaped, data) if len(data) > LARGE else _escaped(data)


def _escaped(data: bytes) -> bytes:
    # In pieces: between two of them the event loop has its turn.
    decode = codecs.getincrementaldecoder("utf-8")("surrogatepass").decode
    texts = (decode(data[at : at + LARGE], at + LARGE >= len(data)) for at in range(0, len(data), LARGE))
    return b"".join([_escape(text).encode() for text in texts])


def _escape(text: str) -> str:
    # The encoder escapes what is part of JSON as well: quotes and backslashes. Two characters that JSON cannot have as
    # they are stand for these meanwhile; so all backslashes behind it are its own. A tab is between tokens.
    safe = text.replace('"', "\x01").replace("\\", "\x02").replace("\t", " ")
    return json.dumps(safe)[1:-1].replace("\\u0001", '"').replace("\\u0002", "\\")
