"""A line for each request on a connection: its method, what it is about, how long it took and what came of it.

Logged by `mcp_tasks.client.requests` as DEBUG, beside the wire, so that nothing is missing: neither what the SDK's
session asks, nor what is asked past it. Of what is sent and answered there are only names of tools, ids and statuses in
it, and the words of errors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextvars import Context
from typing import Any, Final, cast

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, RequestId

from mcp_tasks.quiet import get_logger, short_id

logger: Final = get_logger("mcp_tasks.client.requests")

_LONGEST: Final = 120
_MOST: Final = 1_000
"""Requests without an answer that are remembered."""


def with_request_log(read: Any, write: Any) -> tuple[Any, Any]:
    """The streams of a transport, with a log of what goes over them if anybody listens to it."""
    if not logger.isEnabledFor(logging.DEBUG):
        return read, write
    log = _RequestLog()
    return _Reading(read, log), _Writing(write, log)


class _RequestLog:
    """The requests of one connection that wait for their answers, by the side that asked."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, RequestId], tuple[str, float]] = {}

    def saw(self, item: Any, arrow: str, back: str) -> None:
        """A message passes; the arrows say in which direction, and where its answer comes from."""
        message: JSONRPCMessage | None = item.message if isinstance(item, SessionMessage) else None
        match message:
            case JSONRPCRequest():
                if len(self._open) < _MOST:
                    self._open[arrow, message.id] = _about(message), time.monotonic()
            case JSONRPCNotification():
                logger.debug("%s %s", arrow, _about(message))
            case JSONRPCResponse():
                self._answered(back, message.id, arrow, _result(message.result))
            case JSONRPCError(id=request_id) if request_id is not None:
                self._answered(back, request_id, arrow, f"error {message.error.code}: {message.error.message}")
            case _:
                pass

    def end(self) -> None:
        """Nothing more comes."""
        for (arrow, _), (what, since) in self._open.items():
            # That of a stream comes when it ends, and we are the ones who end it.
            how = "open for" if what.startswith("subscriptions/listen") else "no answer in"
            logger.debug("%s %s   %s %s", arrow, what, how, _took(since))
        self._open.clear()

    def _answered(self, asked: str, request_id: RequestId, arrow: str, outcome: str) -> None:
        what, since = self._open.pop((asked, request_id), ("an unknown request", time.monotonic()))
        logger.debug("%s %s   %s %s  %s", asked, what, arrow, _cut(outcome), _took(since))


def _about(message: JSONRPCRequest | JSONRPCNotification) -> str:
    params: dict[str, Any] = message.params or {}
    if message.method == "tools/call":
        return f"{message.method} {_cut(str(params.get('name', '')))}"
    return f"{message.method} {_task(params)}".rstrip()


def _task(fields: dict[str, Any]) -> str:
    """A task, by the beginning of its id and by its status, where there is one."""
    inner = fields.get("task")
    held = cast("dict[str, Any]", inner) if isinstance(inner, dict) else fields
    task_id, status = held.get("taskId"), held.get("status")
    if not isinstance(task_id, str):
        return ""
    return f"{short_id(task_id)} {_cut(status)}" if isinstance(status, str) else short_id(task_id)


def _result(result: dict[str, Any]) -> str:
    task = _task(result)
    if result.get("resultType") == "task" or "task" in result:
        return f"task {task}"
    if result.get("isError"):
        return "a result that is an error"
    return str(result["status"]) if task and "status" in result else "ok"


def _took(since: float) -> str:
    seconds = time.monotonic() - since
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


class _Writing:
    """What is sent."""

    def __init__(self, inner: Any, log: _RequestLog) -> None:
        self._inner = inner
        self._log = log

    async def send(self, item: Any, /) -> None:
        self._log.saw(item, "→", "←")
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Reading:
    """What comes."""

    def __init__(self, inner: Any, log: _RequestLog) -> None:
        self._inner = inner
        self._log = log

    @property
    def last_context(self) -> Context | None:
        """Whose context the last message was sent in."""
        return getattr(self._inner, "last_context", None)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self._inner:
            self._log.saw(item, "←", "→")
            yield item
        self._log.end()

    async def aclose(self) -> None:
        self._log.end()
        await self._inner.aclose()
