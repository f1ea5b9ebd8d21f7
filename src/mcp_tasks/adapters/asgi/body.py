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
        self.data: bytes | None = data
        self._messages = list(messages)
        self._receive = receive

    async def replay(self) -> Message:
        """What the server gave, and then whatever else it gives."""
        return self._messages.pop(0) if self._messages else await self._receive()


async def read_body(receive: Receive, largest: int = LARGEST) -> Body:
    """Read a body, up to what is too large."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        # In one piece, as a small body comes.
        data: bytes = message.get("body", b"")
        return Body(data if len(data) <= largest else None, (message,), receive)
    return await _read_pieces(message, receive, largest)


async def _read_pieces(message: Message, receive: Receive, largest: int) -> Body:
    """Read what comes in pieces. However small they are, what is kept of them is one message, as the SDK keeps it."""
    if message["type"] != "http.request":
        return Body(None, (message,), receive)
    read = bytearray(message.get("body", b""))
    while message.get("more_body", False) and len(read) <= largest:
        message = await receive()
        if message["type"] != "http.request":
            return Body(None, (_joined(bytes(read), more=True), message), receive)
        read += message.get("body", b"")
    data, more = bytes(read), message.get("more_body", False)
    return Body(data if len(data) <= largest else None, (_joined(data, more=more),), receive)


def _joined(data: bytes, *, more: bool) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}
