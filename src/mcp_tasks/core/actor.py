"""Who did something to a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Actor:
    """Who did something to a task.

    Attributes:
        kind: `client`: whoever called, with the principal as `name`. `run`: the tool at work. `worker`: a process that
            claims, parks and hands over. `sweep`: the housekeeping of a process. These three have the name of the
            process. `operator`: a person at the store itself, with `mcp-tasks --store`, by the name of their account.
    """

    kind: Literal["client", "run", "worker", "sweep", "operator"]
    name: str | None = None


NOBODY: Final = Actor("client")
"""A client without a name."""
