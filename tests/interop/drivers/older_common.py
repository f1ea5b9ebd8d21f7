"""What the Python drivers of the older era share; standard library only, since each runs in a virtualenv of its own.

They are told what to do in one JSON argument:

    {url} or {command: [...]}   the server, over Streamable HTTP or over stdio
    {pid}                       a file with its process id; at the end of the first visit it is killed
    {left}                      what the first visit left behind: this is the second
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from common import Scenario, run_all

PLAN: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
RELATED = "io.modelcontextprotocol/related-task"


async def visit(
    version: str,
    scenarios: Mapping[str, Scenario],
    leave: Scenario | None,
    resume: Callable[[Any], Awaitable[dict[str, Any]]] | None,
) -> None:
    """One visit: all scenarios at the same time; the first visit leaves tasks behind, and a server that was killed."""
    left = PLAN.get("left")
    if left is not None:
        assert resume is not None
        outcomes = await run_all({"resume": lambda: resume(left)})
    else:
        outcomes = await run_all(scenarios)
    if left is None and leave is not None and "pid" in PLAN:
        outcomes.update(await run_all({"left": leave}))
        kill_server()
    print(json.dumps({"version": version, **outcomes}), flush=True)
    # The server may be gone, and nobody waits for a client to notice.
    os._exit(0)


def kill_server() -> None:
    """As `kill -9` does."""
    with suppress(ProcessLookupError):  # a scenario may have been the one that did it
        os.kill(int(Path(PLAN["pid"]).read_text()), signal.SIGKILL)


def related(meta: Mapping[str, Any] | None) -> str | None:
    """The task that a message says it belongs to."""
    about: Mapping[str, str] = (meta or {}).get(RELATED) or {}
    return about.get("taskId")
