"""`Hosting`: what a client grants the servers that ask it for sampling or elicitation as a task.

    TasksClient(hosting=Hosting(ledger="hosted.db", max_ttl=timedelta(hours=8)))

Everything a server can ask for has a limit here, because a server is a stranger.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from mcp_tasks.core.durations import check_duration
from mcp_tasks.core.pacing import FOR_GOOD
from mcp_tasks.core.values import check_number
from mcp_tasks.encryption import Cipher
from mcp_tasks.errors import InvalidOption


@dataclass(frozen=True, kw_only=True)
class Hosting:
    """How a client hosts tasks for its servers.

    A request over one of the limits is answered with an error, and makes no task.

    Attributes:
        ledger: A file that keeps hosted tasks across restarts, also after a crash: what is finished can still be
            fetched, what is not runs its callback again. One process at a time can have it open. Without one, tasks
            live as long as this process.
        cipher: Encrypts that file (`mcp_tasks.encryption.Keyring`).
        default_ttl: How long a task is kept after its end if the server does not say.
        max_ttl: How long a task is kept after its end at most, whatever the server says.
        max_running: How many tasks one server may have running at once.
        max_tasks: How many tasks are kept for one server, finished ones included, and
        max_total: for all servers together.
        max_request_size: How large a request may be, in bytes of JSON.
        poll_interval: How often a server should look; by default that depends on the age of the task.

    Raises:
        InvalidOption: A limit has a value that it cannot have.
    """

    ledger: str | Path | None = None
    cipher: Cipher | None = None
    default_ttl: timedelta = timedelta(hours=1)
    max_ttl: timedelta = timedelta(days=1)
    max_running: int = 16
    max_tasks: int = 256
    max_total: int = 4096
    max_request_size: int = 4 * 2**20
    poll_interval: timedelta | None = None

    def __post_init__(self) -> None:
        if self.ledger is not None and not isinstance(self.ledger, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"ledger must be the path of a file, got {self.ledger!r}")
        check_duration("max_ttl", self.max_ttl, longest=FOR_GOOD)
        check_duration("default_ttl", self.default_ttl)
        if self.poll_interval is not None:
            check_duration("poll_interval", self.poll_interval)
        for name in ("max_running", "max_tasks", "max_total", "max_request_size"):
            check_number(name, getattr(self, name), 1)

    def retention(self, requested: timedelta | None) -> timedelta:
        """How long to keep a task for which a server requested so much, or nothing."""
        return min(self.default_ttl if requested is None else requested, self.max_ttl)
