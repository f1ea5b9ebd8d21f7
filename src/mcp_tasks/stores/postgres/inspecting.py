"""What is asked of a database beyond its tasks: whether it has our tables, whose tasks are there, what has a key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from mcp_tasks.stores.inspecting import Standing
from mcp_tasks.stores.postgres.database import Connection, Database
from mcp_tasks.stores.postgres.schema import migrations, schema_of
from mcp_tasks.stores.postgres.text import from_text, to_key, to_owner, to_text

T = TypeVar("T")

# From one namespace to the next along the index, however many tasks each has.
_NAMESPACES: Final = b"""
WITH RECURSIVE found(namespace) AS (
    (SELECT namespace FROM mcp_tasks_tasks ORDER BY namespace LIMIT 1)
    UNION ALL
    SELECT (SELECT task.namespace FROM mcp_tasks_tasks task WHERE task.namespace > found.namespace
            ORDER BY task.namespace LIMIT 1)
    FROM found WHERE found.namespace IS NOT NULL
)
SELECT namespace FROM found WHERE namespace IS NOT NULL UNION SELECT namespace FROM mcp_tasks_heartbeats
"""
_UNDER_KEY: Final = b"""
SELECT id FROM mcp_tasks_tasks WHERE idempotency_key = %(key)s AND namespace = %(namespace)s AND owner = %(owner)s
"""


class Inspecting(ABC):
    """The part of `PostgresStore` that is for operators, and for what is looked up by its key."""

    _database: Database

    async def has_tables(self) -> bool:
        """Whether tasks have ever been kept there. Makes nothing, and may be asked before `open`."""
        return await self.standing() != "absent"

    async def standing(self) -> Standing:
        """Whether our tables are there, and have the schema of this release. Makes and changes nothing."""
        schema = await self._ask_once(schema_of)
        if not schema:
            return "absent"
        return "current" if schema >= len(migrations()) else "older"

    async def namespaces(self) -> Sequence[str]:
        """Every namespace that has a task or a worker, in order."""
        return sorted(from_text(namespace) for (namespace,) in await self._database.rows(_NAMESPACES, {}))

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        """The id of the task that stands under a key."""
        place = {"key": to_key(key), "namespace": to_text(namespace), "owner": to_owner(owner)}
        return next((from_text(task_id) for (task_id,) in await self._database.rows(_UNDER_KEY, place)), None)

    @abstractmethod
    async def _ask_once(self, ask: Callable[[Connection, str], Awaitable[T]]) -> T: ...
