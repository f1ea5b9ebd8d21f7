"""Judging what the suite found: known failures, regressions, and the table a person reads. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .suite import Check, Status

# From best to worst; of a check that occurs more than once, the worst occurrence speaks for it.
_ORDER = (Status.SUCCESS, Status.INFO, Status.SKIPPED, Status.WARNING, Status.FAILURE)


@dataclass(frozen=True, kw_only=True)
class ExpectedFailure:
    """A check that is known to fail, and why."""

    scenario: str
    check: str
    reason: str


def load_expected(file: Path) -> list[ExpectedFailure]:
    return [ExpectedFailure(**entry) for entry in json.loads(file.read_text())]


def _excuses(entry: ExpectedFailure, check: Check) -> bool:
    return (entry.scenario, entry.check) == (check.scenario, check.id)


def problems(checks: Sequence[Check], expected: Sequence[ExpectedFailure]) -> list[str]:
    """Why this run is not good, one line each: failures nobody expected, and stale expectations.

    An entry whose check did not fail is stale even if the check is absent: left in the file it would excuse a
    future failure that nobody has looked at. Entries of scenarios that were not run are left alone.
    """
    failed = [check for check in checks if check.status is Status.FAILURE]
    ran = {check.scenario for check in checks}
    unexpected = [check for check in failed if not any(_excuses(entry, check) for entry in expected)]
    stale = [
        entry for entry in expected if entry.scenario in ran and not any(_excuses(entry, check) for check in failed)
    ]
    return [f"failed: {check.scenario} / {check.id}: {check.message}" for check in unexpected] + [
        f"stale: {entry.scenario} / {entry.check} does not fail any more; remove its entry ({entry.reason})"
        for entry in stale
    ]


def _worst(checks: Iterable[Check]) -> Mapping[tuple[str, str, str], Check]:
    worst: dict[tuple[str, str, str], Check] = {}
    for check in checks:
        key = (check.scenario, check.id, check.name)
        if key not in worst or _ORDER.index(check.status) > _ORDER.index(worst[key].status):
            worst[key] = check
    return worst


def regressions(before: Iterable[Check], after: Iterable[Check]) -> list[str]:
    """What passed before and does not pass after, one line each; a check that is gone has not passed."""
    then, now = _worst(before), _worst(after)
    lost: list[str] = []
    for key, check in then.items():
        found = now.get(key)
        if check.status is Status.SUCCESS and (found is None or found.status is not Status.SUCCESS):
            status, message = ("absent", "") if found is None else (found.status.value, found.message)
            where = f"{check.scenario} / {check.id} ({check.name})"
            lost.append(f"passed before, now {status}: {where}: {message}")
    return lost


def _row(name: str, checks: Sequence[Check], expected: Sequence[ExpectedFailure]) -> tuple[str, ...]:
    def count(status: Status) -> int:
        return sum(check.status is status for check in checks)

    failed = [check for check in checks if check.status is Status.FAILURE]
    known = sum(any(_excuses(entry, check) for entry in expected) for check in failed)
    numbers = (count(Status.SUCCESS), len(failed) - known, known)
    return (name, *(str(number) for number in (*numbers, count(Status.WARNING), count(Status.SKIPPED))))


def table(checks: Sequence[Check], expected: Sequence[ExpectedFailure] = ()) -> str:
    """Passed, failed, known failures, warnings and skipped: a line per scenario and the total."""
    scenarios: dict[str, list[Check]] = {}
    for check in checks:
        scenarios.setdefault(check.scenario, []).append(check)
    rows = [("scenario", "passed", "failed", "known", "warned", "skipped")]
    rows += [_row(name, of, expected) for name, of in scenarios.items()]
    rows.append(_row(f"total ({len(scenarios)})", checks, expected))
    wide = max(len(row[0]) for row in rows)
    return "\n".join(row[0].ljust(wide) + "".join(cell.rjust(9) for cell in row[1:]) for row in rows)
