"""Listeners on the short way: the streams of `subscriptions/listen` for tasks alone.

There may be thousands, and nearly all of them are quiet at any moment. So a quiet one has no timer, no queue and no
task but those that it cannot do without: the server's own, and one that waits for its client to leave. A change makes
a task that tells of it and is gone; what a listener has not read yet is at most one hint per task of its own. One clock
keeps all connections alive, and one watch ends all streams when the server is told to stop.
"""

from __future__ import annotations

import asyncio
import codecs
import json
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from itertools import islice
from typing import Final

from mcp.server.runner import modern_error_data
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from starlette.types import Receive, Send

from mcp_tasks.errors import LimitExceeded
from mcp_tasks.model.json import LARGE, encode_json
from mcp_tasks.protocol.listen import Listening
from mcp_tasks.protocol.shapes import Message
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.server.fast_path.requests import Counts, HandedOver, Handover

# ---- sse
# JSON-RPC messages as server-sent events, written as the SDK writes them: in ASCII.


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


logger: Final = get_logger(__name__)

MOST_LISTENERS: Final = 10_000
"""Streams at a time, unless the author says otherwise: some 170 MB of memory."""

KEEP_ALIVE: Final = 15.0
"""Seconds of silence after which a stream is given a comment, as the SDK does: proxies close what is silent."""

AT_A_TIME: Final = 50
"""Listeners that begin to be told before everybody else has a turn: of one change there may be thousands."""

A_MOMENT: Final = 0.005
"""Seconds."""

TOGETHER: Final = 16 * 1024
"""Bytes from which on no more states are sent in one piece."""

_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


class Listeners:
    """The listeners of one server.

    Args:
        stopping: Returns once the process is told to stop; streams end then.
        counts: Where to say how many there are.
        most: How many there may be.
        keep_alive: Seconds of silence after which a stream is given a sign of life.
    """

    def __init__(
        self,
        stopping: Callable[[], Awaitable[object]],
        counts: Counts,
        most: int = MOST_LISTENERS,
        *,
        keep_alive: float = KEEP_ALIVE,
    ) -> None:
        self._stopping = stopping
        self._counts = counts
        self._most = most
        self._keep_alive = keep_alive
        # By when each was last sent something: the longest silent first.
        self._spoken: OrderedDict[Listener, float] = OrderedDict()
        self._woken: deque[Listener] = deque()
        self._clock: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None

    def require_room(self) -> None:
        """See that there may be one more.

        Raises:
            HandedOver: There are as many as may be.
        """
        if len(self._spoken) >= self._most:
            raise HandedOver(Handover.LISTENERS)

    async def open(self, listening: Listening, request_id: str | int, send: Send) -> Listener:
        """A stream that is acknowledged. What happens from now on is told; see it to its end with `stay`.

        Raises:
            HandedOver: There are as many as may be. Nothing has been sent.
        """
        self.require_room()
        listener = Listener(self, listening, request_id, send)
        self.spoke(listener)
        self._counts.listeners += 1
        self._attend()
        try:
            await listener.begin()
        except BaseException:
            listener.close()
            raise
        return listener

    def _attend(self) -> None:
        """See to it that streams are kept alive, and end with the server."""
        loop = asyncio.get_running_loop()
        # In a context of their own: they outlast the request that happens to be the first.
        if self._clock is None:
            self._clock = loop.call_later(self._keep_alive, self._tick, context=Context())
        if self._watch is None or self._watch.done():
            self._watch = loop.create_task(self._end_with_server(), context=Context())

    # What listeners call

    def wake(self, listener: Listener) -> None:
        """Have a listener told what there is to tell, soon."""
        self._woken.append(listener)
        if len(self._woken) == 1:
            asyncio.get_running_loop().call_soon(self._tell_some)

    def spoke(self, listener: Listener) -> None:
        """Take note that a listener was sent something."""
        self._spoken[listener] = asyncio.get_running_loop().time()
        self._spoken.move_to_end(listener)

    def left(self, listener: Listener) -> None:
        """Forget a listener."""
        del self._spoken[listener]
        self._counts.listeners -= 1
        if self._spoken:
            return
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _tell_some(self) -> None:
        for _ in range(min(AT_A_TIME, len(self._woken))):
            self._woken.popleft().tell()
        if self._woken:
            asyncio.get_running_loop().call_soon(self._tell_some)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        silent_since = loop.time() - self._keep_alive
        for listener, spoken in list(islice(self._spoken.items(), AT_A_TIME)):
            if spoken > silent_since:
                break
            self.spoke(listener)
            listener.ping()
        longest = next(iter(self._spoken.values()))
        # A moment later at the least: there may be thousands that are due, and others who want a turn.
        self._clock = loop.call_later(max(longest - silent_since, A_MOMENT), self._tick)

    async def _end_with_server(self) -> None:
        await self._stopping()
        for listener in list(self._spoken):
            listener.end()


