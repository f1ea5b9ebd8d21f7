"""The command line and its servers as processes."""

import json
import shlex
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from harness.forking import Forked, fork, piped
from harness.processes import ENVIRONMENT, ROOT
from harness.serving import ServerProcess

T = TypeVar("T")

LIMIT = 40.0
"""Seconds that a command may take. Far more than it does: reached only by a failing test."""


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def until(look: Callable[[], T], wanted: Callable[[T], object]) -> T:
    end = time.monotonic() + LIMIT
    while not wanted(found := look()):
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


class Cli:
    """`mcp-tasks` with a ledger of its own."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger.db"
        # A test runner says how wide its own terminal is.
        kept = {key: value for key, value in ENVIRONMENT.items() if key not in ("COLUMNS", "LINES")}
        self.environment = {**kept, "MCP_TASKS_LEDGER": str(self.ledger), "HOME": str(folder), "TERM": "xterm-256color"}

    def begin(self, arguments: Sequence[str], files: Sequence[int], cwd: Path = ROOT) -> Forked:
        stdin, stdout, stderr = files
        return fork(
            "mcp_tasks",
            *arguments,
            env=self.environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            imported=_imported(),
            session=True,
        )

    def __call__(self, *arguments: str, stdin: str = "", cwd: Path = ROOT) -> Done:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin.encode())
            given.seek(0)
            files = [given.fileno(), out.fileno(), err.fileno()]
            code = self.begin(arguments, files, cwd).wait(LIMIT)
            out.seek(0)
            err.seek(0)
            return Done(code, out.read().decode(), err.read().decode())

    def together(self, *commands: Sequence[str]) -> list[Done]:
        def run(arguments: Sequence[str]) -> Done:
            return self(*arguments)

        with ThreadPoolExecutor(len(commands)) as pool:
            return list(pool.map(run, commands))

    def json(self, *arguments: str, code: int = 0) -> Any:
        done = self(*arguments, "--output", "json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def start(self, url: str, *call: str) -> str:
        done = self("call", "--detach", url, *call)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@cache
def _imported() -> tuple[str, ...]:
    """What commands import when they need it; some of what workers on databases do takes a second."""
    from mcp_tasks.cli.app import COMMANDS

    commands = [f"mcp_tasks.cli.commands.{place.partition(':')[0]}" for place, _ in COMMANDS.values()]
    drawing = ["rich.live", "rich.panel", "rich.progress"]
    backends = ["stores.postgres", "engines.procrastinate", "stores.redis", "engines.docket"]
    return ("mcp_tasks.cli.app", *commands, *drawing, *(f"mcp_tasks.{name}" for name in backends))


@contextmanager
def serving(module: str, folder: Path) -> Generator[str]:
    # Killed at the end: there may be tasks running that nobody waits for any more.
    with ServerProcess(module, "--port", "{port}", "--db", folder / "tasks.db", limit=LIMIT) as server:
        yield server.url


def stdio_command(folder: Path) -> str:
    return shlex.join(piped("tests.cli.asking_server", "--db", str(folder / "stdio.db")))
