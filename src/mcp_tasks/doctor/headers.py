"""The routing headers of a request about a task (SEP-2663, "Routing Headers")."""

from __future__ import annotations

import base64

from mcp_types import HEADER_MISMATCH

from mcp_tasks.doctor.subject import TASK_METHODS, Subject


async def probe_headers(subject: Subject, task_id: str) -> None:
    """`Mcp-Name` and `Mcp-Method`: wrong, missing, and encoded."""
    area = subject.area("headers")
    if not subject.wire.over_http:
        area.skip("routing headers", "there are none over stdio")
        return
    params = {"taskId": task_id}
    for method, more in TASK_METHODS.items():
        wrong = {"mcp-name": "another-task"}
        reply = await subject.wire.send(method, {**params, **more}, headers=wrong)
        subject.expect_error(area, f"{method} with another task in Mcp-Name", reply, HEADER_MISMATCH)
    reply = await subject.wire.send("tasks/get", params, headers={"mcp-method": "tasks/cancel"})
    subject.expect_error(area, "another method in Mcp-Method", reply, HEADER_MISMATCH)
    await _probe_encoded(subject, task_id)
    await _probe_missing(subject, task_id)


async def _probe_encoded(subject: Subject, task_id: str) -> None:
    area = subject.area("headers")
    encoded = f"=?base64?{base64.b64encode(task_id.encode()).decode()}?="
    reply = await subject.wire.send("tasks/get", {"taskId": task_id}, headers={"mcp-name": encoded})
    if reply.result is not None:
        area.ok("Mcp-Name in base64", "decoded before it is compared")
    else:
        area.fail("Mcp-Name in base64", f"answered with {reply.summary}", "Decode =?base64?...?= before comparing.")


async def _probe_missing(subject: Subject, task_id: str) -> None:
    area = subject.area("headers")
    reply = await subject.wire.send("tasks/get", {"taskId": task_id}, without=["mcp-name"])
    if reply.result is not None:
        area.ok("no Mcp-Name", "accepted; some clients do not send it")
    elif reply.code == HEADER_MISMATCH:
        area.warn("no Mcp-Name", "refused, as is allowed; some clients do not send it", "Accept it if you can.")
    else:
        area.fail("no Mcp-Name", f"answered with {reply.summary}", f"Accept it, or refuse it with {HEADER_MISMATCH}.")
