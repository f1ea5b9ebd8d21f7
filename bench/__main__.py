"""What a task costs, in the server's CPU, as a multiple of a plain call on a bare SDK server in the same run.

    python -m bench                          everything, in about five minutes
    python -m bench --quick                  the same with fewer rounds, in about one
    python -m bench --only get-working       one case; may be given several times
    python -m bench --install fast           one install; --mode json for JSON responses
    python -m bench --profile get-working    where the server's time goes in one case

Durable on SQLite with synchronous=FULL. Server and client are on one machine, over 16 keep-alive connections that
always have an operation under way; no server has an access log. "Poll to the result" asks for a task 20 ms after the
last answer until the answer has the result, and says how often it asked.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from bench.cases import CASES, Case, Install, Way, rigged, ways
from bench.client import BenchError
from bench.machine import machine_facts
from bench.memory import Growth, measure_memory
from bench.profiling import profile
from bench.report import print_answered, print_facts, print_markdown, print_memory, print_rows, write_json
from bench.rounds import Plan, Row, measure
from bench.servers import FAST, Mode

MEMORY = "memory"
INSTALLS: Sequence[Install] = ("stock", "fast")
NAMES = list(dict.fromkeys(case.name for case in CASES))


def main() -> None:
    """Measure and print."""
    options = _options()
    if not sys.platform.startswith("linux"):
        sys.exit("the bench reads the CPU clock and the memory of other processes as Linux shows them")
    installs = [options.install] if options.install else INSTALLS
    if "fast" in installs and not FAST.exists():
        raise BenchError(f"nothing is in {FAST}: `make setup` puts uvloop and httptools there")
    with tempfile.TemporaryDirectory(prefix="mcp-tasks-bench-", dir=options.dir) as name:
        folder = Path(name)
        facts = machine_facts(folder)
        print_facts(facts)
        if options.profile is not None:
            profile(_profiled(options.profile, options.way), options.mode, installs[0], folder)
            return
        wanted: Collection[str] = options.only or [MEMORY, *NAMES]
        cases = _cases(wanted, options.way)
        rows = [row for one in installs for row in _measure(one, options.mode, cases, folder, quick=options.quick)]
        growths = _measure_memory(folder, wanted, quick=options.quick)
    if options.markdown:
        print_markdown(rows)
    if options.json is not None:
        write_json(options.json, facts, rows, growths)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds")
    parser.add_argument("--only", action="append", choices=[*NAMES, MEMORY], help="measure this and no other")
    parser.add_argument("--install", choices=INSTALLS, help="this and no other")
    parser.add_argument("--way", choices=("short", "long"), help="this and no other")
    parser.add_argument("--mode", choices=("sse", "json"), default="sse", help="how the servers answer")
    parser.add_argument("--profile", choices=NAMES, help="where the time goes in this case, in place of a measurement")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/performance.md at the end, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument(
        "--dir", type=Path, help="where to put the SQLite files; a file system in memory proves nothing"
    )
    return parser.parse_args()


def _cases(names: Collection[str], way: Way | None) -> list[Case]:
    """Those that are wanted, of those that this tree has."""
    known = ways()
    for missing in sorted({case.way for case in CASES} - set(known)):
        print(f"note:    this tree has no way {missing!r}, which is left out")
    return [case for case in CASES if case.name in names and case.way in known and way in (None, case.way)]


def _profiled(name: str, way: Way | None) -> Case:
    cases = _cases([name], way)
    if not cases:
        raise BenchError(f"this tree cannot do {name} the {way} way")
    return cases[0]


def _measure(install: Install, mode: Mode, cases: Sequence[Case], folder: Path, *, quick: bool) -> list[Row]:
    if not cases:
        return []
    # Both installs and the memory have to fit into the time that is promised, on a slow machine too.
    until = time.monotonic() + (40 if quick else 130)
    plan = Plan(rounds=6, operations=96, until=until) if quick else Plan(rounds=40, operations=128, until=until)
    with rigged(mode, install, folder, cases) as rig:
        rows = measure(rig, mode, install, cases, plan)
        print_rows(rows)
        if "short" in rig.ours:
            print_answered(*rig.ours["short"].answered())
    return rows


def _measure_memory(folder: Path, wanted: Collection[str], *, quick: bool) -> list[Growth]:
    if MEMORY not in wanted:
        return []
    growths = measure_memory(folder, tasks=1000 if quick else 2000)
    print_memory(growths)
    return growths


if __name__ == "__main__":
    main()
