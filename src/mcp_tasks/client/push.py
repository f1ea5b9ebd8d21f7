"""Notifications instead of polls, where a server sends them.

Whoever waits for a task joins the hub of its session with a mailbox. The hub keeps streams: tasks that are joined
at the same moment share one, and a new stream takes over the tasks of those that are no bigger than itself. So there
are few of them however many tasks there are, and a task is moved only a few times.

A stream proves itself by its first notification (servers of ours send the state right after the acknowledgement, which
the SDK does not show us); until then, and when it ends, the wait polls as if there were none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final
from weakref import ref

import anyio
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_tasks.client.mailbox import Mailbox
from mcp_tasks.client.requests import TRANSIENT_CODES, listen_to_tasks, retry_after
from mcp_tasks.core.pacing import backoff
from mcp_tasks.errors import InvalidResponse
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.wire.parse import parse_task

logger: Final = get_logger(__name__)

GATHER = 0.02
"""Seconds a stream waits for more tasks to share it; far below any poll interval."""

MAX_IDS_PER_STREAM = 100
"""What servers of ours take, unless their author says otherwise."""

CLOSING = 1.0
"""Seconds to wait at most for a stream to close."""


class PushHub:
    """The listen streams of one session."""

    def __init__(self, session: ClientSession) -> None:
        # Weakly: whoever keeps hubs by their sessions must not keep the sessions alive by that.
        self._session = ref(session)
        self._offered = session.protocol_version in MODERN_PROTOCOL_VERSIONS
        self._boxes: dict[str, set[Mailbox]] = {}
        self._unheard: set[str] = set()
        self._streams: dict[asyncio.Task[None], frozenset[str]] = {}
        self._opener: asyncio.Task[None] | None = None
        self._has_warned = False

    @asynccontextmanager
    async def join(self, task_id: str, box: Mailbox) -> AsyncGenerator[None]:
        """Put the states of a task into a mailbox, for as long as this is entered."""
        boxes = self._boxes.setdefault(task_id, set())
        boxes.add(box)
        if self._offered and len(boxes) == 1:
            self._unheard.add(task_id)
            if self._opener is None or self._opener.done():
                self._opener = asyncio.create_task(self._open_streams())
        try:
            yield
        finally:
            boxes.discard(box)
            if not boxes:
                del self._boxes[task_id]
                self._unheard.discard(task_id)
                await self._close_idle_streams()

    def awaits(self, params: Mapping[str, Any]) -> bool:
        """Whether somebody waits for the task of a notification."""
        return str(params.get("taskId")) in self._boxes

    def deliver(self, params: Mapping[str, Any]) -> None:
        """Hand a notification to whoever waits for its task."""
        boxes = self._boxes.get(str(params.get("taskId")))
        if not boxes:
            return
        try:
            snapshot = parse_task(params)
        except InvalidResponse as exc:
            # Once at that level: a server may send as many as it likes.
            logger.log(
                logging.DEBUG if self._has_warned else logging.WARNING, "ignored a notification: %s", type(exc).__name__
            )
            self._has_warned = True
            return
        for box in boxes:
            box.put(snapshot)

    def hint(self, params: Mapping[str, Any]) -> None:
        """A notification that may be of another server: no more than a reason to look at the task here."""
        for box in self._boxes.get(str(params.get("taskId")), ()):
            box.hint()

    async def _open_streams(self) -> None:
        while self._unheard and self._offered:
            await anyio.sleep(GATHER)
            new = sorted(self._unheard)[:MAX_IDS_PER_STREAM]
            if new:
                self._unheard.difference_update(new)
                self._open(self._with_smaller_streams(set(new)))

    def _with_smaller_streams(self, ids: set[str]) -> frozenset[str]:
        """These tasks, and those of streams that the new one takes over."""
        for stream, of_stream in sorted(self._streams.items(), key=lambda item: len(item[1])):
            wanted = {task_id for task_id in of_stream if task_id in self._boxes}
            if len(wanted) <= len(ids) and len(wanted) + len(ids) <= MAX_IDS_PER_STREAM:
                ids |= wanted
                stream.cancel()
        return frozenset(ids)

    def _open(self, ids: frozenset[str]) -> None:
        session = self._session()
        if session is not None:
            stream = asyncio.create_task(self._keep_stream(session, ids))
            self._streams[stream] = ids
            stream.add_done_callback(self._streams.pop)

    async def _keep_stream(self, session: ClientSession, ids: Iterable[str]) -> None:
        failures = 0
        while wanted := [task_id for task_id in ids if task_id in self._boxes]:
            lasted = await self._stream_once(session, wanted)
            if not self._offered:
                return
            failures = 0 if lasted else failures + 1
            pause = backoff(failures, base=timedelta(milliseconds=500), limit=timedelta(seconds=30))
            await anyio.sleep(pause.total_seconds())

    async def _stream_once(self, session: ClientSession, ids: list[str]) -> bool:
        """One stream from its beginning to its end; whether anything came on it."""
        try:
            await listen_to_tasks(session, ids)
        except MCPError as exc:
            # As many streams as may be: there may be room for one later.
            if exc.code not in TRANSIENT_CODES and retry_after(exc) is None:
                # Not served, or not to us: this session polls.
                logger.debug("the server does not push: %s", what(exc))
                self._offered = False
        except Exception as exc:
            logger.debug("a listen stream ended: %s", what(exc))
        boxes = [box for task_id in ids for box in self._boxes.get(task_id, ())]
        lasted = any(box.live for box in boxes)
        for box in boxes:
            box.end()
        return lasted

    async def _close_idle_streams(self) -> None:
        idle = [s for s, ids in self._streams.items() if not any(task_id in self._boxes for task_id in ids)]
        for stream in idle:
            stream.cancel()
        if idle:
            # Until they are closed: an answer that arrives while a client leaves is an error of the SDK's transport.
            with anyio.CancelScope(shield=True):
                await asyncio.wait(idle, timeout=CLOSING)
