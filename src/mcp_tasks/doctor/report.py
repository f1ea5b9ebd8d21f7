"""Findings, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

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
