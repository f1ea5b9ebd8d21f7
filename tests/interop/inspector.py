"""The MCP Inspector: `inspector --cli`, which does one thing, `mcpdo`, which stays connected, and its page."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.installing import find_node
from harness.ports import free_port
from harness.processes import ROOT, run, send
from harness.serving import serving_command

from .driving import quiet_environment, reached

COMMAND_LIMIT = 30.0


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a command printed: a JSON value, or an error, or (where a tool failed) both."""

    code: int
    value: dict[str, Any]
    error: dict[str, Any]

    @property
    def text(self) -> str:
        return self.value["content"][0]["text"]


class Inspector:
    """The Inspector as it is installed in `home`, with a daemon and a configuration of its own."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self._clients = home / "node_modules" / "@modelcontextprotocol" / "inspector" / "clients"
        self._environment = dict(environment)

    def cli_method(self, target: Sequence[str], *options: str) -> Reply:
        reply = self._run("launcher/build/index.js", "--cli", *options, "--format", "json", "--", *target)
        return Reply(code=reply.code, value=reply.value.get("result", {}), error=reply.error)

    def mcpdo(self, *arguments: str) -> Reply:
        return self._run("mcpdo/build/mcp-bin.js", "--format", "json", *arguments)

    def connect(self, name: str, era: str, target: Sequence[str], *options: str) -> Reply:
        transport = "http" if len(target) == 1 else "stdio"
        chosen = ["--transport", transport, "--era", era, "--cwd", str(ROOT), *options]
        return self.mcpdo("--connection", name, "connect", *chosen, "--", *target)

    def respond(self, asked: Reply, *fields: str) -> Reply:
        return self.mcpdo("elicitation/respond", asked.value["elicitationPending"]["elicitationId"], *fields)

    def _run(self, program: str, *arguments: str) -> Reply:
        command = [*find_node()[0], self._clients / program, *arguments]
        done = run(command, limit=COMMAND_LIMIT, env=self._environment)
        return Reply(code=done.returncode, value=json.loads(done.stdout or "{}"), error=_error(done.stderr))


@contextmanager
def page_of(home: Path, target: Sequence[str], *options: str) -> Generator[str]:
    """The address of the Inspector's page, with a server in its list that is to be reached on the older wire."""
    with tempfile.TemporaryDirectory(prefix="inspector-", ignore_cleanup_errors=True) as directory:
        settings = {
            "HOME": directory,
            "MCP_STORAGE_DIR": f"{directory}/storage",
            "MCP_INSPECTOR_SECRET_STORE": "file",
            "MCP_AUTO_OPEN_ENABLED": "false",
            "DANGEROUSLY_OMIT_AUTH": "true",
            "CLIENT_PORT": "{port}",
            "MCP_SANDBOX_PORT": str(free_port()),
        }
        launcher = home / "node_modules" / "@modelcontextprotocol" / "inspector" / "clients" / "launcher"
        web = [*find_node()[0], str(launcher / "build" / "index.js"), "--web", "--protocol-era", "legacy", *options]
        command = ["env", *(f"{key}={value}" for key, value in settings.items()), *web]
        where = ["--transport", "http", "--server-url", *target] if len(target) == 1 else ["--", *target]
        with serving_command([*command, *where]) as url:
            yield url.removesuffix("/mcp")


def _error(printed: str) -> dict[str, Any]:
    """The error among what else there may be on stderr."""
    envelopes = [line for line in printed.splitlines() if line.startswith('{"error":')]
    return json.loads(envelopes[-1])["error"] if envelopes else {}


@contextmanager
def inspecting(home: Path) -> Generator[Inspector]:
    """An Inspector whose daemon ends with the block, and that leaves nothing in the user's home."""
    # A short path: the daemon puts its socket there.
    with tempfile.TemporaryDirectory(prefix="mcpdo-", ignore_cleanup_errors=True) as directory:
        environment = {
            **quiet_environment(),
            "HOME": directory,
            "MCP_STORAGE_DIR": f"{directory}/storage",
            "MCP_INSPECTOR_SECRET_STORE": "file",
            "MCP_INSPECTOR_DAEMON_DIR": f"{directory}/daemon",
            "MCP_INSPECTOR_DAEMON_TOKEN": secrets.token_urlsafe(16),
        }
        inspector = Inspector(home, environment)
        try:
            yield inspector
        finally:
            inspector.mcpdo("daemon", "stop")


class Ours:
    """Our server as the Inspector reaches it; killed, it is there again with the same file."""

    def __init__(self, directory: Path, way: str) -> None:
        self.directory = directory
        self.target: list[str] = []
        self._way = way
        self._running = ExitStack()

    def start(self) -> None:
        """Start it, if that is not for the client to do."""
        files = ("--pid", str(self.directory / "pid"))
        plan = self._running.enter_context(reached(self.directory, self._way, "fixture", *files))
        self.target = plan["command"] if self._way == "stdio" else [plan["url"]]

    def kill(self) -> None:
        """As `kill -9` does, and start it again."""
        pid = self.directory / "pid"
        send(int(pid.read_text()))
        pid.unlink()
        self.stop()
        self.start()

    def stop(self) -> None:
        self._running.close()


@contextmanager
def ours(way: str) -> Generator[Ours]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        server = Ours(Path(place), way)
        server.start()
        try:
            yield server
        finally:
            server.stop()
