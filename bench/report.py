"""Rows as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.cases import CONNECTIONS, Install, Way
from bench.memory import Growth
from bench.rounds import Row
from bench.servers import Mode

_INSTALLS: Mapping[Install, str] = {
    "stock": "Stock install (asyncio, h11)",
    "fast": "With the extra fast on both sides (uvloop, httptools)",
}
_MODES: Mapping[Mode, str] = {"sse": "SSE responses (the SDK's default)", "json": "JSON responses"}
_WAYS: Mapping[Way | None, str] = {
    None: "",
    "short": "the short way",
    "long": "through the SDK (short_way=False)",
}
_HEAD = f"{'CPU µs':>9}{'x bare':>8}{'quartiles':>14}{'p50 ms':>9}{'p99 ms':>9}{'polls':>7}   target"


def print_facts(facts: Mapping[str, str]) -> None:
    """The machine, one fact a line."""
    for name, fact in facts.items():
        print(f"{name + ':':9}{fact}")


def print_rows(rows: Sequence[Row]) -> None:
    """One install's table. CPU is the server's, for one operation; a wait is the client's, for one operation too."""
    install, mode = rows[0].install, rows[0].mode
    print(f"\n{_INSTALLS[install]}, {_MODES[mode]}, {CONNECTIONS} connections, medians of {rows[-1].rounds} rounds")
    print(f"  {'':34}{_HEAD}")
    way: Way | None = None
    for row in rows:
        if row.way != way:
            way = row.way
            print(f"  {_WAYS[way]}")
        quartiles = f"{row.ratio_low:.2f}..{row.ratio_high:.2f}"
        polls = f"{row.polls:.1f}" if row.polls else ""
        numbers = f"{row.cpu:9.0f}{row.ratio:8.2f}{quartiles:>14}{row.p50:9.2f}{row.p99:9.2f}{polls:>7}"
        target = "" if row.limit is None else f"≤ {row.limit:g}  {row.verdict}"
        print(f"  {'  ' if way else ''}{row.title:{32 if way else 34}}{numbers}   {target}".rstrip(), flush=True)


def print_markdown(rows: Sequence[Row]) -> None:
    """The table of docs/performance.md: both installs side by side, and in bold what misses its target."""
    print("\n| | stock µs | ratio | target | `fast` µs | ratio | target |\n|---|---|---|---|---|---|---|")
    cells: dict[str, dict[Install, str]] = {}
    for row in rows:
        title = row.title if row.way is None else f"{row.title}, {_WAYS[row.way]}"
        cells.setdefault(title, {})[row.install] = _cells(row)
    for title, by_install in cells.items():
        print(f"| {title} | {' | '.join(by_install.get(install, ' |  | ') for install in _INSTALLS)} |")


def _cells(row: Row) -> str:
    ratio = f"**{row.ratio:.2f}**" if row.verdict == "MISSED" else f"{row.ratio:.2f}"
    polls = f", {row.polls:.1f} polls" if row.polls else ""
    return f"{row.cpu:.0f} | {ratio}{polls} | {'' if row.limit is None else f'{row.limit:g}'}"


def print_answered(answered: int, handed_over: Mapping[str, int]) -> None:
    """How many of the requests for tasks went the short way."""
    every = answered + sum(handed_over.values())
    reasons = "".join(f", {reason} {count:,}" for reason, count in handed_over.items())
    print(f"  the short way answered {answered:,} of {every:,} requests ({answered / every:.2%}){reasons}")


def print_memory(growths: Sequence[Growth]) -> None:
    """What a thousand tasks add to the server's resident memory."""
    print("\nMemory of the server for 1,000 tasks more")
    for growth in growths:
        print(f"  {growth.title:30}{growth.bytes_per_task * 1000 / 2**20:9.2f} MiB")


def write_json(path: Path, facts: Mapping[str, str], rows: Sequence[Row], growths: Sequence[Growth]) -> None:
    """Everything that was measured. CPU in microseconds, waits in milliseconds, memory in bytes."""
    document = {
        "machine": facts,
        "rows": [{**asdict(row), "verdict": row.verdict} for row in rows],
        "memory": [asdict(growth) for growth in growths],
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
