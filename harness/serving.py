"""Servers in processes of their own, at an address that outlasts them; and what such a process does to serve.

`harness.http` serves in this process.
"""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeAlias

import uvicorn
from mcp.server import MCPServer, Server
from mcp.server.stdio import stdio_server
from starlette.types import ASGIApp

from harness.forking import fork
from harness.ports import HOST, free_port, listening, listens, mcp_url, port_of
from harness.processes import (
    ENVIRONMENT,
    ROOT,
    START_LIMIT,
    STOP_LIMIT,
    Command,
    Running,
    end,
    kill,
    python,
    start,
    until_ready,
)

AnyServer: TypeAlias = MCPServer[Any] | Server[Any]


class ServerProcess:
    """A server that can be killed and started again, at the same address. Used as a block, it is ended with it.

    Where an argument says `{port}`, the server opens a port that is free, and is up when it listens. Where one says
    `{fd}`, it is handed a socket that takes connections from the first: whoever is early waits, also while it is down.

    Args:
        module: What is run, as `python -m` does; or the name of what is, for messages.
        fork: Whether it is forked from a process that has imported what servers need, which takes a second less.
        program: What to run in place of a module, before the arguments.
        env: Its environment; ours without what it says of tasks, if not given.
        output: Where to append what it prints. Shown when it does not come up.
        polite: Whether the end of the block asks it to end, and fails if it ended before, or does not.
        limit: Seconds for it to be up.
    """

    def __init__(
        self,
        module: str,
        *arguments: str | Path,
        fork: bool = True,
        program: Command | None = None,
        cwd: Path = ROOT,
        env: Mapping[str, str] = ENVIRONMENT,
        output: Path | None = None,
        group: bool = False,
        polite: bool = False,
        limit: float = START_LIMIT,
    ) -> None:
        self._module = module
        self._arguments = [str(argument) for argument in arguments]
        self._forked = fork and program is None
        self._program = program or python(module)
        self._cwd = cwd
        self._env = env
        self._group = group
        self._polite = polite
        self._limit = limit
        self._stack = ExitStack()
        self._process: Running | None = None
        self._socket: socket.socket | None = None
        if any("{fd}" in argument for argument in self._arguments):
            self._socket = self._stack.enter_context(listening())
        self.port: int = free_port() if self._socket is None else port_of(self._socket)
        if output is None:
            output = Path(self._stack.enter_context(TemporaryDirectory(prefix="mcp-tasks-output-"))) / "output.log"
        self._output = output

    @property
    def url(self) -> str:
        return mcp_url(self.port)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def process(self) -> Running:
        assert self._process is not None, "the server was not started"
        return self._process

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def launch(self) -> None:
        number = 0 if self._socket is None else self._socket.fileno()
        words = [word.replace("{port}", str(self.port)).replace("{fd}", str(number)) for word in self._arguments]
        fds = [number] if self._socket is not None else []
        if not self._forked:
            self._process = start(
                [*self._program, *words],
                cwd=self._cwd,
                env=self._env,
                output=self._output,
                pass_fds=fds,
                group=self._group,
            )
            return
        with self._output.open("ab") as sink:
            self._process = fork(self._module, *words, env=self._env, stdout=sink, stderr=sink, pass_fds=fds)

    def start(self) -> None:
        """Start it, and return when it takes connections."""
        self.launch()
        if self._socket is None:
            until_ready(
                self.process,
                lambda: listens(self.port),
                what=f"the server {self._module} at {self.url}",
                output=lambda: self.output,
                limit=self._limit,
            )

    async def started(self) -> None:
        """The same, for coroutines: the event loop goes on meanwhile."""
        await asyncio.to_thread(self.start)

    def kill(self) -> None:
        """End it as a crash does. Safe twice, and from another thread."""
        if self._process is not None:
            kill(self._process)

    def stop(self, how: signal.Signals = signal.SIGTERM, limit: float = STOP_LIMIT) -> float:
        """Ask it to end; how many seconds that took."""
        asked = time.monotonic()
        code = end(self.process, how, limit)
        # uvicorn ends in order and then lets the signal have its way.
        assert code in (0, -how), f"exit code {code}:\n{self.output}"
        return time.monotonic() - asked

    def close(self) -> None:
        self.kill()
        self._stack.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._polite and kind is None:
                code = self.process.poll()
                assert code is None, f"the server ended by itself with {code}:\n{self.output}"
                self.stop()
            if kind is not None:
                # Where pytest shows it with the failure.
                print(f"{self._module} printed:\n{self.output}", file=sys.stderr)
        finally:
            self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await asyncio.to_thread(self.__exit__, kind)


@contextmanager
def serving_command(command: Command, *, cwd: Path = ROOT, env: Mapping[str, str] = ENVIRONMENT) -> Generator[str]:
    """The URL of a server that any command starts, with `{port}` and `{db}` filled in, while the block lasts.

    It is asked to end. Where a stream that somebody has left open holds that up, it is killed, and its children are.

    Raises:
        ProcessError: It has ended, or does not listen; with what it printed.
    """
    with TemporaryDirectory(prefix="mcp-tasks-db-") as folder:
        program, *words = [str(word).replace("{db}", f"{folder}/tasks.db") for word in command]
        with ServerProcess(program, *words, program=[program], cwd=cwd, env=env, group=True) as server:
            yield server.url
            with suppress(subprocess.TimeoutExpired):
                end(server.process, limit=STOP_LIMIT / 2)


# What the process does


def serve_app(app: ASGIApp, *, port: int = 0, fd: int | None = None, **options: Any) -> None:
    """Serve an app until told to stop: on a port, or on the socket that was handed down."""
    web_server(app, port=port, **options).run(sockets=_sockets(fd))


async def serving_until_told(app: ASGIApp, *, port: int = 0, fd: int | None = None, **options: Any) -> None:
    """The same, beside whatever else the event loop does."""
    await web_server(app, port=port, **options).serve(sockets=_sockets(fd))


def web_server(app: ASGIApp, *, port: int = 0, **options: Any) -> uvicorn.Server:
    """What serves an app: uvicorn, on the event loop that it takes by itself."""
    usual: dict[str, Any] = {"log_level": "warning", "timeout_graceful_shutdown": 1}
    return uvicorn.Server(uvicorn.Config(app, host=HOST, port=port, **(usual | options)))


def _sockets(fd: int | None) -> list[socket.socket] | None:
    return None if fd is None else [socket.socket(fileno=fd)]


async def serve_stdio(server: AnyServer) -> None:
    """Serve the pipes of this process until they close."""
    if isinstance(server, MCPServer):
        await server.run_stdio_async()
        return
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
