"""The body of a request, read so that whoever is handed the request can read it again."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Message, Receive

LARGEST = 256 * 1024
"""Bytes. What is larger takes long to parse wherever that is done, so nothing would be gained here."""


class Body:
    """What was read of a request.

    Attributes:
        data: All of it; None if it is too large, or was cut off.
    """

    __slots__ = ("_messages", "_receive", "data")

    def __init__(self, data: bytes | None, messages: Sequence[Message], receive: Receive) -> None:
        self.data = data
        self._messages = list(messages)
        self._receive = receive

    async def replay(self) -> Message:
        """What the server gave, message by message, and then whatever else it gives."""
        return self._messages.pop(0) if self._messages else await self._receive()


async def read_body(receive: Receive, largest: int = LARGEST) -> Body:
    """Read a body, up to what is too large."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        # In one piece, as a small body comes.
        data: bytes = message.get("body", b"")
        return Body(data if len(data) <= largest else None, (message,), receive)
    messages, size = [message], len(message.get("body", b""))
    while message["type"] == "http.request" and message.get("more_body", False) and size <= largest:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
    is_whole = message["type"] == "http.request" and size <= largest
    return Body(b"".join(each.get("body", b"") for each in messages) if is_whole else None, messages, receive)
