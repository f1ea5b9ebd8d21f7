"""What the tool of a task sends to its client beside progress and questions: log entries, changes of lists, and more.

In a plain call these go out while the call is open. In a task they go to the sessions that have it: what a plain call
would send on its own stream on an open `tasks/result`, else on the session's own stream, and the rest on the latter.
They are kept back until the client knows the task, and while it has no stream open that could carry them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final

import anyio

from mcp_tasks.core.json_bytes import rough_size
from mcp_tasks.legacy.server.audience import Audience, Holder
from mcp_tasks.legacy.server.carriers import Carrier
from mcp_tasks.legacy.shapes import related_task
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.tools.client_stream import StreamLost
from mcp_tasks.tools.open_calls import PATIENCE, OpenCalls

logger: Final = get_logger(__name__)

MAX_KEPT: Final = 100
"""Notifications of one task that wait to be sent to one session."""

MAX_KEPT_BYTES: Final = 256 * 1024
"""About how large they may be together."""

_OF_THE_SERVER: Final = ("/list_changed", "resources/updated")
"""How the methods end that are not about the task, whoever sends them."""


@dataclass(eq=False, frozen=True, slots=True)
class _Notice:
    method: str
    params: dict[str, Any] | None
    related: bool
    size: int


class Notices:
    """What one task sends to one session."""

    def __init__(self, task_id: str, holder: Holder, audience: Audience, calls: OpenCalls) -> None:
        self._task_id = task_id
        self._holder = holder
        self._audience = audience
        self._calls = calls
        self._kept: deque[_Notice] = deque()
        self._size = 0
        self._lost = 0
        self._is_known = False
        self._sending: asyncio.Task[None] | None = None
        self._sent = asyncio.Event()
        calls.listen(task_id, self)

    async def take(self, method: str, params: Mapping[str, Any] | None, *, related: bool) -> None:
        """Send it, now or as soon as that can be done. Waits for a client that is slow, though not for long."""
        with anyio.move_on_after(PATIENCE):
            while self._is_full and self._is_sending:
                self._sent.clear()
                await self._sent.wait()
        own = None if params is None else dict(params)
        self._keep(_Notice(method, own, related, rough_size(own)))
        self.send()

    async def ping(self, timeout: float | None) -> bool:
        """Ping the client, if it has a stream open."""
        carrier = next(self._open_carriers(related=True), None)
        if carrier is None:
            return False
        try:
            await carrier.request("ping", {"_meta": related_task(self._task_id)}, timeout)
        except StreamLost:
            return False
        return True

    def known(self) -> None:
        """The client knows the task from now on."""
        self._is_known = True
        self.send()

    def send(self) -> None:
        """Send what is kept, if there is a stream for it."""
        if self._is_known and self._sending is None and self._next() is not None:
            # Not in the context of the tool: the SDK hands a sender's context on, and what starts in it is the tool's.
            self._sending = asyncio.get_running_loop().create_task(self._send(), context=Context())
            self._sending.add_done_callback(self._done)

    async def flush(self) -> None:
        """Return when what can be sent has been, or the client is too slow."""
        self.known()
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=PATIENCE)

    def close(self) -> None:
        """The task has ended, or its session has. What is on its way is still sent."""
        self._calls.ignore(self._task_id, self)
        if self._sending is None:
            self._report()

    @property
    def _is_sending(self) -> bool:
        return self._sending is not None

    @property
    def _is_full(self) -> bool:
        return len(self._kept) >= MAX_KEPT or self._size >= MAX_KEPT_BYTES

    def _keep(self, notice: _Notice) -> None:
        self._kept.append(notice)
        self._size += notice.size
        while len(self._kept) > MAX_KEPT or (self._size > MAX_KEPT_BYTES and len(self._kept) > 1):
            self._size -= self._kept.popleft().size
            self._lost += 1

    def _open_carriers(self, *, related: bool) -> Iterator[Carrier]:
        results = self._audience.results_of(self._holder, self._task_id) if related else ()
        for carrier in (*(result.carrier for result in results), self._holder.own):
            if carrier is not None and carrier.is_open:
                yield carrier

    def _next(self) -> tuple[_Notice, Carrier] | None:
        """The first that there is a stream for."""
        for notice in self._kept:
            for carrier in self._open_carriers(related=notice.related):
                return notice, carrier
        return None

    async def _send(self) -> None:
        while (found := self._next()) is not None:
            notice, carrier = found
            self._kept.remove(notice)
            self._size -= notice.size
            try:
                async with asyncio.timeout(PATIENCE):
                    await carrier.tell(notice.method, self._params(notice))
            except Exception as exc:
                # The client does not read, or its stream has gone: it is not tried again for each of them.
                logger.debug("%s of task %s… was not sent: %s", notice.method, self._task_id[:12], what(exc))
                self._lost += 1 + len(self._kept)
                self._kept.clear()
                self._size = 0
            self._sent.set()

    def _params(self, notice: _Notice) -> dict[str, Any] | None:
        if notice.method.endswith(_OF_THE_SERVER):
            return notice.params
        params = notice.params or {}
        return {**params, "_meta": {**(params.get("_meta") or {}), **related_task(self._task_id)}}

    def _done(self, _: asyncio.Task[None]) -> None:
        self._sending = None
        self._sent.set()
        if not self._calls.hears(self._task_id, self):
            self._report()
        else:
            # Something may have come after its last look.
            self.send()

    def _report(self) -> None:
        """Say once what a client that had no stream open, or did not read, has missed."""
        lost, self._lost = self._lost + len(self._kept), 0
        self._kept.clear()
        if lost:
            logger.info(
                "task %s…: its client missed %d notifications of its tool, as it had no stream open or did not read",
                *(self._task_id[:12], lost),
            )
