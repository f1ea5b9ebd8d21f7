"""The command line and its servers as processes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.forking import Forked, fork, piped

ROOT = Path(__file__).parent.parent.parent
LIMIT = 40.0
"""Seconds that a command may take. Far more than it does: reached only by a failing test."""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


class Started:
    """A command that was started."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(LIMIT)
        self._replies = connection.makefile()
        self._pid = int(self._replies.readline())
        self._code: int | None = None
        connection.close()

    def wait(self) -> int:
        """Wait for its end; gives the exit code."""
        if self._code is None:
            with self._replies:
                self._code = int(self._replies.readline())
        return self._code

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self._pid, number)

    def kill(self) -> None:
        """End it, whatever it does."""
        if self._code is None:
            self.send(signal.SIGKILL)
            self.wait()


class Cli:
    """`mcp-tasks` with a ledger of its own."""

    def __init__(self, zygote: Path, folder: Path) -> None:
        self._zygote = zygote
        self.ledger = folder / "ledger.db"
        # A test runner says how wide its own terminal is.
        ours = ("MCP_TASKS", "COLUMNS", "LINES")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        self.environment = {**kept, "MCP_TASKS_LEDGER": str(self.ledger), "HOME": str(folder), "TERM": "xterm-256color"}

    def begin(self, arguments: Sequence[str], files: Sequence[int], *, terminal: bool, cwd: Path = ROOT) -> Started:
        """Start a command with these files as its stdin, stdout and stderr."""
        order = {
            "arguments": list(arguments),
            "environment": self.environment,
            "cwd": str(cwd),
            "terminal": terminal,
        }
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self._zygote))
        socket.send_fds(connection, [json.dumps(order).encode()], list(files))
        return Started(connection)

    def __call__(self, *arguments: str, stdin: str = "", cwd: Path = ROOT) -> Done:
        """Run a command without a terminal."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin.encode())
            given.seek(0)
            files = [given.fileno(), out.fileno(), err.fileno()]
            code = self.begin(arguments, files, terminal=False, cwd=cwd).wait()
            out.seek(0)
            err.seek(0)
            return Done(code, out.read().decode(), err.read().decode())

    def together(self, *commands: Sequence[str]) -> list[Done]:
        """Run several commands at the same time."""

        def run(arguments: Sequence[str]) -> Done:
            return self(*arguments)

        with ThreadPoolExecutor(len(commands)) as pool:
            return list(pool.map(run, commands))

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The value that a command prints with `--output json`."""
        done = self(*arguments, "--output", "json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def start(self, url: str, *call: str) -> str:
        """Start a task and leave it; gives its id."""
        done = self("call", "--detach", url, *call)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@contextmanager
def zygote(folder: Path) -> Generator[Path]:
    """What commands are forked from; gives its socket."""
    path = folder / "zygote"
    command = [sys.executable, "-m", "tests.cli.zygote", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield path
        finally:
            process.terminate()


@contextmanager
def serving(module: str, folder: Path) -> Generator[str]:
    """A server process that serves HTTP while the block lasts; gives its URL."""
    port = free_port()
    arguments = ("--port", str(port), "--db", str(folder / "tasks.db"))
    process = fork(module, *arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        # There may be tasks running that nobody waits for any more.
        process.kill()
        process.wait()


def stdio_command(folder: Path) -> str:
    """The command of a stdio server that asks."""
    return shlex.join(piped("tests.cli.asking_server", "--db", str(folder / "stdio.db")))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(port: int, process: Forked) -> None:
    """Wait until a process listens."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the server does not listen")
