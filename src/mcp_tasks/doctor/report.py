"""Findings of the probes, in words; and the server under examination, with what the probes share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, mcp_param_headers, x_mcp_header_map
from mcp_types import HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY

from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor.shapes import Flaw
from mcp_tasks.doctor.wire import Reply, Wire
from mcp_tasks.errors import ServerHasFaults

Verdict: TypeAlias = Literal["pass", "warn", "fail", "skip"]
"""What a finding comes to: as it should be, worth a look, wrong, or not looked at."""

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
class Finding:
    """What one probe found.

    Attributes:
        area: What it belongs to: negotiation, errors, creation ...
        probe: What was looked at, in a few words.
        verdict: `fail` for what the protocol forbids or a widely used client refuses, `warn` for what is worth a look,
            `skip` for what could not be looked at.
        says: What was found, in one sentence.
        advice: What to do about it; empty if there is nothing to do.
    """

    area: str
    probe: str
    verdict: Verdict
    says: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.area}: {self.probe}: {self.says}" + (f"\n  → {self.advice}" if self.advice else "")

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON; without what is empty."""
        return {key: value for key, value in asdict(self).items() if value}


class Report:
    """What was found, in the order it was looked at: iterate over it, or ask whether anything `failed`.

    Attributes:
        findings: One for each thing that was looked at.
        unexamined: Why nothing of the server's tasks was looked at, though nothing is wrong; empty if something was.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.unexamined: str = ""
        self._area = ""

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{finding.verdict} {finding}" for finding in self.findings)

    @property
    def failed(self) -> Sequence[Finding]:
        """What is wrong with the server."""
        return [finding for finding in self.findings if finding.verdict == "fail"]

    def count(self, verdict: Verdict) -> int:
        """How many findings have this verdict."""
        return sum(finding.verdict == verdict for finding in self.findings)

    def raise_for_faults(self) -> None:
        """Fail a test of yours, with all that is wrong in words.

        Raises:
            ServerHasFaults: Something failed; or nothing could be examined, which says nothing good of the server.
        """
        if self.failed or self.unexamined:
            raise ServerHasFaults([str(finding) for finding in self.failed] or [self.unexamined])

    def to_json(self) -> dict[str, Any]:
        """The report as `mcp-tasks doctor --output json` prints it."""
        values = {"failed": len(self.failed), "findings": [finding.to_json() for finding in self.findings]}
        return {**values, "unexamined": self.unexamined} if self.unexamined else values

    def turn_to(self, area: str) -> None:
        """Say what the next findings belong to."""
        self._area = area

    def add(self, verdict: Verdict, probe: str, says: str, advice: str = "") -> None:
        """Note a finding."""
        self.findings.append(Finding(area=self._area, probe=probe, verdict=verdict, says=says, advice=advice))


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A tool call to make a task with."""

    tool: str
    arguments: JsonObject
    schema: JsonObject


Note: TypeAlias = Callable[..., None]
"""Notes a finding: the probe, what was found and, if something is wrong, what to do."""


class Subject:
    """A server, the way to it, and where findings go: `ok`, `warn`, `fail` and `skip` note one in the report."""

    def __init__(self, wire: Wire, report: Report) -> None:
        self.wire: Wire = wire
        self.report: Report = report
        self.ok: Note = partial(report.add, "pass")
        self.warn: Note = partial(report.add, "warn")
        self.fail: Note = partial(report.add, "fail")
        self.skip: Note = partial(report.add, "skip")

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
