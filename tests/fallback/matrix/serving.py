"""Processes of the matrix server, the files that they share with a test, and what they wrote down."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio

from harness.forking import fork, piped
from harness.ports import listening, mcp_url, port_of
from harness.processes import ENVIRONMENT, end, kill, until_ready
from harness.rpc import PATIENCE

MODULE: Final = "tests.fallback.matrix.server"


class Place:
    """A folder in which jobs are written down and held up, and the servers that do so."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._counts: Counter[str] = Counter()
        self._read = 0

    @property
    def store(self) -> str:
        """A database here."""
        return f"sqlite:///{self.folder / 'tasks.db'}"

    def count(self, event: str, job: str) -> int:
        """How often that happened to the job."""
        self._read_on()
        return self._counts[f"{event} {job}"]

    async def until(self, event: str, job: str, times: int = 1) -> None:
        """Return when it has happened so often."""
        with anyio.fail_after(PATIENCE):
            while self.count(event, job) < times:  # noqa: ASYNC110 - it happens in another process
                await anyio.sleep(0.01)

    def task_of(self, job: str) -> str:
        """The id of the task of a job that wrote it down."""
        self._read_on()
        [found] = {line.split()[0] for line in self._counts if line.startswith("task=") and line.endswith(f" {job}")}
        return found.removeprefix("task=")

    def open(self, job: str, gate: str = "go") -> None:
        """Let the job go on."""
        (self.folder / f"{job}.{gate}").touch()

    def config(self, **said: Any) -> str:
        """What a server is told."""
        return json.dumps({"folder": str(self.folder), **said})

    def command(self, **said: Any) -> list[str]:
        """The command line of a server that serves its pipes."""
        return piped(MODULE, self.config(**said))

    def _read_on(self) -> None:
        """Take in what was written since: many look often, and the log grows long."""
        log = self.folder / "log"
        if not log.exists():
            return
        with log.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        self._counts.update(whole.decode().splitlines())

    def serve(self, *kinds: str, variants: Mapping[str, Any] | None = None, **said: Any) -> HttpServers:
        """Servers behind HTTP doors of these kinds, in one process; they end with the place.

        Args:
            variants: More doors with streams, by names of their own, for which something else is said.
        """
        doors = {kind: {"kind": kind} for kind in kinds or ("sse",)}
        doors |= {name: {"kind": "sse", "config": variant} for name, variant in (variants or {}).items()}
        return HttpServers(self, doors, said, self._stack)


class HttpServers:
    """A server process. Its ports are this process's own, so they stay when it is killed and started again."""

    def __init__(
        self, place: Place, doors: Mapping[str, dict[str, Any]], said: Mapping[str, Any], stack: ExitStack
    ) -> None:
        self._folder = place.folder
        self._sockets = {name: stack.enter_context(listening()) for name in doors}
        self._config = place.config(
            doors=[{**door, "fd": self._sockets[name].fileno()} for name, door in doors.items()], **said
        )
        stack.callback(self.kill)
        self.start()

    @property
    def url(self) -> str:
        """The first door."""
        return self.door(next(iter(self._sockets)))

    def door(self, name: str) -> str:
        """The address of a door."""
        return mcp_url(port_of(self._sockets[name]))

    def start(self) -> None:
        """Start it, for the first time or again. Whoever connects before it serves waits: the ports are open."""
        numbers = [each.fileno() for each in self._sockets.values()]
        self._process = fork(MODULE, self._config, env=ENVIRONMENT, pass_fds=numbers)
        built = self._folder / f"{self._process.pid}.up"
        until_ready(self._process, built.exists, what=f"the server {MODULE}")

    def kill(self) -> None:
        """End it as a power cut would. Safe twice."""
        kill(self._process)

    def terminate(self) -> float:
        """Ask it to end; how many seconds it took."""
        asked = time.monotonic()
        end(self._process)
        return time.monotonic() - asked


@contextmanager
def place() -> Generator[Place]:
    """A folder for one file of tests; whatever runs on it is ended with it."""
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="mcp-tasks-fallback-"))
        yield Place(Path(folder), stack)
