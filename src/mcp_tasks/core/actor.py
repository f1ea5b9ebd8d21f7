"""Who did something to a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Actor:
    """Who did something to a task.

    Attributes:
        kind: `client`: whoever called, with the principal as `name`. `run`: the tool at work. `worker`: a process that
            claims, parks and hands over. `sweep`: the housekeeping of a process. The last three have the name of the
            process.
    """

    kind: Literal["client", "run", "worker", "sweep"]
    name: str | None = None


NOBODY: Final = Actor("client")
"""A client without a name."""
