"""How a run ends, as its body says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from mcp_tasks.core.json import JsonObject


@dataclass(frozen=True, slots=True)
class Success:
    """The request has a result."""

    result: JsonObject


@dataclass(frozen=True, slots=True)
class Failure:
    """The request has a JSON-RPC error."""

    error: JsonObject


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The request was answered in another way, and there is no task to speak of."""


Outcome: TypeAlias = Success | Failure | Withdrawn
