"""Clients of the older era: how they reach our server, and what happens to it between their two visits."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness.processes import ROOT, send
from harness.serving import serving_command

from .driving import Outcomes, drive

WAYS = ("stdio", "sse", "json")
"""Over stdio, and over Streamable HTTP with either kind of answer."""
OLDER_CLIENTS = {
    "typescript": ("npm", "older_sdk.mjs"),
    "python": ("python_sdk", "older_sdk.py"),
    "ext_tasks_v1": ("npm", "older_ext_tasks.mjs"),
    "strands_older": ("older_strands", "older_strands.py"),
}
"""For each client what it needs installed, and its driver."""
VISIT_LIMIT = 90.0


def our_command(directory: Path, *options: str) -> list[str]:
    """The command of our server, whose file and process id are in `directory`."""
    files = ["--db", str(directory / "tasks.db"), "--pid", str(directory / "pid")]
    # Clients that start a server hand it little of their environment.
    ours = ["env", f"PYTHONPATH={ROOT / 'src'}:{ROOT}", sys.executable, "-m", "tests.interop.our_server"]
    return [*ours, *files, *options]


@contextmanager
def reached(directory: Path, way: str, *options: str) -> Generator[dict[str, Any]]:
    """Our server as a plan for a driver: where it is, or how to start it."""
    if way == "stdio":
        yield {"command": our_command(directory, *options), "cwd": str(ROOT)}
        return
    body = ("--json",) if way == "json" else ()
    with serving_command([*our_command(directory, *options), "--port", "{port}", *body]) as url:
        yield {"url": url}


class Ours:
    """Our server as the Inspector reaches it; killed, it is there again with the same file.

    Attributes:
        target: Its URL, or the command that starts it.
    """

    def __init__(self, directory: Path, way: str, *options: str) -> None:
        self.directory = directory
        self.target: list[str] = []
        self._way = way
        self._options = options
        self._running = ExitStack()

    def start(self) -> None:
        """Start it, if that is not for the client to do."""
        plan = self._running.enter_context(reached(self.directory, self._way, *self._options))
        self.target = plan["command"] if self._way == "stdio" else [plan["url"]]

    def kill(self) -> None:
        """As `kill -9` does, and start it again."""
        pid = self.directory / "pid"
        send(int(pid.read_text()))
        pid.unlink()
        self.stop()
        self.start()

    def stop(self) -> None:
        """Stop it."""
        self._running.close()


@contextmanager
def ours(way: str, *options: str) -> Generator[Ours]:
    """Our server while the block lasts."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        server = Ours(Path(place), way, *options)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def visit(driver: Sequence[str], way: str) -> Outcomes:
    """Both visits of a client: at the end of the first it kills the server, the second finds it started again."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        directory = Path(place)
        with reached(directory, way) as server:
            first = _drive(driver, {**server, "pid": str(directory / "pid")})
        left = first.get("left")
        if left is None or "running" not in left:
            return first
        with reached(directory, way) as server:
            second = _drive(driver, {**server, "left": left})
    return {**first, "resume": second["resume"], "wire_again": second.get("wire")}


def _drive(driver: Sequence[str], plan: dict[str, Any]) -> Outcomes:
    return drive(driver, [json.dumps(plan)], limit=VISIT_LIMIT)
