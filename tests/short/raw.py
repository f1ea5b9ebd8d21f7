"""One request to an ASGI app in this process, byte by byte, and whatever comes back.

No socket is between: no HTTP server puts right what a test has put wrong.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from starlette.types import ASGIApp, Message

RawHeaders = Sequence[tuple[bytes, bytes]]

PATIENCE = 30.0
"""Seconds that one answer may take. Nothing here takes long; a test that hangs should say where."""

LOOK = 0.02
"""Seconds between looks at a stream on which everything may have been said."""

QUIET = 3.0
"""Seconds without anything new on a stream of which more is expected: then nothing comes any more."""

_ANY = {b"content-length", b"date"}
"""Headers that follow from the rest."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A request as it arrives.

    Attributes:
        cuts: Where the body is cut into pieces.
        is_cut_off: Whether the client leaves before the last of them.
    """

    headers: RawHeaders
    body: bytes
    verb: str = "POST"
    cuts: Sequence[int] = ()
    is_cut_off: bool = False

    def messages(self) -> list[Message]:
        edges = [0, *sorted(cut % (len(self.body) + 1) for cut in self.cuts), len(self.body)]
        pieces = [self.body[start:end] for start, end in pairwise(edges)]
        messages: list[Message] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        if self.is_cut_off:
            return [*messages[:-1], {"type": "http.disconnect"}]
        messages[-1]["more_body"] = False
        return messages


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back."""

    status: int | None
    headers: RawHeaders = field(default=())
    body: bytes = b""
    raised: str | None = None

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def is_stream(self) -> bool:
        return (self.header(b"content-type") or b"").startswith(b"text/event-stream")

    def told(self) -> object:
        """All of it that a client can see, in a form that is equal for equal answers, and for no others."""
        if self.is_stream:
            content: object = [_event(event) for event in self.body.split(b"\r\n\r\n") if event]
        elif (self.header(b"content-type") or b"").startswith(b"application/json"):
            content = exactly(self.body)
        else:
            content = self.body
        length = self.header(b"content-length")
        is_consistent = length is None or int(length) == len(self.body)
        headers = sorted((name, value) for name, value in self.headers if name not in _ANY)
        return self.status, headers, length is not None, is_consistent, content, self.raised

    @property
    def message(self) -> dict[str, Any]:
        return json.loads(self.body)


def exactly(data: bytes) -> str:
    """JSON in the one form in which equal values are equal texts: 1 is not 1.0, and not true either.

    Raises:
        ValueError: It is not JSON, or two members of an object have one name, which readers would disagree about.
    """
    return json.dumps(json.loads(data, object_pairs_hook=_object), sort_keys=True)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError(f"a name comes twice in an object: {[name for name, _ in pairs]}")
    return members


def _event(event: bytes) -> object:
    lines = event.split(b"\r\n")
    return [
        (name, exactly(value.strip()) if name == b"data" else value)
        for name, _, value in (line.partition(b":") for line in lines)
    ]


class _Client:
    def __init__(self, sent: Sent) -> None:
        self._messages = sent.messages()
        self.answered: list[Message] = []
        self.gone = asyncio.Event()

    async def receive(self) -> Message:
        if self._messages:
            return self._messages.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.answered.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.answered[1:])

    @property
    def expects(self) -> int:
        """How many events there are to come on a stream: its first one says which tasks are told of, each at once."""
        events = self.body.split(b"\r\n\r\n")[:-1]
        if not events:
            return 1
        first = json.loads(events[0].partition(b"data: ")[2] or b"{}")
        told: dict[str, Any] = first.get("params", {}).get("notifications", {})
        return 1 + len(told.get("taskIds", ())) - len(events)

    @property
    def is_streaming(self) -> bool:
        return bool(self.answered) and (b"content-type", b"text/event-stream") in self.answered[0].get("headers", ())


async def exchange(app: ASGIApp, sent: Sent, *, quiet: float = QUIET) -> Answer:
    """Send a request and give the answer; a stream is left once nothing comes any more, for `quiet` seconds."""
    client = _Client(sent)
    running = asyncio.ensure_future(app(_scope(sent), client.receive, client.send))
    seen, waited, still = -1, 0.0, 0.0
    while not (await asyncio.wait({running}, timeout=LOOK))[0]:
        waited += LOOK
        still = still + LOOK if seen == len(client.answered) else 0.0
        seen = len(client.answered)
        if client.is_streaming and still and (client.expects <= 0 or still > quiet):
            client.gone.set()
        assert waited < PATIENCE, f"no answer to {sent}"
    error = running.exception()
    start: Message = client.answered[0] if client.answered else {}
    return Answer(
        status=start.get("status"),
        headers=list(start.get("headers", ())),
        body=client.body,
        raised=None if error is None else type(error).__name__,
    )


def _scope(sent: Sent) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": sent.verb,
        "scheme": "http",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "root_path": "",
        "headers": list(sent.headers),
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
