"""What is asked of a file beyond its tasks: whether it is a task store, whose tasks are in it, what has a key."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from anyio import to_thread

from mcp_tasks.stores.inspecting import Standing
from mcp_tasks.stores.sqlite.connection import Values, from_text, to_text, translate
from mcp_tasks.stores.sqlite.schema import migrations, schema_of_file

# From one namespace to the next along the index, however many tasks each has.
_NAMESPACES: Final = """
WITH RECURSIVE found(namespace) AS (
    SELECT min(namespace) FROM tasks
    UNION ALL
    SELECT (SELECT min(namespace) FROM tasks WHERE namespace > found.namespace)
    FROM found WHERE found.namespace IS NOT NULL
)
SELECT namespace FROM found WHERE namespace IS NOT NULL UNION SELECT namespace FROM heartbeats ORDER BY 1
"""
_UNDER_KEY: Final = """
SELECT id FROM tasks INDEXED BY tasks_key
WHERE idempotency_key = ? AND namespace = ? AND ifnull(owner, 0) = ifnull(?, 0)
"""


class Inspecting(ABC):
    """The part of `SqliteStore` that is for operators, and for what is looked up by its key."""

    path: Path

    async def standing(self) -> Standing:
        """Whether the file is there, and has the schema of this release. Makes and changes nothing."""
        return await to_thread.run_sync(_standing_of, self.path)

    async def namespaces(self) -> Sequence[str]:
        """Every namespace that has a task or a worker, in order."""
        return [from_text(namespace) for (namespace,) in self._rows(_NAMESPACES, ())]

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        """The id of the task that stands under a key."""
        place = to_text(key), to_text(namespace), None if owner is None else to_text(owner)
        return next((from_text(task_id) for (task_id,) in self._rows(_UNDER_KEY, place)), None)

    @abstractmethod
    def _rows(self, sql: str, values: Values) -> list[Any]: ...


def _standing_of(path: Path) -> Standing:
    if not path.exists():
        return "absent"
    try:
        schema = schema_of_file(path)
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc
    if schema == 0:
        return "absent"
    return "current" if schema >= len(migrations()) else "older"
