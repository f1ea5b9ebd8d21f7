"""What differs between this tree and an older one: the bench measures both with the same scripts.

Everything else goes over the wire. Typed loosely on purpose: no one tree has all of these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from mcp_tasks.stores import base


def wiring(tasks: Any) -> dict[str, Any]:
    """The arguments of `MCPServer` that give it `tasks`."""
    if hasattr(tasks, "wiring"):
        return tasks.wiring()
    return {"extensions": [tasks], "lifespan": tasks.lifespan}


async def list_tasks(store: Any, namespace: str, *, limit: int = 100, **filters: Any) -> Sequence[Any]:
    """The first page of everybody's tasks."""
    everybody = getattr(base, "EVERYBODY", None)
    if everybody is None:
        page = await store.list(limit=limit, **filters)
    else:
        page = await store.list(namespace, everybody, now=datetime.now(UTC), limit=limit, **filters)
    # The tasks come first in a page, then the cursor; only the name of the field differs.
    return getattr(page, fields(page)[0].name)
