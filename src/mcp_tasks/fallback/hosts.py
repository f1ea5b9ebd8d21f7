"""What is known of hosts, by the name that they give themselves: how long they wait for a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from mcp_tasks.core.durations import check_duration
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.values import check_flag

SHARE: Final = 5 / 6
"""How much of a host's limit is used: 50 of 60 seconds. The rest is for the way there and back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """How a host treats a call of a tool.

    Attributes:
        limit: When it gives up on the whole call, whatever happens meanwhile; None for one that waits.
        progress_extends: Whether progress on the call starts the limit anew.
        asks_for_tasks: Whether it asks for tasks of 2025-11-25, and so needs no companion tools there.
    """

    limit: timedelta | None = None
    progress_extends: bool = False
    asks_for_tasks: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_duration("limit", self.limit)
        check_flag("progress_extends", self.progress_extends)
        check_flag("asks_for_tasks", self.asks_for_tasks)

    def answer_within(self, *, has_progress: bool) -> timedelta | None:
        """How long after its beginning a call must be answered at the latest; None for no limit."""
        return None if self.limit is None or (self.progress_extends and has_progress) else self.limit * SHARE


UNKNOWN_HOST: Final = Host(limit=timedelta(seconds=60))
"""A host that nobody knows is taken for one of the many that give up after a minute."""

HOSTS: Final[Mapping[str, Host]] = {
    # The name that the Python SDK's client gives itself where nobody gives it another.
    "mcp": Host(),
}
"""Hosts that are known, by `clientInfo.name`."""


def host_of(client_info: JsonObject | None, hosts: Mapping[str, Host]) -> Host | None:
    """The host that says this of itself; None for one that is not known."""
    name = None if client_info is None else client_info.get("name")
    return hosts.get(name) if isinstance(name, str) else None
