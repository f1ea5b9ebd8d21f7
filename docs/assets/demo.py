"""The demo's server, and `mcp-tasks` beside it, for what is recorded at a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import sample

from harness.forking import fork
from harness.ports import listens
from harness.processes import end, until_ready


@contextmanager
def demo_server(folder: Path, port: int) -> Generator[None]:
    """The demo's server on this port, while the block lasts."""
    arguments = ("--port", str(port), "--db", str(folder / "tasks.db"), "--log", str(folder / "log"))
    server = fork("examples.demo_server", *arguments)
    try:
        until_ready(server, partial(listens, port), what="the demo's server")
        yield
    finally:
        end(server)


def four_digits() -> int:
    """A free port that is as long as the one that the docs show."""
    return next(port for port in sample(range(8001, 10000), 1999) if not listens(port))


def environment_in(folder: Path) -> Mapping[str, str]:
    """The environment of somebody who has nothing but `mcp-tasks`, and no tasks yet."""
    return {
        "PATH": f"{folder}:/usr/bin:/bin",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
    }


def put_command_into(folder: Path) -> None:
    """`mcp-tasks`, as it is after an installation."""
    command = folder / "mcp-tasks"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m mcp_tasks "$@"\n')
    command.chmod(0o755)
