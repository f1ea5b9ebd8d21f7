"""The databases that tasks can be kept in, with a fresh one for each use.

`harness.fixtures` has those that all tests of a process share; who restarts or damages one has their own (`backend`).
"""

import itertools
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from harness.databases import Postgres, Valkey, postgres, valkey

BackendName: TypeAlias = Literal["sqlite", "postgres", "redis"]

ALWAYS_SYNCED = ("--appendonly", "yes", "--appendfsync", "always")
"""So that Valkey, too, keeps what it has acknowledged when it is killed."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One kind of database."""

    name: BackendName
    url: str
    server: Postgres | Valkey | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def port(self) -> int:
        """Where it listens; 0 for files."""
        return 0 if self.server is None else self.server.port

    def fresh(self) -> str:
        """A database that is empty, on the same server."""
        if self.server is not None:
            return self.server.new_database()
        return f"{self.url.removesuffix('.db')}-{next(self._numbers)}.db"

    def restart(self, how: signal.Signals) -> None:
        assert self.server is not None, "a file is not restarted"
        self.server.restart(how)


def in_files(folder: Path) -> Backend:
    return Backend("sqlite", f"sqlite:///{folder / 'tasks.db'}")


@contextmanager
def backend(name: BackendName, folder: Path) -> Generator[Backend]:
    """A new database of its own while the block lasts, which keeps what it has acknowledged."""
    if name == "postgres":
        with postgres() as server:
            yield Backend(name, server.new_database(), server)
    elif name == "redis":
        with valkey(*ALWAYS_SYNCED) as server:
            yield Backend(name, server.url, server)
    else:
        yield in_files(folder)
