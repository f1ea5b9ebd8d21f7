"""A task on its way: looked at twice, updated, cancelled, and one that is left to end."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.status import FINAL_STATUSES
from mcp_tasks.doctor.report import Area
from mcp_tasks.doctor.shapes import flaws_of_ack, flaws_of_detailed
from mcp_tasks.doctor.subject import Subject, note
from mcp_tasks.doctor.wire import ANSWER_TIMEOUT

STOPS_WITHIN = 5.0
"""Seconds to see a cancelled task end."""

SHORTEST_PAUSE = 0.1
LONGEST_PAUSE = 2.0


async def probe_repeated_get(subject: Subject, task_id: str) -> None:
    """Looking at a task does not change it."""
    area = subject.area("lifecycle")
    first, second = await subject.get(task_id), await subject.get(task_id)
    moved = first.get("lastUpdatedAt") != second.get("lastUpdatedAt")
    same = all(first.get(key) == second.get(key) for key in ("status", "statusMessage", "ttlMs", "_meta"))
    if moved and same:
        area.warn(
            "two looks in a row",
            "lastUpdatedAt moved although nothing changed",
            "Move it only when the task changes; clients order states by it.",
        )
    else:
        area.ok("two looks in a row", "looking at a task does not change it")


async def probe_update(subject: Subject, task_id: str) -> None:
    """An answer to a question that was never asked is acknowledged and ignored."""
    area = subject.area("lifecycle")
    probe = "answer that nobody asked for"
    responses = {"mcp-tasks-doctor": {"action": "cancel"}}
    reply = await subject.wire.send("tasks/update", {"taskId": task_id, "inputResponses": responses})
    if reply.result is None:
        area.warn(probe, f"answered with {reply.summary}", "Ignore unknown keys and acknowledge.")
        return
    note(area, probe, flaws_of_ack(reply.result), "acknowledged and ignored")


async def probe_cancel(subject: Subject, task_id: str) -> None:
    """Cancel a task, twice."""
    area = subject.area("cancel")
    if not await _cancel(subject, area, task_id, "tasks/cancel"):
        return
    with anyio.move_on_after(STOPS_WITHIN):
        await until(subject, task_id, _is_final)
    task = await subject.get(task_id)
    status = task.get("status")
    if status == "cancelled":
        area.ok("what becomes of it", "the task is cancelled")
    elif status in FINAL_STATUSES:
        area.ok("what becomes of it", f"the task had {status} before it could be cancelled")
    else:
        area.warn(
            "what becomes of it",
            f"it is still {status} after {STOPS_WITHIN:g} s, which is allowed",
            "Stop the work if you can: whoever cancelled it does not want the result.",
        )
    note(area, "shape afterwards", flaws_of_detailed(task), f"a {status} task as it should be")
    await _cancel(subject, area, task_id, "tasks/cancel again")


async def _cancel(subject: Subject, area: Area, task_id: str, probe: str) -> bool:
    reply = await subject.wire.send("tasks/cancel", {"taskId": task_id})
    if reply.result is None:
        area.fail(probe, f"answered with {reply.summary}", "Acknowledge, also when the task has ended.")
        return False
    note(area, probe, flaws_of_ack(reply.result), "acknowledged, with nothing but resultType")
    return True


async def probe_end(subject: Subject, task_id: str) -> None:
    """Let a task end and look at its outcome."""
    area = subject.area("outcome")
    with anyio.move_on_after(ANSWER_TIMEOUT):
        await until(subject, task_id, lambda task: _is_final(task) or task.get("status") == "input_required")
    task = await subject.get(task_id)
    status = task.get("status")
    if status == "input_required":
        note(area, "questions", flaws_of_detailed(task), "the task asks, and the question can be read")
        area.skip("how it ends", "the task waits for an answer", "Give a --tool that asks nothing.")
    elif not _is_final(task):
        area.skip("how it ends", f"the task is still {status} after {ANSWER_TIMEOUT:g} s", "Give a quicker --tool.")
    else:
        note(area, "how it ends", flaws_of_detailed(task), f"{status}, with what that status inlines")
        return
    await subject.wire.send("tasks/cancel", {"taskId": task_id})


async def until(subject: Subject, task_id: str, reached: Callable[[JsonObject], bool]) -> JsonObject:
    """Poll a task, at the pace it suggests within reason."""
    while not reached(task := await subject.get(task_id)):
        interval = task.get("pollIntervalMs")
        seconds = interval / 1000 if isinstance(interval, int | float) else 1.0
        await anyio.sleep(min(max(seconds, SHORTEST_PAUSE), LONGEST_PAUSE))
    return task


def _is_final(task: JsonObject) -> bool:
    return task.get("status") in FINAL_STATUSES
