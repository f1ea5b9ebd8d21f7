"""What the server refuses, and with which error."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, cast

from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY

from mcp_tasks.doctor.subject import TASK_METHODS, Subject
from mcp_tasks.doctor.wire import Silence
from mcp_tasks.wire.models import EXTENSION_ID


async def probe_unknown_tasks(subject: Subject) -> None:
    """Ids that were never given out, and no id at all."""
    area = subject.area("errors")
    params = {"taskId": f"doctor-{secrets.token_hex(16)}"}
    for method, more in TASK_METHODS.items():
        reply = await subject.wire.send(method, {**params, **more})
        # A MUST for looking, a SHOULD for the other two.
        must = method == "tasks/get"
        subject.expect_error(area, f"{method} of an unknown task", reply, INVALID_PARAMS, must=must)
    reply = await subject.wire.send("tasks/get", {})
    subject.expect_error(area, "tasks/get without an id", reply, INVALID_PARAMS)


async def probe_removed_methods(subject: Subject) -> None:
    """Methods of 2025-11-25 that are gone."""
    area = subject.area("errors")
    for method in ("tasks/result", "tasks/list"):
        reply = await subject.wire.send(method, {"taskId": "doctor"} if method == "tasks/result" else {})
        # Only of tasks/result is it said in so many words.
        subject.expect_error(area, f"{method}, which is gone", reply, METHOD_NOT_FOUND, must=method == "tasks/result")


async def probe_undeclared(subject: Subject, task_id: str | None) -> None:
    """A client that does not declare the extension."""
    area = subject.area("undeclared client")
    params = {"taskId": task_id or f"doctor-{secrets.token_hex(16)}"}
    for method, more in TASK_METHODS.items():
        reply = await subject.wire.send(method, {**params, **more}, declare=False)
        right = subject.expect_error(area, method, reply, MISSING_REQUIRED_CLIENT_CAPABILITY)
        if right and method == "tasks/get" and not _names_extension(reply.error or {}):
            area.warn(
                "what is missing",
                "the error does not name the missing extension",
                "Put it under error.data.requiredCapabilities.extensions.",
            )
    filters = {"notifications": {"taskIds": [params["taskId"]]}}
    try:
        reply = await subject.wire.send("subscriptions/listen", filters, declare=False)
    except Silence:
        says = "the stream is opened, or the request ignored"
        area.fail("subscriptions/listen for tasks", says, f"Answer with error {MISSING_REQUIRED_CLIENT_CAPABILITY}.")
        return
    if reply.code == METHOD_NOT_FOUND:
        area.skip("subscriptions/listen", "the server has no listen streams, which is allowed")
        return
    subject.expect_error(area, "subscriptions/listen for tasks", reply, MISSING_REQUIRED_CLIENT_CAPABILITY)


def _names_extension(error: Mapping[str, Any]) -> bool:
    node: Any = error
    for key in ("data", "requiredCapabilities", "extensions", EXTENSION_ID):
        if not isinstance(node, Mapping):
            return False
        node = cast("Mapping[str, Any]", node).get(key)
    return node is not None
