"""Calls that are still open while a task does their work: what its tool sends to its client reaches them.

A caller that speaks no tasks waits on its call, and is to see what it would see of a plain call: progress and logs. The
run is not part of the call and may outlive it, so nothing that becomes of the call is felt by the tool: what it sends
to one that is closed is dropped, and one that takes nothing holds it up once, and not for long.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeAlias

from mcp_tasks.quiet import get_logger, what

logger: Final = get_logger(__name__)

PATIENCE: Final = 2.0
"""Seconds that a client has to take what is sent to it. One that reads needs milliseconds."""


CloseStream: TypeAlias = Callable[[], Awaitable[None]]


class OpenCall(Protocol):
    """A call that has not been answered yet."""

    @property
    def name(self) -> str | None:
        """What is called: the tool of the task, or one that waits for it."""
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """The `_meta` of the request as the SDK has it, with the progress token."""
        ...

    @property
    def request(self) -> Any:
        """The transport's request, with its headers; None where there is none."""
        ...

    @property
    def user(self) -> Any:
        """Who was authenticated for the request, as the SDK's `auth_context_var` has it."""
        ...

    @property
    def close_stream(self) -> CloseStream | None:
        """Ends the call's stream, for its client to come back on another; None where it could not."""
        ...

    @property
    def close_connection_stream(self) -> CloseStream | None:
        """The same for the stream of its connection."""
        ...

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress on the call, if its caller asked for any."""
        ...

    async def notify(self, method: str, params: Mapping[str, Any] | None, *, related: bool = True) -> None:
        """Send a notification on the call's own stream, or with `related=False` on that of its connection."""
        ...

    async def ping(self, timeout: float | None) -> bool:
        """Ping the client, and wait for its answer; whether it could be asked.

        Raises:
            MCPError: It answered with this error, or not in time.
        """
        ...


class Listener(Protocol):
    """A client that hears the tool of a task while no call is open for it."""

    async def take(self, method: str, params: Mapping[str, Any] | None, *, related: bool) -> None:
        """Take a notification: one that a plain call would send on its own stream, if it is `related`, or on its
        connection's."""
        ...

    async def ping(self, timeout: float | None) -> bool:
        """As for an open call."""
        ...


_Send: TypeAlias = Callable[[OpenCall], Coroutine[Any, Any, None]]


class OpenCalls:
    """The open calls of this process, by the task that does their work.

    Args:
        patience: Seconds for which a tool waits until a call has taken what it sends.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._lines: dict[str, list[_Line]] = {}
        self._listeners: dict[str, list[Listener]] = {}

    @contextmanager
    def open(self, task_id: str, call: OpenCall) -> Generator[None]:
        """Have the call reached by what the task's tool sends, until the block ends. To be entered by the call itself:
        what is sent is sent in its context. Entered again inside such a block, it changes nothing."""
        if any(line.call is call for line in self._lines.get(task_id, ())):
            yield
            return
        line = _Line(call, self._patience)
        self._lines.setdefault(task_id, []).append(line)
        try:
            yield
        finally:
            self._close(task_id, line)

    def of(self, task_id: str) -> Sequence[OpenCall]:
        """The open calls of a task, the one that was opened first in front."""
        return [line.call for line in self._lines.get(task_id, ())]

    def listen(self, task_id: str, listener: Listener) -> None:
        """Have a listener hear what the task's tool sends while no call is open for it, until `ignore`."""
        self._listeners.setdefault(task_id, []).append(listener)

    def hears(self, task_id: str, listener: Listener) -> bool:
        """Whether it does."""
        return listener in self._listeners.get(task_id, ())

    def ignore(self, task_id: str, listener: Listener) -> None:
        """Let a listener hear no more. Does nothing if it does not."""
        listeners = self._listeners.get(task_id, [])
        if listener in listeners:
            listeners.remove(listener)
            if not listeners:
                del self._listeners[task_id]

    def reaches(self, task_id: str) -> bool:
        """Whether a notification of the task's tool reaches anybody."""
        return task_id in self._lines or task_id in self._listeners

    async def progress(self, task_id: str, progress: float, total: float | None, message: str | None) -> None:
        """Send progress on the task's open calls."""
        await self._send(task_id, lambda call: call.progress(progress, total, message))

    async def notify(
        self, task_id: str, method: str, params: Mapping[str, Any] | None, *, related: bool = True
    ) -> None:
        """Send a notification on the task's open calls, or to those who listen if there are none."""
        if task_id not in self._lines:
            for listener in list(self._listeners.get(task_id, ())):
                await listener.take(method, params, related=related)
            return
        await self._send(task_id, lambda call: call.notify(method, params, related=related))

    async def ping(self, task_id: str, timeout: float | None) -> bool:
        """Ping the client of the task, and wait for its answer; False if there is none that could be asked.

        Raises:
            MCPError: It answered with this error, or not in time.
        """
        for peer in (*self.of(task_id), *self._listeners.get(task_id, ())):
            if await peer.ping(timeout):
                return True
        return False

    def _close(self, task_id: str, line: _Line) -> None:
        lines = self._lines[task_id]
        lines.remove(line)
        if not lines:
            del self._lines[task_id]
        line.close()

    async def _send(self, task_id: str, send: _Send) -> None:
        sent = [line.send(send) for line in self._lines.get(task_id, ()) if line.takes]
        if sent:
            await asyncio.wait(sent, timeout=self._patience)


class _Line:
    """The way to one call."""

    def __init__(self, call: OpenCall, patience: float) -> None:
        self.call = call
        self._patience = patience
        # The tool's own context must not travel: the SDK hands a sender's context on to the receiver, and asyncio tasks
        # that are started in it would count as the tool's.
        self._context = contextvars.copy_context()
        self._sending: dict[asyncio.Task[None], float] = {}

    @property
    def takes(self) -> bool:
        """Whether the call takes anything: not while it keeps something for too long that was sent before."""
        oldest = next(iter(self._sending.values()), None)
        return oldest is None or asyncio.get_running_loop().time() - oldest < self._patience

    def send(self, send: _Send) -> asyncio.Task[None]:
        """Begin to send something."""
        loop = asyncio.get_running_loop()
        sending = loop.create_task(self._sent(send), context=self._context)
        self._sending[sending] = loop.time()
        sending.add_done_callback(self._sending.pop)
        return sending

    def close(self) -> None:
        """Give up what is still being sent."""
        for sending in self._sending:
            sending.cancel()

    async def _sent(self, send: _Send) -> None:
        try:
            await send(self.call)
        except Exception as exc:
            # The client's doing or the transport's, and in a plain call often the end of the tool.
            logger.debug("not sent on an open call: %s", what(exc))
