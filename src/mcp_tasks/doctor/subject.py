"""The server under examination, and what the probes share: a call that may become a task, and how to judge answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY

from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor.report import Area, Report
from mcp_tasks.doctor.shapes import Flaw
from mcp_tasks.doctor.wire import Reply, Wire

HTTP_STATUS: Final[Mapping[int, int]] = {-32602: 400, -32601: 404, -32020: 400, -32021: 400}
"""The HTTP status that goes with an error code."""

STATUS_IS_A_MUST: Final = frozenset({-32020, -32021})
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
    schema: JsonObject = field(default_factory=dict[str, Any])

    @property
    def params(self) -> dict[str, Any]:
        """Params of the `tools/call`."""
        return {"name": self.tool, "arguments": dict(self.arguments)}

    @property
    def headers(self) -> dict[str, str]:
        """Headers that the tool's schema asks for."""
        return mcp_param_headers(x_mcp_header_map(dict(self.schema)), self.arguments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A server, the way to it, and where findings go."""

    wire: Wire
    report: Report

    def area(self, name: str) -> Area:
        """Findings of one area."""
        return Area(self.report, name)

    async def call(self, call: Call, *, declare: bool = True, extra: JsonObject | None = None) -> Reply:
        """Call a tool."""
        params = {**call.params, **(extra or {})}
        return await self.wire.send("tools/call", params, declare=declare, headers=call.headers)

    async def get(self, task_id: str) -> JsonObject:
        """Look at a task; an empty object if there is no result."""
        return (await self.wire.send("tasks/get", {"taskId": task_id})).result or {}

    def expect_error(self, area: Area, probe: str, reply: Reply, code: int, *, must: bool = True) -> bool:
        """Judge an answer that should be an error; whether its code is right.

        Args:
            must: Whether the specification insists on it.
        """
        complain = area.fail if must else area.warn
        if reply.code != code:
            advice = f"Answer with error {code}."
            if code == MISSING_REQUIRED_CLIENT_CAPABILITY and reply.code == OLD_MISSING_CAPABILITY:
                advice = f"{OLD_MISSING_CAPABILITY} is the code of a draft; the released one is {code}."
            complain(probe, f"answered with {reply.summary}, not with error {code}", advice)
            return False
        status = HTTP_STATUS[code]
        if reply.status not in (None, status):
            complain = area.fail if code in STATUS_IS_A_MUST else area.warn
            complain(probe, f"error {code} comes with HTTP {reply.status}", f"Send it with HTTP {status}.")
        else:
            area.ok(probe, f"refused with {code}" + ("" if reply.status is None else f" and HTTP {status}"))
        return True


def note(area: Area, probe: str, flaws: Sequence[Flaw], well: str) -> None:
    """Note what is wrong, or that nothing is."""
    for flaw in flaws:
        (area.fail if flaw.is_fault else area.warn)(probe, flaw.says, flaw.advice)
    if not flaws:
        area.ok(probe, well)
