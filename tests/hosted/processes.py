"""Servers of `tests.hosted.asking_server` in processes of their own."""

from __future__ import annotations

from mcp import StdioServerParameters

from harness.forking import piped
from harness.processes import ENVIRONMENT, ROOT
from harness.serving import ServerProcess
from mcp_tasks.client import ServerTransport, stdio_transport

SERVER = "tests.hosted.asking_server"


def over_stdio(*options: str) -> ServerTransport:
    command, *arguments = piped(SERVER, "stdio", *options)
    return stdio_transport(StdioServerParameters(command=command, args=arguments, cwd=ROOT, env=ENVIRONMENT))


def http_server(*options: str) -> ServerProcess:
    return ServerProcess(SERVER, "http", "{port}", *options)