class Listener:
    """One stream. Made by `Listeners.open`."""

    __slots__ = (
        "_context",
        "_has_ended",
        "_id",
        "_is_due",
        "_is_ending",
        "_is_over",
        "_is_telling",
        "_listeners",
        "_listening",
        "_over",
        "_send",
        "_teller",
        "_when_over",
    )

    def __init__(self, listeners: Listeners, listening: Listening, request_id: str | int, send: Send) -> None:
        self._listeners = listeners
        self._id = request_id
        self._send = send
        # For who waits for the end. It is cancelled with them, so it does not say whether that has come.
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # As the request has it, for whatever the author has put around `send`.
        self._context = copy_context()
        self._teller: asyncio.Task[None] | None = None
        # From the start, until it has been acknowledged.
        self._is_telling = True
        self._is_due = self._is_ending = self._has_ended = self._is_over = False
        self._when_over: Callable[[], None] | None = None
        self._listening = listening
        listening.start(self.end, self._wake)

    async def begin(self) -> None:
        """Acknowledge, and tell how the tasks are now."""
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        params = {"_meta": self._meta(), "notifications": {"taskIds": list(self._listening.task_ids)}}
        await self._tell(notification(_ACKNOWLEDGED, encode_json(params)))

    async def stay(self, receive: Receive) -> None:
        """Return when the stream is over: the client has left, or the server was told to stop."""
        watch = asyncio.create_task(self._close_with_client(receive))
        try:
            await self._over
        finally:
            watch.cancel()
            self.close()

    def when_over(self, call: Callable[[], None]) -> None:
        """Have this called when the stream is over, however it ends."""
        if self._is_over:
            call()
        else:
            self._when_over = call

    def close(self) -> None:
        """Tell nothing more."""
        if self._is_over:
            return
        self._is_over = True
        if not self._over.done():
            self._over.set_result(None)
        self._listening.close()
        self._listeners.left(self)
        if self._teller is not None:
            self._teller.cancel()
        if self._when_over is not None:
            self._when_over()

    # What the listeners have one do

    def ping(self) -> None:
        """Give a sign of life, unless something else is being said."""
        self._is_due = True
        self._wake()

    def end(self) -> None:
        """End the stream gracefully."""
        self._is_ending = True
        self._wake()

    def tell(self) -> None:
        """Tell what there is to tell."""
        if not self._is_over:
            self._teller = asyncio.get_running_loop().create_task(self._tell(), context=self._context)

    def _wake(self) -> None:
        # One task at a time tells, and looks again before it is done.
        if not self._is_telling:
            self._is_telling = True
            self._listeners.wake(self)

    async def _close_with_client(self, receive: Receive) -> None:
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        except Exception:
            logger.debug("a listen stream ends: its server does not tell of its client", exc_info=quietly())
        self.close()

    async def _tell(self, said: bytes = b"") -> None:
        try:
            while body := said + await self._to_be_said(TOGETHER - len(said)):
                said = b""
                # It waits here for a reader that is slow. What happens meanwhile waits as hints.
                await self._write(body)
        except OSError:
            # A server may say so that the client has left.
            self._has_ended = True
        except Exception as exc:
            logger.error("a listen stream ends with an error", exc_info=quietly())
            self._has_ended = True
            error = modern_error_data(exc).model_dump(mode="json", by_alias=True, exclude_none=True)
            with suppress(Exception):
                await self._write(event(encode_json({"jsonrpc": "2.0", "id": self._id, "error": error})))
        self._is_telling = False
        self._teller = None
        if self._has_ended:
            self.close()

    async def _to_be_said(self, room: int) -> bytes:
        """What there is to say now, up to about so many bytes; nothing if there is nothing, or nothing any more."""
        frames: list[bytes] = []
        try:
            while not self._is_ending and room > 0 and (state := await self._listening.next()) is not None:
                frames.append(await self._state(state))
                room -= len(frames[-1])
        except LimitExceeded as exc:
            logger.info("a listen stream ends: %s", exc)
            self._is_ending = True
        if frames or self._has_ended:
            return b"".join(frames)
        if self._is_ending:
            return self._last_words()
        is_due, self._is_due = self._is_due, False
        return PING if is_due else b""

    def _last_words(self) -> bytes:
        self._has_ended = True
        result = {"resultType": "complete", "_meta": self._meta()}
        return event(encode_json({"jsonrpc": "2.0", "id": self._id, "result": result}))

    async def _state(self, state: Message) -> bytes:
        meta = {**state.fields.get("_meta", {}), **self._meta()}
        params = Message(fields={**state.fields, "_meta": meta}, large=state.large).encode()
        if state.large is not None:
            # Between the tokens of what is stored there may be line breaks, which would end the event.
            params = params.replace(b"\r", b" ").replace(b"\n", b" ")
        return notification("notifications/tasks", await escaped(params))

    def _meta(self) -> dict[str, str | int]:
        return {SUBSCRIPTION_ID_META_KEY: self._id}

    async def _write(self, body: bytes) -> None:
        self._is_due = False
        await self._send({"type": "http.response.body", "body": body, "more_body": not self._has_ended})
        if not self._is_over:
            self._listeners.spoke(self)
