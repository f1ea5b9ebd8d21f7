"""What the server refuses, and with which error."""

from __future__ import annotations

import base64
import secrets
from typing import Any

from mcp_types import HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY

from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor.report import TASK_METHODS, Call, Subject
from mcp_tasks.doctor.wire import Reply, Silence, object_in
from mcp_tasks.wire.models import EXTENSION_ID


async def probe_unknown_tasks(subject: Subject) -> None:
    """Ids that were never given out, and no id at all."""
    for method, more in TASK_METHODS.items():
        # A MUST for looking, a SHOULD for the other two.
        must, params = method == "tasks/get", {"taskId": _never_given_out(), **more}
        await _refuse(subject, f"{method} of an unknown task", method, params, INVALID_PARAMS, must=must)
    await _refuse(subject, "tasks/get without an id", "tasks/get", {}, INVALID_PARAMS)


async def probe_removed_methods(subject: Subject) -> None:
    """Methods of 2025-11-25 that are gone."""
    await _refuse(subject, "tasks/result, which is gone", "tasks/result", {"taskId": "doctor"}, METHOD_NOT_FOUND)
    # Of this one it is not said in so many words.
    await _refuse(subject, "tasks/list, which is gone", "tasks/list", {}, METHOD_NOT_FOUND, must=False)


async def probe_undeclared(subject: Subject, task_id: str | None) -> None:
    """A client that does not declare the extension."""
    missing = MISSING_REQUIRED_CLIENT_CAPABILITY
    params = {"taskId": task_id or _never_given_out()}
    for method, more in TASK_METHODS.items():
        reply = await _refuse(subject, method, method, {**params, **more}, missing, declare=False)
        named = object_in(reply.error, "data", "requiredCapabilities", "extensions", EXTENSION_ID) is not None
        if reply.code == missing and method == "tasks/get" and not named:
            advice = "Put it under error.data.requiredCapabilities.extensions."
            subject.warn("what is missing", "the error does not name the missing extension", advice)
    probe, filters = "subscriptions/listen for tasks", {"notifications": {"taskIds": [params["taskId"]]}}
    try:
        reply = await subject.wire.send("subscriptions/listen", filters, declare=False)
    except Silence:
        subject.fail(probe, "the stream is opened, or the request ignored", f"Answer with error {missing}.")
        return
    if reply.code == METHOD_NOT_FOUND:
        subject.skip("subscriptions/listen", "the server has no listen streams, which is allowed")
    else:
        subject.judge_error(probe, reply, missing)


async def probe_undeclared_call(subject: Subject, call: Call) -> None:
    """A call from a client that does not declare the extension, but sends the old opt-in."""
    probe = f"call {call.tool}"
    try:
        reply = await subject.call(call, declare=False, extra={"task": {"ttl": 60000}})
    except Silence as exc:
        subject.skip(probe, f"the direct answer takes longer than doctor waits ({exc})")
        return
    code = MISSING_REQUIRED_CLIENT_CAPABILITY
    if (reply.result or {}).get("resultType") == "task":
        subject.fail(probe, "it gets a task that it cannot handle", "Look at the capabilities on this very request.")
    elif reply.result is not None:
        subject.ok(probe, "answered directly; the `task` param of 2025-11-25 is ignored")
    elif reply.code == code:
        subject.judge_error(probe, reply, code)
    else:
        advice = (
            f"Let such clients have a direct answer, or refuse them with {code} if the tool is only there as a task."
        )
        subject.warn(probe, f"answered with {reply.summary}", advice)


async def probe_headers(subject: Subject, task_id: str) -> None:
    """The routing headers of a request about a task (SEP-2663, "Routing Headers"): wrong, encoded, and missing."""
    if not subject.wire.over_http:
        subject.skip("routing headers", "there are none over stdio")
        return
    params = {"taskId": task_id}
    for method, more in TASK_METHODS.items():
        probe, wrong = f"{method} with another task in Mcp-Name", {"mcp-name": "another-task"}
        await _refuse(subject, probe, method, {**params, **more}, HEADER_MISMATCH, headers=wrong)
    wrong = {"mcp-method": "tasks/cancel"}
    await _refuse(subject, "another method in Mcp-Method", "tasks/get", params, HEADER_MISMATCH, headers=wrong)
    encoded = {"mcp-name": f"=?base64?{base64.b64encode(task_id.encode()).decode()}?="}
    reply = await subject.wire.send("tasks/get", params, headers=encoded)
    if reply.result is not None:
        subject.ok("Mcp-Name in base64", "decoded before it is compared")
    else:
        subject.fail("Mcp-Name in base64", f"answered with {reply.summary}", "Decode =?base64?...?= before comparing.")
    reply = await subject.wire.send("tasks/get", params, headers={"mcp-name": None})
    if reply.result is not None:
        subject.ok("no Mcp-Name", "accepted; some clients do not send it")
    elif reply.code == HEADER_MISMATCH:
        subject.warn("no Mcp-Name", "refused, as is allowed; some clients do not send it", "Accept it if you can.")
    else:
        advice = f"Accept it, or refuse it with {HEADER_MISMATCH}."
        subject.fail("no Mcp-Name", f"answered with {reply.summary}", advice)


async def _refuse(
    subject: Subject, probe: str, method: str, params: JsonObject, code: int, *, must: bool = True, **how: Any
) -> Reply:
    reply = await subject.wire.send(method, params, **how)
    subject.judge_error(probe, reply, code, must=must)
    return reply


def _never_given_out() -> str:
    return f"doctor-{secrets.token_hex(16)}"
