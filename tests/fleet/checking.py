"""What must be so of every task that a client was promised, whatever has happened meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from mcp_tasks.model.record import JournalEntry
from tests.fleet.driving import Acknowledged, View
from tests.fleet.fleet import Pause
from tests.fleet.notes import Note


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of one task when all is over.

    Attributes:
        notes: What its runs wrote down.
        journal: What the store recorded of it.
    """

    task: Acknowledged
    notes: Sequence[Note]
    journal: Sequence[JournalEntry]


@dataclass(slots=True)
class Verdict:
    """What is wrong, with which task."""

    acknowledged: int = 0
    lost: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    stuck: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])
    late: list[str] = field(default_factory=list[str])
    """Runs that a stopped process finished after others had been given their tasks: allowed, and told apart."""

    @property
    def is_good(self) -> bool:
        """Whether all is as it must be."""
        return not (self.lost or self.doubled or self.stuck or self.wrong)

    @property
    def line(self) -> str:
        """All of it, in a line."""
        counts = f"{len(self.lost)} lost, {len(self.doubled)} doubled, {len(self.stuck)} stuck"
        wrong = f", {len(self.wrong)} wrong" if self.wrong else ""
        return f"chaos: {self.acknowledged} acknowledged, {counts}{wrong}"

    def details(self) -> Iterator[str]:
        """What is wrong, one line for each."""
        for name in ("lost", "doubled", "stuck", "wrong"):
            yield from (f"{name}: {what}" for what in getattr(self, name))


def judged(evidence: Sequence[Evidence], pauses: Sequence[Pause], lease: float) -> Verdict:
    """What the evidence says."""
    verdict = Verdict(acknowledged=len(evidence))
    for one in evidence:
        name = f"{one.task.job} ({one.task.id})"
        if one.task.is_lost:
            verdict.lost.append(f"{name}: a server said that there is no such task")
            continue
        verdict.stuck += [f"{name}: {what}" for what in _stuck(one)]
        verdict.doubled += [f"{name}: {what}" for what in _doubled(one)]
        verdict.wrong += [f"{name}: {what}" for what in _wrong(one)]
        verdict.late += [f"{name}: {what}" for what in _late(one, pauses, lease)]
    return verdict


def _finals(one: Evidence) -> list[View]:
    return [view for view in one.task.views if view.is_final]


def _stuck(one: Evidence) -> Iterator[str]:
    if one.task.outcome is None:
        yield "its client never heard how it ended"
    if not one.task.views:
        yield "no replica could show it"
    elif not one.task.views[-1].is_final:
        yield f"it has not ended: {one.task.views[-1].text}"


def _doubled(one: Evidence) -> Iterator[str]:
    yield from _two_ends(one)
    yield from _two_starts(one)
    yield from _two_records(one)


def _two_ends(one: Evidence) -> Iterator[str]:
    finals = _finals(one)
    if texts := {view.text for view in finals}:
        if len(texts) > 1:
            yield f"it has ended in several ways: {' and '.join(sorted(texts))}"
        # Asked for before that, an answer may have been on its way for long.
        later = [view for view in one.task.views if view.asked > finals[0].at and not view.is_final]
        if later:
            yield f"it had ended as {finals[0].status}, and then was {later[0].status}"
    if one.task.outcome is not None and finals and one.task.outcome != finals[-1].outcome:
        yield f"its client was told {one.task.outcome}, and now it is {finals[-1].outcome}"


def _two_starts(one: Evidence) -> Iterator[str]:
    starts = [note for note in one.notes if note.what == "start"]
    for attempt, times in Counter(note.attempt for note in starts).items():
        if times > 1:
            where = ", ".join(note.process for note in starts if note.attempt == attempt)
            yield f"run {attempt} was started {times} times: {where}"
    if one.task.call.kind == "once" and len(starts) > 1:
        yield f"it is not safe to run again, and was started {len(starts)} times"


def _two_records(one: Evidence) -> Iterator[str]:
    entries = [entry for entry in one.journal if entry.kind == "step"]
    times = Counter(entry.key for entry in entries)
    yield from (f"step {key} was recorded {number} times" for key, number in times.items() if number > 1)
    recorded = {entry.key: _value(entry) for entry in entries}
    for note in one.notes:
        if note.what == "step" and recorded.get(note.key) != note.value:
            yield f"in run {note.attempt} {note.key} gave {note.value}, and {recorded.get(note.key)} is recorded"
    if one.task.call.kind == "stepping" and one.task.outcome is not None and one.task.outcome[0] == "completed":
        values = one.task.outcome[1].split()
        if list(recorded.values()) != values:
            yield f"its result is of other steps than were recorded: {values}, {recorded}"


def _wrong(one: Evidence) -> Iterator[str]:
    outcome, call = one.task.outcome, one.task.call
    if outcome is None:
        return
    if call.kind == "stepping":
        if outcome[0] != "completed" or len(outcome[1].split()) != call.arguments["steps"]:
            yield f"it ended as {outcome}"
        return
    expected = _expected(one.task.job)[call.kind]
    if not any(outcome[0] == status and text in outcome[1] for status, text in expected):
        yield f"it ended as {outcome}, and only {expected} will do"


def _expected(job: str) -> Mapping[str, Sequence[tuple[str, str]]]:
    """How a task of each kind may end."""
    as_asked = [("completed", job)]
    return {
        "quick": as_asked,
        "long": as_asked,
        "sleeping": as_asked,
        "asking": [("completed", f"{job}: word-{job}")],
        "failing": [("completed", f"{job} failed")],
        "endless": [("cancelled", "")],
        "poison": [("failed", "process")],
        "once": [*as_asked, ("failed", "nterrupted")],
    }


def _late(one: Evidence, pauses: Sequence[Pause], lease: float) -> Iterator[str]:
    """Work that was done to its end, and did not count."""
    for note in one.notes:
        was_superseded = any(other.what == "start" and other.attempt > note.attempt for other in one.notes)
        did_not_count = one.task.outcome is not None and one.task.outcome[0] != "completed"
        if note.what == "end" and (was_superseded or did_not_count):
            stopped = [
                pause for pause in pauses if pause.process == note.process and pause.ended - pause.begun > lease * 0.6
            ]
            why = "after it had been stopped" if stopped else "and lost before that was recorded"
            yield f"run {note.attempt} was finished by {note.process} {why}"


def _value(entry: JournalEntry) -> object:
    """What a step gave."""
    return cast(Mapping[str, object], entry.value)["value"]
