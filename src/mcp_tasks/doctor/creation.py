"""A call that becomes a task: what comes back, and whether it is there at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY

from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor.report import Area
from mcp_tasks.doctor.shapes import flaw_of_id, flaws_of_created, flaws_of_detailed, flaws_of_time
from mcp_tasks.doctor.subject import Call, Subject, note
from mcp_tasks.doctor.wire import Silence

AREA = "creation"


async def create(subject: Subject, calls: Sequence[Call]) -> tuple[Call, JsonObject] | None:
    """Make a task with the first call that becomes one; gives the call and the new task."""
    area = subject.area(AREA)
    for call in calls:
        reply = await subject.call(call)
        kind = (reply.result or {}).get("resultType", "complete")
        if reply.result is None:
            area.warn(
                f"call {call.tool}", f"answered with {reply.summary}", "Give arguments that work, or another --tool."
            )
        elif kind == "task":
            area.ok(f"call {call.tool}", "answered with a task")
            return call, reply.result
        elif kind == "input_required":
            area.skip(f"call {call.tool}", "it asks something before there is a task", "Give a --tool that does not.")
        elif kind == "complete":
            area.skip(
                f"call {call.tool}",
                "answered directly, which is allowed: the server decides",
                "Give a --tool that becomes a task to look at the rest.",
            )
        else:
            area.fail(f"call {call.tool}", f"resultType is {kind!r}", 'Use "complete", "input_required" or "task".')
    return None


async def probe_created(subject: Subject, created: JsonObject) -> str | None:
    """Judge a new task and look at it at once; gives its id, if it has one that can be used."""
    area = subject.area(AREA)
    task_id = created.get("taskId")
    note(area, "shape of the new task", flaws_of_created(created), "flat, with every field it must have")
    if not isinstance(task_id, str) or not task_id:
        return None
    note(area, "times", flaws_of_time(created, datetime.now(UTC)), f"created just now, {_kept(created)}")
    flaw = flaw_of_id(task_id)
    note(area, "id", [] if flaw is None else [flaw], "long enough not to be guessed")
    return task_id if await _is_there(subject, area, created, task_id) else None


async def _is_there(subject: Subject, area: Area, created: JsonObject, task_id: str) -> bool:
    probe = "tasks/get at once"
    reply = await subject.wire.send("tasks/get", {"taskId": task_id})
    if reply.result is None:
        area.fail(
            probe, f"answered with {reply.summary}", "Answer a call only when tasks/get finds the task everywhere."
        )
        return False
    if reply.result.get("taskId") != task_id or reply.result.get("createdAt") != created.get("createdAt"):
        area.fail(probe, "it is not the task that was created", "Give the same taskId and createdAt every time.")
    elif reply.result.get("resultType") != "complete":
        says = f"resultType is {reply.result.get('resultType')!r}"
        area.fail(probe, says, 'tasks/get always answers with resultType "complete", whatever the task\'s status.')
    else:
        area.ok(probe, "the task is there as soon as its id is known")
    note(area, "shape in tasks/get", flaws_of_detailed(reply.result), "the fields its status asks for, and no others")
    return True


async def probe_undeclared_call(subject: Subject, call: Call) -> None:
    """The same call from a client that does not declare the extension, but sends the old opt-in."""
    area = subject.area("undeclared client")
    probe = f"call {call.tool}"
    try:
        reply = await subject.call(call, declare=False, extra={"task": {"ttl": 60000}})
    except Silence as exc:
        area.skip(probe, f"the direct answer takes longer than doctor waits ({exc})")
        return
    if (reply.result or {}).get("resultType") == "task":
        area.fail(probe, "it gets a task that it cannot handle", "Look at the capabilities on this very request.")
    elif reply.result is not None:
        area.ok(probe, "answered directly; the `task` param of 2025-11-25 is ignored")
    elif reply.code == MISSING_REQUIRED_CLIENT_CAPABILITY:
        subject.expect_error(area, probe, reply, MISSING_REQUIRED_CLIENT_CAPABILITY)
    else:
        advice = (
            "Let such clients have a direct answer, or refuse them with -32021 if the tool is only there as a task."
        )
        area.warn(probe, f"answered with {reply.summary}", advice)


def _kept(created: JsonObject) -> str:
    ttl = created.get("ttlMs")
    return f"kept for {ttl / 1000:g} s" if isinstance(ttl, int) else "kept without limit"
