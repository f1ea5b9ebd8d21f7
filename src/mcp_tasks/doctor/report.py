"""Findings of the probes, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Verdict: TypeAlias = Literal["pass", "warn", "fail", "skip"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one probe found.

    Attributes:
        probe: What was looked at, in a few words.
        says: What was found, in one sentence.
        advice: What to do about it.
    """

    area: str
    probe: str
    verdict: Verdict
    says: str
    advice: str = ""

    def to_json(self) -> Mapping[str, Any]:
        """The finding as `--output json` prints it."""
        return {key: value for key, value in asdict(self).items() if value}


class Report:
    """Findings in the order they were made.

    Attributes:
        unexamined: Why nothing of the server's tasks was looked at, though nothing is wrong; empty if something was.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.unexamined: str = ""

    def add(self, area: str, probe: str, verdict: Verdict, says: str, advice: str = "") -> None:
        """Note a finding."""
        self.findings.append(Finding(area=area, probe=probe, verdict=verdict, says=says, advice=advice))

    def count(self, verdict: Verdict) -> int:
        """How many findings have this verdict."""
        return sum(finding.verdict == verdict for finding in self.findings)


class Area:
    """Findings of one area."""

    def __init__(self, report: Report, name: str) -> None:
        self._report = report
        self._name = name

    def ok(self, probe: str, says: str) -> None:
        """All is well."""
        self._report.add(self._name, probe, "pass", says)

    def warn(self, probe: str, says: str, advice: str) -> None:
        """It works, but not for everybody or not as it should."""
        self._report.add(self._name, probe, "warn", says, advice)

    def fail(self, probe: str, says: str, advice: str) -> None:
        """The protocol says otherwise."""
        self._report.add(self._name, probe, "fail", says, advice)

    def skip(self, probe: str, says: str, advice: str = "") -> None:
        """It could not be looked at."""
        self._report.add(self._name, probe, "skip", says, advice)
