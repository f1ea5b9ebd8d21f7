"""The furnished server in a process of its own.

    python -m harness.process stdio [--lowlevel] [--store URL]
    python -m harness.process http --fd N [--json] [--lowlevel] [--store URL]

Over HTTP it serves on a socket that its parent has bound and hands down, so nobody has to wait for a port.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer, Server
from mcp.server.stdio import stdio_server

from harness.forking import fork
from harness.lowlevel import build_lowlevel
from harness.server import QUICK, build
from mcp_tasks import Tasks

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("MCP_TASKS")}
STOP_LIMIT = 10.0


@contextmanager
def http_process(*arguments: str) -> Generator[str]:
    """A server process that serves HTTP while the block lasts; gives its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        # It listens from here on: whoever connects early waits until the server is up.
        listener.listen(64)
        listener.set_inheritable(True)
        port, number = listener.getsockname()[1], listener.fileno()
        process = fork("harness.process", "http", "--fd", str(number), *arguments, env=ENVIRONMENT, pass_fds=[number])
    try:
        yield f"http://127.0.0.1:{port}/mcp"
        assert process.poll() is None, f"the server ended by itself with {process.returncode}"
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("stdio", "http"))
    parser.add_argument("--fd", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--lowlevel", action="store_true")
    parser.add_argument("--store", default="memory://")
    options = parser.parse_args(argv)
    # Kept for good: so there is a null on every wire.
    tasks = Tasks(options.store, default_ttl=None, settings=QUICK)
    server = build_lowlevel(tasks) if options.lowlevel else build(tasks)
    if options.transport == "stdio":
        asyncio.run(serve_stdio(server))
    else:
        asyncio.run(_serve_http(server, options.fd, json_response=options.json))


async def serve_stdio(server: MCPServer[Any] | Server[Any]) -> None:
    """Serve the pipes of this process until they close."""
    if isinstance(server, MCPServer):
        await server.run_stdio_async()
        return
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def _serve_http(server: MCPServer[Any] | Server[Any], fd: int, *, json_response: bool) -> None:
    app = server.streamable_http_app(json_response=json_response)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[socket.socket(fileno=fd)])


if __name__ == "__main__":
    main()
