"""What a task costs, in the server's CPU, as a multiple of a plain call on a bare SDK server in the same run.

    python -m bench                          everything, in under four minutes
    python -m bench --quick                  the same with fewer rounds, in under one
    python -m bench --only get-working       one case; may be given several times

Durable on SQLite with synchronous=FULL. Server and client are on one machine, over one keep-alive connection.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NoReturn

from bench.cases import CASES, rigged
from bench.machine import machine_facts
from bench.memory import Growth, measure_memory
from bench.report import print_facts, print_memory, print_rows, write_json
from bench.rounds import Plan, Row, measure_mode
from bench.servers import Mode

MEMORY = "memory"
MODES: Sequence[Mode] = ("sse", "json")


def main() -> None:
    """Measure and print."""
    options = _options()
    if not sys.platform.startswith("linux"):
        sys.exit("the bench reads the CPU clock and the memory of other processes as Linux shows them")
    # The servers are ended on the way out, which the default way of ending would skip.
    signal.signal(signal.SIGTERM, _exit)
    wanted: Collection[str] = options.only or [MEMORY, *(case.name for case in CASES)]
    with tempfile.TemporaryDirectory(prefix="mcp-tasks-bench-", dir=options.dir) as name:
        folder = Path(name)
        facts = machine_facts(folder)
        print_facts(facts)
        rows = [row for mode in MODES for row in _measure_mode(mode, folder, wanted, quick=options.quick)]
        growths = _measure_memory(folder, wanted, quick=options.quick)
    if options.json is not None:
        write_json(options.json, facts, rows, growths)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds")
    parser.add_argument(
        "--only", action="append", choices=[*(case.name for case in CASES), MEMORY], help="measure this and no other"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument(
        "--dir", type=Path, help="where to put the SQLite files; a file system in memory proves nothing"
    )
    return parser.parse_args()


def _measure_mode(mode: Mode, folder: Path, wanted: Collection[str], *, quick: bool) -> list[Row]:
    cases = [case for case in CASES if case.name in wanted]
    if not cases:
        return []
    # Two modes and the memory have to fit into the time that is promised, on a slow machine too.
    until = time.monotonic() + (12 if quick else 75)
    plan = Plan(rounds=10, operations=60, until=until) if quick else Plan(rounds=40, operations=100, until=until)
    with rigged(mode, folder) as rig:
        rows = measure_mode(rig, mode, cases, plan)
    print_rows(mode, rows)
    return rows


def _measure_memory(folder: Path, wanted: Collection[str], *, quick: bool) -> list[Growth]:
    if MEMORY not in wanted:
        return []
    growths = measure_memory(folder, tasks=1000 if quick else 2000)
    print_memory(growths)
    return growths


def _exit(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
