"""A task on its way: made, looked at twice, listened to, updated, cancelled; and one that is left to end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import anyio
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.status import FINAL_STATUSES
from mcp_tasks.doctor.report import Call, Subject
from mcp_tasks.doctor.shapes import flaws_of_ack, flaws_of_created, flaws_of_detailed, flaws_of_id, flaws_of_time
from mcp_tasks.doctor.wire import ANSWER_TIMEOUT, LISTENING, Silence, object_in

STATE: Final = "notifications/tasks"
FORBIDDEN: Final = frozenset({"notifications/progress", "notifications/message"})

STOPS_WITHIN: Final = 5.0
"""Seconds to see a cancelled task end."""

FIRST_STATE_WITHIN: Final = 5.0
"""Seconds to see a notification. A task that does not change meanwhile need not send any."""

SHORTEST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0


async def create(subject: Subject, calls: Sequence[Call]) -> tuple[Call, JsonObject] | None:
    """Make a task with the first call that becomes one; gives the call and the new task."""
    for call in calls:
        probe, reply = f"call {call.tool}", await subject.call(call)
        kind = (reply.result or {}).get("resultType", "complete")
        if reply.result is None:
            advice = "Give arguments that work, or another tool."
            subject.warn(probe, f"answered with {reply.summary}", advice)
        elif kind == "task":
            subject.ok(probe, "answered with a task")
            return call, reply.result
        elif kind == "input_required":
            subject.skip(probe, "it asks something before there is a task", "Give a tool that does not.")
        elif kind == "complete":
            advice = "Give a tool that becomes a task to look at the rest."
            subject.skip(probe, "answered directly, which is allowed: the server decides", advice)
        else:
            subject.fail(probe, f"resultType is {kind!r}", 'Use "complete", "input_required" or "task".')
    return None


async def probe_created(subject: Subject, created: JsonObject) -> str | None:
    """Judge a new task and look at it at once; gives its id, if it has one that can be used."""
    task_id, ttl = created.get("taskId"), created.get("ttlMs")
    subject.judge("shape of the new task", flaws_of_created(created), "flat, with every field it must have")
    if not isinstance(task_id, str) or not task_id:
        return None
    kept = f"kept for {ttl / 1000:g} s" if isinstance(ttl, int) else "kept without limit"
    subject.judge("times", flaws_of_time(created, datetime.now(UTC)), f"created just now, {kept}")
    subject.judge("id", flaws_of_id(task_id), "long enough not to be guessed")
    probe, reply = "tasks/get at once", await subject.wire.send("tasks/get", {"taskId": task_id})
    task = reply.result
    if task is None:
        advice = "Answer a call only when tasks/get finds the task everywhere."
        subject.fail(probe, f"answered with {reply.summary}", advice)
        return None
    if task.get("taskId") != task_id or task.get("createdAt") != created.get("createdAt"):
        subject.fail(probe, "it is not the task that was created", "Give the same taskId and createdAt every time.")
    elif task.get("resultType") != "complete":
        advice = 'tasks/get always answers with resultType "complete", whatever the task\'s status.'
        subject.fail(probe, f"resultType is {task.get('resultType')!r}", advice)
    else:
        subject.ok(probe, "the task is there as soon as its id is known")
    subject.judge("shape in tasks/get", flaws_of_detailed(task), "the fields its status asks for, and no others")
    return task_id


async def probe_repeated_get(subject: Subject, task_id: str) -> None:
    """Looking at a task does not change it."""
    probe, first, second = "two looks in a row", await subject.get(task_id), await subject.get(task_id)
    moved = first.get("lastUpdatedAt") != second.get("lastUpdatedAt")
    if moved and all(first.get(key) == second.get(key) for key in ("status", "statusMessage", "ttlMs", "_meta")):
        advice = "Move it only when the task changes; clients order states by it."
        subject.warn(probe, "lastUpdatedAt moved although nothing changed", advice)
    else:
        subject.ok(probe, "looking at a task does not change it")


async def probe_update(subject: Subject, task_id: str) -> None:
    """An answer to a question that was never asked is acknowledged and ignored."""
    probe, responses = "answer that nobody asked for", {"mcp-tasks-doctor": {"action": "cancel"}}
    reply = await subject.wire.send("tasks/update", {"taskId": task_id, "inputResponses": responses})
    if reply.result is None:
        subject.warn(probe, f"answered with {reply.summary}", "Ignore unknown keys and acknowledge.")
    else:
        subject.judge(probe, flaws_of_ack(reply.result), "acknowledged and ignored")


async def probe_push(subject: Subject, task_id: str) -> None:
    """Listen to a task for a while. A server need not have notifications; if it does, they must be right."""
    try:
        async with subject.wire.listen(task_id) as (_, messages):
            with anyio.move_on_after(FIRST_STATE_WITHIN):
                await _listen(subject, task_id, messages)
                return
        subject.skip("notification", f"nothing came within {FIRST_STATE_WITHIN:g} s; the task may not have changed")
    except Silence as exc:
        subject.warn("stream", f"the stream did not last: {exc}", "Keep it open; clients poll meanwhile.")


async def _listen(subject: Subject, task_id: str, messages: AsyncIterator[JsonObject]) -> None:
    acknowledged = False
    async for message in messages:
        method, params = message.get("method"), object_in(message, "params") or {}
        if "error" in message or "result" in message:
            subject.skip("stream", "the server offers no notifications, which is allowed: clients poll")
            return
        if method in FORBIDDEN:
            advice = "A listen stream for a task carries notifications/tasks only."
            subject.fail("stream", f"{method} came on it", advice)
        elif method == LISTENING:
            acknowledged = True
            if task_id not in ((object_in(params, "notifications") or {}).get("taskIds") or ()):
                says = "the server does not push for this task, which is allowed: clients poll"
                subject.skip("acknowledgement", says)
                return
            subject.ok("acknowledgement", "it names the task")
        elif method == STATE:
            if not acknowledged:
                subject.fail("order", "a state came before the acknowledgement", "Acknowledge the stream first.")
            await _judge_state(subject, task_id, params)
            return


async def _judge_state(subject: Subject, task_id: str, params: JsonObject) -> None:
    subject.judge("notification", flaws_of_detailed(params), "the complete task")
    if params.get("taskId") != task_id:
        subject.fail("whose", "the notification is about another task", "Send only what was subscribed to.")
    if SUBSCRIPTION_ID_META_KEY not in (object_in(params, "_meta") or {}):
        says = f"the notification has no {SUBSCRIPTION_ID_META_KEY} in _meta"
        subject.warn("subscription id", says, "Add it; clients with several streams tell them apart by it.")
    if str((await subject.get(task_id)).get("lastUpdatedAt")) < str(params.get("lastUpdatedAt")):
        says = "tasks/get shows an older state than the notification"
        subject.fail("agreement", says, "Notify after the state is stored.")
    else:
        subject.ok("agreement", "tasks/get shows what was notified, or newer")


async def probe_cancel(subject: Subject, task_id: str) -> None:
    """Cancel a task, twice."""
    if not await _cancel(subject, task_id, "tasks/cancel"):
        return
    task = await _until(subject, task_id, STOPS_WITHIN, _is_final)
    probe, status = "what becomes of it", task.get("status")
    if status == "cancelled":
        subject.ok(probe, "the task is cancelled")
    elif _is_final(task):
        subject.ok(probe, f"the task had {status} before it could be cancelled")
    else:
        advice = "Stop the work if you can: whoever cancelled it does not want the result."
        subject.warn(probe, f"it is still {status} after {STOPS_WITHIN:g} s, which is allowed", advice)
    subject.judge("shape afterwards", flaws_of_detailed(task), f"a {status} task as it should be")
    await _cancel(subject, task_id, "tasks/cancel again")


async def _cancel(subject: Subject, task_id: str, probe: str) -> bool:
    reply = await subject.wire.send("tasks/cancel", {"taskId": task_id})
    if reply.result is None:
        subject.fail(probe, f"answered with {reply.summary}", "Acknowledge, also when the task has ended.")
        return False
    subject.judge(probe, flaws_of_ack(reply.result), "acknowledged, with nothing but resultType")
    return True


async def probe_end(subject: Subject, call: Call) -> None:
    """Make another task, let it end and look at its outcome."""
    made = (await subject.call(call)).result or {}
    if made.get("resultType") != "task":
        return
    task_id = str(made.get("taskId"))
    task = await _until(
        subject, task_id, ANSWER_TIMEOUT, lambda task: _is_final(task) or task.get("status") == "input_required"
    )
    probe, status = "how it ends", task.get("status")
    if _is_final(task):
        subject.judge(probe, flaws_of_detailed(task), f"{status}, with what that status inlines")
        return
    if status == "input_required":
        subject.judge("questions", flaws_of_detailed(task), "the task asks, and the question can be read")
        subject.skip(probe, "the task waits for an answer", "Give a tool that asks nothing.")
    else:
        subject.skip(probe, f"the task is still {status} after {ANSWER_TIMEOUT:g} s", "Give a quicker tool.")
    await subject.wire.send("tasks/cancel", {"taskId": task_id})


async def _until(subject: Subject, task_id: str, seconds: float, reached: Callable[[JsonObject], bool]) -> JsonObject:
    """Poll a task, at the pace it suggests within reason, and give it as it is in the end."""
    with anyio.move_on_after(seconds):
        while not reached(task := await subject.get(task_id)):
            interval = task.get("pollIntervalMs")
            pause = interval / 1000 if isinstance(interval, int | float) else 1.0
            await anyio.sleep(min(max(pause, SHORTEST_PAUSE), LONGEST_PAUSE))
    return await subject.get(task_id)


def _is_final(task: JsonObject) -> bool:
    return task.get("status") in FINAL_STATUSES
