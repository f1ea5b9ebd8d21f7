"""Starting a server under test on a free port, and making sure that it is gone afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

START_LIMIT = 30.0
STOP_LIMIT = 5.0  # open streams may hold a graceful stop up; after this the group is killed


class ServerError(Exception):
    """The server under test ended, or never listened; the message holds what it printed."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > deadline:
            printed = log.read_text()[-4000:]
            raise ServerError(f"the server does not listen (exit code {process.poll()}):\n{printed}")
        time.sleep(0.05)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # the whole group may already be gone
        os.killpg(process.pid, number)


def _stop(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT)
    # Also after a polite end: a child of the server may have outlived it.
    _signal_group(process, signal.SIGKILL)
    process.wait()


@contextmanager
def serving(command: Sequence[str], *, cwd: Path) -> Generator[str]:
    """Run `command`, with `{port}` and `{db}` filled in, while the block lasts; gives the server's URL.

    Raises:
        ServerError: It did not listen within the limit.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        log, db = Path(directory, "server.log"), Path(directory, "tasks.db")
        filled = [part.format(port=port, db=db) for part in command]
        with log.open("wb") as sink:
            process = subprocess.Popen(filled, cwd=cwd, stdout=sink, stderr=sink, start_new_session=True)
        try:
            _wait(process, port, log)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            _stop(process)
