"""Large parts of an answer that are JSON already: the SDK writes the answer with a word in their place, and they are
put in where it goes out.

The SDK takes objects and writes JSON of them on the event loop, in several passes: 10 MB take it most of a second, in
which nobody else is served, and several times the memory.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any, Final

from starlette.types import Message, Scope, Send

from mcp_tasks.adapters.era import RequestContext
from mcp_tasks.adapters.exchange import exchange_of
from mcp_tasks.core.json_bytes import LARGE, encode_in_pieces, is_large

_PARTS: Final = "mcp_tasks.large_parts"
"""Where in the scope of a POST the large parts of its answer are put."""

_LENGTH: Final = b"content-length"


class LargeParts:
    """The large parts of the answer to one POST.

    Args:
        send: Sends the answer.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._parts: dict[str, bytes] = {}
        self._start: Message | None = None

    def put(self, data: bytes) -> str:
        """Have JSON put in for the text that this gives."""
        # Nobody can guess it, so no text of anybody's is taken for it.
        word = f"mcp-tasks-{secrets.token_hex(16)}"
        self._parts[word] = data
        return word

    async def send(self, message: Message) -> None:
        """Send what the SDK sends, with the parts in it."""
        if not self._parts:
            await self._send(message)
        elif message["type"] == "http.response.start":
            # How long it is going to be is known with the body.
            self._start = message
        elif message["type"] == "http.response.body":
            body = self._filled(message.get("body", b""))
            more = message.get("more_body", False)
            if self._start is not None:
                await self._send(_with_length(self._start, None if more else len(body)))
                self._start = None
            await self._send({**message, "body": body})
        else:
            await self._send(message)

    def _filled(self, body: bytes) -> bytes:
        for word in [word for word in self._parts if word.encode() in body]:
            body = body.replace(f'"{word}"'.encode(), self._parts.pop(word), 1)
        return body


def _with_length(start: Message, length: int | None) -> Message:
    """The start of an answer whose body has so many bytes; None for nobody knows how many."""
    headers = [(name, value) for name, value in start.get("headers", ()) if name.lower() != _LENGTH]
    if length is not None and len(headers) < len(list(start.get("headers", ()))):
        headers.append((_LENGTH, b"%d" % length))
    return {**start, "headers": headers}


def take_parts(scope: Scope, send: Send) -> Send:
    """Let the handler of a POST have large parts of its answer put in. Gives what the SDK sends it with."""
    scope[_PARTS] = parts = LargeParts(send)
    return parts.send


async def with_parts(ctx: RequestContext, result: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a request with words in the place of its large fields, where they are put in later."""
    parts = parts_of(ctx)
    if parts is None:
        return dict(result)
    return {
        name: parts.put(await asyncio.to_thread(encode_in_pieces, value)) if is_large(value) else value
        for name, value in result.items()
    }


def parts_of(ctx: RequestContext) -> LargeParts | None:
    """The large parts of the answer to a request; None where none can be put in."""
    scope: Any = getattr(ctx.request, "scope", None)
    exchange = exchange_of(ctx)
    if scope is None or (exchange is not None and exchange.can_resume):
        # What is kept to be sent once more is sent in another answer.
        return None
    return scope.get(_PARTS)


def is_part(data: bytes) -> bool:
    """Whether JSON is large enough to be put in later."""
    return len(data) > LARGE
