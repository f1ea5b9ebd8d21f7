"""`tasks/get` over Streamable HTTP: answered with plain JSON, although the SDK opens a stream for every request.

2025-11-25: servers SHOULD NOT upgrade to a stream in response to `tasks/get`, as the client has said that it wishes to
poll. So what the SDK sends is held back until the answer is there, and that is sent instead. Whatever does not look as
expected is sent on as it came.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

from starlette.types import Message, Receive, Scope, Send

from mcp_tasks.legacy.shapes import VERSION

_VERSION_HEADER: Final = (b"mcp-protocol-version", VERSION.encode())
_STREAM: Final = b"text/event-stream"
_LARGEST_POLL: Final = 4096
"""A request with an id of ours and some `_meta` is far smaller; a larger one is not looked at."""


class PollAnswer:
    """The answer to one POST, if that is a poll; any other passes through untouched."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_poll = False
        self._held: list[Message] | None = None
        self._is_sent = False

    async def receive(self) -> Message:
        """What comes from the client, looked at on its way."""
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            self._is_poll = self._is_poll or _is_poll(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        """What goes to the client."""
        if self._is_sent:
            # The end of the stream that was never opened.
            return
        if self._held is not None:
            self._held.append(message)
            await self._try_to_answer(self._held)
        elif self._is_poll and _opens_stream(message):
            self._held = [message]
        else:
            await self._send(message)

    async def _try_to_answer(self, held: list[Message]) -> None:
        found = _first_message(b"".join(message.get("body", b"") for message in held))
        if found is not None and _is_answer(found):
            self._is_sent = True
            start = held[0]
            headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-type"]
            length = str(len(found)).encode()
            headers += [(b"content-type", b"application/json"), (b"content-length", length)]
            await self._send({**start, "headers": headers})
            await self._send({"type": "http.response.body", "body": found})
        elif found is not None or not held[-1].get("more_body"):
            # Something else comes first, or nothing at all: then it is a stream after all.
            self._held, self._is_poll = None, False
            for message in held:
                await self._send(message)


def may_poll(scope: Scope) -> bool:
    """Whether a POST is of the version that polls with `tasks/get` and would have no stream for it."""
    return _VERSION_HEADER in scope["headers"]


def _is_poll(body: bytes) -> bool:
    if len(body) > _LARGEST_POLL or b"tasks/get" not in body:
        return False
    try:
        request: Any = json.loads(body)
    except (ValueError, RecursionError):
        # For the SDK to refuse.
        return False
    return isinstance(request, dict) and cast("dict[str, Any]", request).get("method") == "tasks/get"


def _opens_stream(message: Message) -> bool:
    return message["type"] == "http.response.start" and any(
        name.lower() == b"content-type" and value.startswith(_STREAM) for name, value in message["headers"]
    )


def _first_message(stream: bytes) -> bytes | None:
    """The data of the first event that has some, once it has come whole; None until then."""
    # The last line may not have come whole.
    for line in stream.replace(b"\r\n", b"\n").split(b"\n")[:-1]:
        if line.startswith(b"data:") and line[5:].strip():
            return line[5:].strip()
    return None


def _is_answer(data: bytes) -> bool:
    try:
        message: Any = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(message, dict) and ("result" in message or "error" in message)
