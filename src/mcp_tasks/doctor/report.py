"""Findings, in words; and the examination under way, which judges a server's answers and notes them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from typing import Any, Literal, NamedTuple, TypeAlias

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY

from mcp_tasks.client.raw import RawConnection, Reply, Silence
from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor.requests import request_of
from mcp_tasks.errors import ServerHasFaults

Verdict: TypeAlias = Literal["pass", "warn", "fail", "skip"]
"""What a finding comes to: as it should be, worth a look, wrong, or not looked at."""


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


@dataclass
class Report:
    """What was found, in the order it was looked at: iterate over it, or ask whether anything `failed`.

    Attributes:
        findings: One for each thing that was looked at.
        unexamined: Why nothing of the server's tasks was looked at, though nothing is wrong; empty if something was.
    """

    findings: list[Finding] = field(default_factory=list[Finding])
    unexamined: str = ""

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{finding.verdict} {finding}" for finding in self)

    @property
    def failed(self) -> Sequence[Finding]:
        """What is wrong with the server."""
        return [finding for finding in self if finding.verdict == "fail"]

    def count(self, verdict: Verdict) -> int:
        """How many findings have this verdict."""
        return sum(finding.verdict == verdict for finding in self)

    def raise_for_faults(self) -> None:
        """Fail a test of yours, with all that is wrong in words.

        Raises:
            ServerHasFaults: Something failed; or nothing could be examined, which says nothing good of the server.
        """
        if self.failed or self.unexamined:
            raise ServerHasFaults([str(finding) for finding in self.failed] or [self.unexamined])

    def to_json(self) -> dict[str, Any]:
        """The report as `mcp-tasks doctor --output json` prints it."""
        values = {"failed": len(self.failed), "findings": [finding.to_json() for finding in self]}
        return {**values, "unexamined": self.unexamined} if self.unexamined else values


class Flaw(NamedTuple):
    """One thing that is wrong."""

    says: str
    advice: str
    verdict: Verdict = "fail"


class Exam:
    """An examination under way: `ok`, `warn`, `fail` and `skip` note a finding in the present `area`.

    Attributes:
        has_tasks: Whether the server says that it does tasks.
        task_id: The task that is looked at; empty if there is none.
        made: All tasks that were made.
        is_slow: Whether the tool takes longer than anybody waits here.
        call: The params of the call that made it, and its headers, as `send` takes them.
    """

    def __init__(self, server: RawConnection) -> None:
        self.server: RawConnection = server
        self.report: Report = Report()
        self.area: str = ""
        self.has_tasks: bool = False
        self.task_id: str = ""
        self.made: list[str] = []
        self.is_slow: bool = False
        self.call: dict[str, Any] = {}
        self._numbers = count(1)
        self.ok: Callable[..., None] = partial(self.note, "pass")
        self.warn: Callable[..., None] = partial(self.note, "warn")
        self.fail: Callable[..., None] = partial(self.note, "fail")
        self.skip: Callable[..., None] = partial(self.note, "skip")

    def stream(self, method: str, params: JsonObject, **how: Any) -> AsyncGenerator[Reply]:
        """All that comes for a request; `request_of` says how it may be made."""
        return self.server.exchange(*request_of(next(self._numbers), method, params, **how))

    async def send(self, method: str, params: JsonObject, **how: Any) -> Reply:
        """The answer to such a request."""
        reply = await self.server.ask(*request_of(next(self._numbers), method, params, **how))
        if (result := reply.result or {}).get("resultType") == "task":
            self.made.append(str(result.get("taskId")))
        return reply

    def note(self, verdict: Verdict, probe: str, says: str, advice: str = "") -> None:
        """Note a finding."""
        self.report.findings.append(Finding(area=self.area, probe=probe, verdict=verdict, says=says, advice=advice))

    async def look(self, area: str, probe: Awaitable[None]) -> None:
        """Look at something of an area; a server that does not answer fails this probe, and not those after it."""
        self.area = area
        try:
            await probe
        except Silence as exc:
            self.fail("answer", f"the server did not answer: {exc}", "Look at the server's log.")

    def judge_refusal(self, probe: str, code: int, reply: Reply, *, must: bool = True) -> None:
        """Judge an answer that should be this error; `must` says whether the specification insists on it."""
        status = ERROR_CODE_HTTP_STATUS[code]
        if reply.code != code:
            advice = f"Answer with error {code}."
            if code == MISSING_REQUIRED_CLIENT_CAPABILITY and reply.code == -32003:
                advice = f"-32003 is the code of a draft; the released one is {code}."
            says = f"answered with {reply.summary}, not with error {code}"
            self.note("fail" if must else "warn", probe, says, advice)
        elif reply.status not in (None, status):
            # The schema says MUST of these two; of the others it is what clients expect.
            verdict = "fail" if code in (HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY) else "warn"
            self.note(verdict, probe, f"error {code} comes with HTTP {reply.status}", f"Send it with HTTP {status}.")
        else:
            self.ok(probe, f"refused with {code}" + ("" if reply.status is None else f" and HTTP {status}"))

    def judge_result(
        self, probe: str, reply: Reply, well: str, advice: str, flaws: Iterable[Flaw] = (), *, must: bool = True
    ) -> bool:
        """Judge an answer that should be a result, and that result; `advice` is for one that is none."""
        if reply.result is None:
            self.note("fail" if must else "warn", probe, f"answered with {reply.summary}", advice)
        else:
            self.judge(probe, flaws, well)
        return reply.result is not None

    def judge(self, probe: str, flaws: Iterable[Flaw], well: str) -> None:
        """Note what is wrong, or that nothing is."""
        for flaw in list(flaws) or [Flaw(well, "", "pass")]:
            self.note(flaw.verdict, probe, flaw.says, flaw.advice)
