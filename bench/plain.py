"""What a plain tool costs on a server with tasks, over the same tool on a bare SDK server.

    python -m bench.plain                              this tree, on the wire of 2026-07-28
    python -m bench.plain --era older                  on that of 2025-11-25: calls in a session
    python -m bench.plain --src ../before/src          another one; may be given several times

How it is measured: see `side_by_side`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.cases import PLAIN
from bench.client import older_tool_call, tool_call
from bench.machine import machine_facts
from bench.report import print_facts
from bench.servers import ROOT, Mode, Server, bare_server, task_server
from bench.side_by_side import BARE, CONTROL, MODES, OPERATIONS, Contender, add_options, begin, compare

LIMIT = 1.05


def main() -> None:
    """Measure and print."""
    options = _options()
    begin()
    starts, rounds = (3, 40) if options.quick else (options.starts, options.rounds)
    sources = [path.resolve() for path in options.src or [ROOT / "src"]]
    with tempfile.TemporaryDirectory(prefix="mcp-tasks-bench-", dir=options.dir) as name:
        folder = Path(name)
        print_facts(machine_facts(folder))
        for mode in options.mode or MODES:
            print(f"\n{options.era} era, {mode}: {starts} starts, {rounds} rounds of {OPERATIONS} calls each")
            compare(_contenders(mode, options.era, folder, sources), starts=starts, rounds=rounds)


def _contenders(mode: Mode, era: str, folder: Path, sources: Sequence[Path]) -> dict[str, Contender]:
    def call(server: Server) -> bytes:
        """On the older wire it belongs to a session, which is begun here."""
        return tool_call(PLAIN) if era == "newer" else older_tool_call(server.connection, PLAIN)

    bare = Contender(partial(bare_server, mode), call)
    ours = {str(src): Contender(partial(task_server, mode, folder, src), call, LIMIT) for src in sources}
    return {BARE: bare, CONTROL: bare, **ours}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.plain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--src", type=Path, action="append", help="a folder with mcp_tasks in it; this tree's")
    add_options(parser, starts=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
