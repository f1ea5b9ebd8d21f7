"""A server of the examples as a process of its own, which can be killed and started again."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path


class ServerProcess:
    """Serves over HTTP while it runs, always at the same address.

    Args:
        script: The Python file that serves; it is given `--port`.
        arguments: What it is given besides.
    """

    def __init__(self, script: Path, *arguments: str | Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self._command: list[str | Path] = [sys.executable, script, *arguments, "--port", str(self._port)]
        self._process: subprocess.Popen[bytes] | None = None

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
        """Start it and wait until it accepts connections."""
        self._process = _spawn(self._command)
        for _ in range(200):
            if self._process.poll() is not None:
                raise SystemExit("the server did not start")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return
        raise SystemExit("the server did not answer")

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


def _spawn(command: list[str | Path]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)
