"""One examination of a server: how it is asked, and how what it answers is judged and noted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, mcp_param_headers, x_mcp_header_map
from mcp_types import HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY

from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor.report import Finding, Report, Verdict
from mcp_tasks.doctor.shapes import Flaw
from mcp_tasks.doctor.wire import Reply, Silence, Wire

STATUS_IS_A_MUST: Final = frozenset({HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY})
"""Codes whose schema says that the status MUST be 400; for the others it is what clients expect."""

OLD_MISSING_CAPABILITY: Final = -32003

Note: TypeAlias = Callable[..., None]
"""Notes a finding: the probe, what was found and, if something is wrong, what to do."""
FlawsOf: TypeAlias = Callable[[JsonObject], Iterable[Flaw]]
T = TypeVar("T")


class Call(NamedTuple):
    """A tool call to make a task with."""

    tool: str
    arguments: JsonObject
    schema: JsonObject


class Exam:
    """A way to a server, and its report: `ok`, `warn`, `fail` and `skip` note a finding in the present `area`."""

    def __init__(self, wire: Wire) -> None:
        self.wire: Wire = wire
        self.report: Report = Report()
        self.area: str = ""
        self.ok: Note = partial(self.note, "pass")
        self.warn: Note = partial(self.note, "warn")
        self.fail: Note = partial(self.note, "fail")
        self.skip: Note = partial(self.note, "skip")

    def note(self, verdict: Verdict, probe: str, says: str, advice: str = "") -> None:
        """Note a finding."""
        finding = Finding(area=self.area, probe=probe, verdict=verdict, says=says, advice=advice)
        self.report.findings.append(finding)

    async def look(self, area: str, probe: Awaitable[T]) -> T | None:
        """Look at something of an area; a server that does not answer fails this probe, and not those after it."""
        self.area = area
        try:
            return await probe
        except Silence as exc:
            self.fail("answer", f"the server did not answer: {exc}", "Look at the server's log.")
            return None

    def skip_areas(self, *areas: str, why: str) -> None:
        """Look at nothing of some areas."""
        for self.area in areas:
            self.skip("all of it", why)

    async def call(self, call: Call, *, declare: bool = True, **more: Any) -> Reply:
        """Call a tool, with the headers that its schema asks for, and with `more` params."""
        params = {"name": call.tool, "arguments": dict(call.arguments), **more}
        headers = mcp_param_headers(x_mcp_header_map(dict(call.schema)), call.arguments)
        return await self.wire.send("tools/call", params, declare=declare, headers=headers)

    async def get(self, task_id: str) -> JsonObject:
        """Look at a task; an empty object if there is no result."""
        return (await self.wire.send("tasks/get", {"taskId": task_id})).result or {}

    async def refuses(
        self, probe: str, code: int, method: str, params: JsonObject, *, must: bool = True, **how: Any
    ) -> Reply:
        """Send a request that should be refused with this error."""
        reply = await self.wire.send(method, params, **how)
        self.judge_refusal(probe, code, reply, must=must)
        return reply

    def judge_refusal(self, probe: str, code: int, reply: Reply, *, must: bool = True) -> None:
        """Judge an answer that should be this error; `must` says whether the specification insists on it."""
        status = ERROR_CODE_HTTP_STATUS[code]
        if reply.code != code:
            advice = f"Answer with error {code}."
            if code == MISSING_REQUIRED_CLIENT_CAPABILITY and reply.code == OLD_MISSING_CAPABILITY:
                advice = f"{OLD_MISSING_CAPABILITY} is the code of a draft; the released one is {code}."
            says = f"answered with {reply.summary}, not with error {code}"
            self.note("fail" if must else "warn", probe, says, advice)
        elif reply.status not in (None, status):
            verdict = "fail" if code in STATUS_IS_A_MUST else "warn"
            self.note(verdict, probe, f"error {code} comes with HTTP {reply.status}", f"Send it with HTTP {status}.")
        else:
            self.ok(probe, f"refused with {code}" + ("" if reply.status is None else f" and HTTP {status}"))

    def judge_result(
        self, probe: str, reply: Reply, well: str, advice: str, flaws: FlawsOf = lambda _: (), *, must: bool = True
    ) -> JsonObject | None:
        """Judge an answer that should be a result, and that result; `advice` is for one that is none."""
        if reply.result is None:
            self.note("fail" if must else "warn", probe, f"answered with {reply.summary}", advice)
        else:
            self.judge(probe, flaws(reply.result), well)
        return reply.result

    def judge(self, probe: str, flaws: Iterable[Flaw], well: str) -> None:
        """Note what is wrong, or that nothing is."""
        found = list(flaws)
        for flaw in found:
            self.note(flaw.verdict, probe, flaw.says, flaw.advice)
        if not found:
            self.ok(probe, well)
