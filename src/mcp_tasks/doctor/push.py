"""Notifications on a `subscriptions/listen` stream. A server need not have them; if it does, they must be right."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, cast

import anyio
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY

from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor.report import Area
from mcp_tasks.doctor.shapes import flaws_of_detailed
from mcp_tasks.doctor.subject import Subject, note
from mcp_tasks.doctor.wire import LISTENING, Silence

AREA: Final = "push"
STATE: Final = "notifications/tasks"
FORBIDDEN: Final = frozenset({"notifications/progress", "notifications/message"})

FIRST_STATE_WITHIN = 5.0
"""Seconds to see a notification. A task that does not change meanwhile need not send any."""


async def probe_push(subject: Subject, task_id: str) -> None:
    """Listen to a task for a while."""
    area = subject.area(AREA)
    try:
        async with subject.wire.listen([task_id]) as messages:
            with anyio.move_on_after(FIRST_STATE_WITHIN):
                await _listen(subject, area, task_id, messages)
                return
        area.skip("notification", f"nothing came within {FIRST_STATE_WITHIN:g} s; the task may not have changed")
    except Silence as exc:
        area.warn("stream", f"the stream did not last: {exc}", "Keep it open; clients poll meanwhile.")


async def _listen(subject: Subject, area: Area, task_id: str, messages: AsyncIterator[JsonObject]) -> None:
    acknowledged = False
    async for message in messages:
        method, params = message.get("method"), cast("JsonObject", message.get("params") or {})
        if "error" in message or "result" in message:
            area.skip("stream", "the server offers no notifications, which is allowed: clients poll")
            return
        if method in FORBIDDEN:
            area.fail("stream", f"{method} came on it", "A listen stream for a task carries notifications/tasks only.")
        elif method == LISTENING:
            acknowledged = True
            if not _agrees(area, task_id, params):
                return
        elif method == STATE:
            if not acknowledged:
                area.fail("order", "a state came before the acknowledgement", "Acknowledge the stream first.")
            await _judge_state(subject, area, task_id, params)
            return


def _agrees(area: Area, task_id: str, params: JsonObject) -> bool:
    agreed: Any = cast("JsonObject", params.get("notifications") or {}).get("taskIds")
    if isinstance(agreed, list) and task_id in agreed:
        area.ok("acknowledgement", "it names the task")
        return True
    area.skip("acknowledgement", "the server does not push for this task, which is allowed: clients poll")
    return False


async def _judge_state(subject: Subject, area: Area, task_id: str, params: JsonObject) -> None:
    note(area, "notification", flaws_of_detailed(params), "the complete task")
    if params.get("taskId") != task_id:
        area.fail("whose", "the notification is about another task", "Send only what was subscribed to.")
    meta: Any = params.get("_meta")
    if not isinstance(meta, Mapping) or SUBSCRIPTION_ID_META_KEY not in meta:
        says = f"the notification has no {SUBSCRIPTION_ID_META_KEY} in _meta"
        area.warn("subscription id", says, "Add it; clients with several streams tell them apart by it.")
    now = await subject.get(task_id)
    if str(now.get("lastUpdatedAt")) < str(params.get("lastUpdatedAt")):
        area.fail(
            "agreement", "tasks/get shows an older state than the notification", "Notify after the state is stored."
        )
    else:
        area.ok("agreement", "tasks/get shows what was notified, or newer")
