"""The tables of `bench.stall`: trees side by side, printed as they are measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.watched import Stalls


@dataclass(frozen=True)
class Numbers:
    """Milliseconds that a loop was late in several rounds.

    Attributes:
        worst: The longest stall.
        median: The median of each round's longest.
        own: The same of what was the process's own CPU.
        p99: Of all milliseconds.
    """

    worst: float
    median: float
    own: float
    p99: float

    @classmethod
    def of(cls, rounds: Sequence[Stalls]) -> Numbers:
        """From what was seen in each round."""
        late = sorted(one for stalls in rounds for one in stalls.late)
        longest = [stalls.worst for stalls in rounds]
        return cls(
            worst=max(longest),
            median=statistics.median(longest),
            own=statistics.median(stalls.own for stalls in rounds),
            p99=late[len(late) * 99 // 100],
        )


@dataclass(frozen=True)
class Row:
    """One case, by the name of the tree."""

    name: str
    title: str
    numbers: Mapping[str, Numbers]


@dataclass(frozen=True)
class Start:
    """A start: its stalls, the most memory it had in bytes, and the seconds of CPU and until it took connections."""

    row: Row
    peak: Mapping[str, int]
    cpu: Mapping[str, float]
    ready_after: Mapping[str, float]


@dataclass(frozen=True)
class Ratio:
    """Microseconds of CPU for a poll of a task with small and with large arguments."""

    tree: str
    small: float
    large: float


class Report:
    """Prints what comes, and keeps it."""

    def __init__(self, facts: Mapping[str, str], trees: Sequence[str]) -> None:
        self._trees = trees
        self._kept: dict[str, Any] = {"machine": dict(facts), "rows": [], "starts": [], "ratios": []}

    def floor(self, rows: Iterable[Row]) -> None:
        """A bare server."""
        self._table("Stalls of a bare SDK server, for comparison", ["bare SDK"], rows)

    def rows(self, rows: Iterable[Row]) -> None:
        """Cases, tree by tree."""
        self._table("Stalls of a server with tasks", self._trees, rows)

    def starts(self, starts: Iterable[Start]) -> None:
        """Starts: stalls, then memory and CPU."""
        seen: list[Start] = []

        def rows() -> Iterable[Row]:
            for start in starts:
                seen.append(start)
                yield start.row

        self._table("Stalls from the start of the process on", self._trees, rows())
        heads = (f"{tree + ': peak MiB':>22}{'CPU s':>8}{'ready s':>9}" for tree in self._trees)
        print(f"\nThe same starts\n  {'':42}" + "".join(heads))
        for start in seen:
            cells = (
                f"{start.peak[tree] / 2**20:22.0f}{start.cpu[tree]:8.2f}{start.ready_after[tree]:9.2f}"
                for tree in self._trees
            )
            print(f"  {start.row.title:42}" + "".join(cells), flush=True)
            self._kept["starts"].append(asdict(start))

    def ratios(self, ratios: Iterable[Ratio]) -> None:
        """What a poll of a large task costs beside one of a small task."""
        print(f"\nCPU of a poll by the size of the arguments\n  {'':42}{'small µs':>10}{'3 MB µs':>10}{'ratio':>8}")
        for ratio in ratios:
            print(
                f"  {ratio.tree:42}{ratio.small:10.0f}{ratio.large:10.0f}{ratio.large / ratio.small:8.2f}", flush=True
            )
            self._kept["ratios"].append(asdict(ratio))

    def write(self, path: Path) -> None:
        """Everything that was measured. Stalls in milliseconds, memory in bytes, CPU in microseconds or seconds."""
        path.write_text(json.dumps(self._kept, indent=2, ensure_ascii=False) + "\n")

    def _table(self, title: str, trees: Sequence[str], rows: Iterable[Row]) -> None:
        print(
            f"\n{title}\n  {'':42}"
            + "".join(f"{tree + ': worst ms':>22}{'median':>9}{'CPU':>9}{'p99':>9}" for tree in trees)
        )
        for row in rows:
            numbers = (row.numbers[tree] for tree in trees)
            cells = (f"{one.worst:22.1f}{one.median:9.1f}{one.own:9.1f}{one.p99:9.1f}" for one in numbers)
            print(f"  {row.title:42}" + "".join(cells), flush=True)
            self._kept["rows"].append(asdict(row))
