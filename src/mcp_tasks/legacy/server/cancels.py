"""The task of a question that is cancelled at the client: it stands in the notification, as 2025-11-25 has it.

The SDK sends `notifications/cancelled` by itself: a server can neither add to it nor choose the id of its request. So
over Streamable HTTP, what goes out to a session is looked at: which question has which id, and which is cancelled.
Over pipes nothing stands between the SDK and the client.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, cast

from starlette.types import Message, Send

from mcp_tasks.legacy.shapes import RELATED_TASK, related_task

MAX_ASKED: Final = 1_000
"""Questions of one session that are remembered. It is for a few to be open at a time."""

_CANCELLED: Final = b'"notifications/cancelled"'
_METHOD, _ID, _RELATED = b'"method"', b'"id"', RELATED_TASK.encode()
_HEAD: Final = 300
"""Bytes of an event in which its method stands, if it has one: a large result is not searched."""


class AskedTasks:
    """The tasks of the questions that were sent to one session, by the ids of the requests."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str | int, str] = OrderedDict()

    def look(self, event: bytes) -> bytes:
        """An event on its way out, with the task named where a question of one is cancelled."""
        head = event[:_HEAD]
        is_cancel = _CANCELLED in head
        is_request = _METHOD in head and _ID in head
        if not is_cancel and not (is_request and _RELATED in event):
            return event
        lines = event.split(b"\r\n")
        for number, line in enumerate(lines):
            if line.startswith(b"data:"):
                named = self._named(line[5:])
                if named is not None:
                    lines[number] = b"data: " + named
        return b"\r\n".join(lines)

    def _named(self, data: bytes) -> bytes | None:
        try:
            message: Any = json.loads(data)
        except (ValueError, RecursionError):
            return None
        params: Any = cast("dict[str, Any]", message).get("params") if isinstance(message, dict) else None
        if not isinstance(params, dict):
            return None
        meta: dict[str, Any] = cast("dict[str, Any]", params).get("_meta") or {}
        if "id" in message:
            if RELATED_TASK in meta:
                self._tasks[message["id"]] = meta[RELATED_TASK]["taskId"]
                if len(self._tasks) > MAX_ASKED:
                    self._tasks.popitem(last=False)
            return None
        task_id = self._tasks.get(cast("str | int", params.get("requestId")))
        if message.get("method") != "notifications/cancelled" or task_id is None:
            return None
        params["_meta"] = {**meta, **related_task(task_id)}
        return json.dumps(message, separators=(",", ":")).encode()


def naming_tasks(send: Send, find: Callable[[], AskedTasks | None]) -> Send:
    """Send what goes out to a session, with the tasks of cancelled questions in it.

    Args:
        find: The questions of the session, once it is known.
    """

    async def named(message: Message) -> None:
        body: bytes = message.get("body", b"") if message["type"] == "http.response.body" else b""
        asked = find() if body else None
        await send(message if asked is None else {**message, "body": asked.look(body)})

    return named
