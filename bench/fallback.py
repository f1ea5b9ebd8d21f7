"""What a quick call of a marked tool costs whose caller speaks no tasks, over the same call on a bare SDK server.

    python -m bench.fallback                           on the wire of 2026-07-28
    python -m bench.fallback --era older               on that of 2025-11-25: calls in a session

The tool runs as a task, and the call waits for it. Beside it, on the same wire: the same tool where its author wants
plain calls (`fallback="inline"`), and a tool that is not marked on a server whose other tool is. How it is measured:
see `side_by_side`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.cases import PLAIN
from bench.client import older_tool_call, plain_tool_call
from bench.machine import machine_facts
from bench.report import print_facts
from bench.servers import Mode, Server, bare_server, task_server
from bench.side_by_side import BARE, CONTROL, MODES, OPERATIONS, Contender, add_options, begin, compare

MARKED = "noop"
"""The tool that may be a task: it does what the other one does."""

UNMARKED_LIMIT = 1.05


def main() -> None:
    """Measure and print."""
    options = _options()
    begin()
    starts, rounds = (2, 30) if options.quick else (options.starts, options.rounds)
    with tempfile.TemporaryDirectory(prefix="mcp-tasks-bench-", dir=options.dir) as name:
        folder = Path(name)
        print_facts(machine_facts(folder))
        for mode in options.mode or MODES:
            print(f"\n{options.era} era, {mode}: {starts} starts, {rounds} rounds of {OPERATIONS} calls each")
            compare(_contenders(mode, options.era, folder), starts=starts, rounds=rounds)


def _contenders(mode: Mode, era: str, folder: Path) -> dict[str, Contender]:
    ours = partial(task_server, mode, folder)
    bare = Contender(partial(bare_server, mode), _call(era, PLAIN))
    marked = _call(era, MARKED)
    return {
        BARE: bare,
        CONTROL: bare,
        "not marked, SQLite": Contender(ours, _call(era, PLAIN), UNMARKED_LIMIT),
        'marked, fallback="inline", SQLite': Contender(partial(ours, flags=["--inline"]), marked),
        "marked, memory": Contender(partial(ours, memory=True), marked),
        "marked, SQLite": Contender(ours, marked),
    }


def _call(era: str, tool: str) -> Callable[[Server], bytes]:
    """The call that is measured; on the older wire it belongs to a session, which is begun then."""
    if era == "newer":
        return lambda server: plain_tool_call(tool)
    return lambda server: older_tool_call(server.connection, tool)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fallback", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, starts=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
