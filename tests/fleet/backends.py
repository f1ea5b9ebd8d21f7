"""The databases that a fleet can be on, each started for the occasion."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from harness.databases import Postgres, Server, postgres, valkey

BackendName: TypeAlias = Literal["sqlite", "postgres", "redis"]

ALWAYS_SYNCED = ("--appendonly", "yes", "--appendfsync", "always")
"""So that Valkey, too, keeps what it has acknowledged when it is killed."""

_TRIES = 40


@dataclass(frozen=True, slots=True)
class Backend:
    """One database.

    Attributes:
        url: For `Tasks(...)`.
        server: What can be restarted; None for a file.
        port: Where it listens.
    """

    name: BackendName
    url: str
    server: Server | None = None
    port: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def fresh(self) -> str:
        """A database that is empty, on the same server."""
        if isinstance(self.server, Postgres):
            return self.server.new_database()
        if self.server is not None:
            return f"{self.url.removesuffix('/0')}/{next(self._numbers)}"
        return f"{self.url.removesuffix('.db')}-{next(self._numbers)}.db"

    def restart(self, how: signal.Signals) -> None:
        """End the server and start it again."""
        assert self.server is not None, "a file is not restarted"
        self.server.stop(how)
        for _ in range(_TRIES):
            try:
                self.server.start()
            except RuntimeError:
                # Killed, its children may still hold on to its memory for a moment.
                time.sleep(0.25)
            else:
                return
        self.server.start()

    def through(self, url: str, port: int) -> str:
        """A database of this server, by another port."""
        return url.replace(f":{self.port}/", f":{port}/")


@contextmanager
def backend(name: BackendName, folder: Path) -> Generator[Backend]:
    """A new database while the block lasts."""
    if name == "postgres":
        with postgres() as server:
            yield Backend(name, server.new_database(), server, server.port)
    elif name == "redis":
        with valkey(*ALWAYS_SYNCED) as server:
            yield Backend(name, server.url, server, server.port)
    else:
        yield Backend(name, f"sqlite:///{folder / 'tasks.db'}")
