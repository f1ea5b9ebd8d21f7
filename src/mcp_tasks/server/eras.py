"""The older eras that a server speaks: the one place of this room that names them."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_tasks.adapters.era import Era, EraParts
from mcp_tasks.legacy.server.era import LegacyEra


def older_eras(parts: EraParts) -> Sequence[Era]:
    """The eras before the extension, for one server."""
    return (LegacyEra(parts),)
