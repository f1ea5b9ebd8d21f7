"""The server under examination, and what the probes share: a call that may become a task, and how to judge answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, mcp_param_headers, x_mcp_header_map
from mcp_types import HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY

from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor.report import Report
from mcp_tasks.doctor.shapes import Flaw
from mcp_tasks.doctor.wire import Reply, Wire

STATUS_IS_A_MUST: Final = frozenset({HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY})
"""Codes whose schema says that the status MUST be 400; for the others it is what clients expect."""

TASK_METHODS: Final[Mapping[str, JsonObject]] = {
    "tasks/get": {},
    "tasks/update": {"inputResponses": {}},
    "tasks/cancel": {},
}
"""The methods of the extension, and what they take besides the task's id."""

OLD_MISSING_CAPABILITY: Final = -32003


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A tool call to make a task with."""

    tool: str
    arguments: JsonObject
    schema: JsonObject


class Subject:
    """A server, the way to it, and where findings go: `ok`, `warn`, `fail` and `skip` note one in the report."""

    def __init__(self, wire: Wire, report: Report) -> None:
        self.wire = wire
        self.report = report
        self.ok = partial(report.add, "pass")
        self.warn = partial(report.add, "warn")
        self.fail = partial(report.add, "fail")
        self.skip = partial(report.add, "skip")

    async def call(self, call: Call, *, declare: bool = True, extra: JsonObject | None = None) -> Reply:
        """Call a tool, with the headers that its schema asks for."""
        params = {"name": call.tool, "arguments": dict(call.arguments), **(extra or {})}
        headers = mcp_param_headers(x_mcp_header_map(dict(call.schema)), call.arguments)
        return await self.wire.send("tools/call", params, declare=declare, headers=headers)

    async def get(self, task_id: str) -> JsonObject:
        """Look at a task; an empty object if there is no result."""
        return (await self.wire.send("tasks/get", {"taskId": task_id})).result or {}

    def judge(self, probe: str, flaws: Iterable[Flaw], well: str) -> None:
        """Note what is wrong, or that nothing is."""
        found = list(flaws)
        for flaw in found:
            (self.fail if flaw.is_fault else self.warn)(probe, flaw.says, flaw.advice)
        if not found:
            self.ok(probe, well)

    def judge_error(self, probe: str, reply: Reply, code: int, *, must: bool = True) -> bool:
        """Judge an answer that should be an error; whether its code is right.

        Args:
            must: Whether the specification insists on it.
        """
        if reply.code != code:
            advice = f"Answer with error {code}."
            if code == MISSING_REQUIRED_CLIENT_CAPABILITY and reply.code == OLD_MISSING_CAPABILITY:
                advice = f"{OLD_MISSING_CAPABILITY} is the code of a draft; the released one is {code}."
            complain = self.fail if must else self.warn
            complain(probe, f"answered with {reply.summary}, not with error {code}", advice)
            return False
        status = ERROR_CODE_HTTP_STATUS[code]
        if reply.status not in (None, status):
            complain = self.fail if code in STATUS_IS_A_MUST else self.warn
            complain(probe, f"error {code} comes with HTTP {reply.status}", f"Send it with HTTP {status}.")
        else:
            self.ok(probe, f"refused with {code}" + ("" if reply.status is None else f" and HTTP {status}"))
        return True
