"""How large and how quick the project is: `make numbers`.

Sizes are counted in the source. Times are those of the last runs: `make check` and `make test` are started through
`python -m bench.numbers --time NAME -- COMMAND`, which writes down how long the command took, and pytest writes what it
ran.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
ROOMS = ("model", "runtime", "protocol")
"""The rooms whose coverage is measured."""

SOURCES = {".py", ".sql", ".lua", ".toml"}


def size_of(*folders: Path) -> str:
    """How many files of source these folders have, and lines in them."""
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in SOURCES]
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in files)
    return f"{lines:,} lines in {len(files)} files"


def tests_of(report: Path) -> tuple[int, float] | None:
    """How many tests a run had, and its seconds, by the report that pytest wrote."""
    if not report.is_file():
        return None
    # Our own file, from the run before.
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    sums = [(int(suite.attrib["tests"]), float(suite.attrib["time"])) for suite in suites]
    return sum(tests for tests, _ in sums), sum(seconds for _, seconds in sums)


def coverage_of(report: Path) -> dict[str, str]:
    """How much of each room is covered, and how many lines and branches are not."""
    if not report.is_file():
        return {}
    files: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))["files"]
    return {room: _covered([file["summary"] for name, file in files.items() if f"/{room}/" in name]) for room in ROOMS}


def _covered(summaries: Sequence[dict[str, int]]) -> str:
    there = sum(each["num_statements"] + each["num_branches"] for each in summaries)
    missing = sum(each["missing_lines"] + each["missing_branches"] for each in summaries)
    return f"{100 * (there - missing) / max(there, 1):.1f} %, {missing} lines and branches not covered"


def timed(name: str, command: Sequence[str], cache: Path) -> int:
    """Run a command, write down how long it took, and give back how it ended."""
    start = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    seconds = round(time.monotonic() - start, 1)
    cache.mkdir(exist_ok=True)
    (cache / f"time-{name}.json").write_text(json.dumps({"seconds": seconds, "green": code == 0}), encoding="utf-8")
    print(f"make {name}: {seconds:.0f} seconds, {'green' if code == 0 else 'red'}")
    return code


def time_of(name: str, cache: Path) -> str:
    """How long a target took when it was last made."""
    kept = cache / f"time-{name}.json"
    if not kept.is_file():
        return "not made yet"
    run: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    return f"{run['seconds']:.0f} s, {'green' if run['green'] else 'red'}"


def report(root: Path) -> list[tuple[str, str]]:
    """Every number, with its name."""
    package, cache = root / "src" / "mcp_tasks", root / ".cache"
    rows = [("src/mcp_tasks", size_of(package)), ("tests and harness", size_of(root / "tests", root / "harness"))]
    for name in ("unit", "everything"):
        run = tests_of(cache / f"{name}.xml")
        if run is not None:
            tests, seconds = run
            rows.append(
                (f"tests ({name})", f"{tests} in {seconds:.0f} s, {60 * tests / max(seconds, 0.001):.0f} a minute")
            )
    rows += [(f"make {name}", time_of(name, cache)) for name in ("check", "test")]
    covered = coverage_of(cache / "covered.json")
    return rows + [(f"coverage of {room}", covered.get(room, "not measured yet")) for room in ROOMS]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.numbers", description=__doc__)
    parser.add_argument("--time", metavar="NAME", help="run the command, and write down how long it took")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args(arguments)
    if options.time:
        return timed(options.time, options.command, ROOT / ".cache")
    for name, value in report(ROOT):
        print(f"{name:<30} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
