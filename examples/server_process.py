"""A server of the examples as a process of its own, which can be killed and started again."""

from __future__ import annotations

import asyncio
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

START_TIMEOUT = 60.0
"""Seconds. Far more than a server takes to start, because the machine may be busy with something else."""


class ServerProcess:
    """Serves over HTTP while it runs, always at the same address.

    Args:
        script: The Python file that serves; it is given `--port`.
        arguments: What it is given besides.
        timeout: How many seconds it may take to start.
    """

    def __init__(self, script: Path, *arguments: str | Path, timeout: float = START_TIMEOUT) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self._command: list[str | Path] = [sys.executable, script, *arguments, "--port", str(self._port)]
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        # A file and not a pipe: nobody reads along, and a full pipe would stop the server.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it is open for as long as the server may be started

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self._port}/mcp"

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it and wait until it accepts connections.

        Raises:
            SystemExit: It ended, or took too long; the text has what it wrote to stderr.
        """
        self._process = self._spawn()
        began = time.monotonic()
        while time.monotonic() - began < self._timeout:
            if (code := self._process.poll()) is not None:
                self._give_up(f"ended with code {code} instead of serving", began)
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return
        self.kill()
        self._give_up("did not accept connections and was killed", began)

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stderr=self._stderr)

    def _give_up(self, what_happened: str, began: float) -> NoReturn:
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip() or "nothing"
        raise SystemExit(
            f"the server at {self.url} {what_happened}, {time.monotonic() - began:.1f} seconds after it was started"
            f"\n  command: {shlex.join(map(str, self._command))}\n  it wrote to stderr:\n{said}"
        )

    def kill(self) -> None:
        """As a crash would: no warning, no cleaning up."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Properly."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.kill()
