"""What the pools of this store log, said once in a while: while a database is away they have several lines a second.

Told apart from the pools of others in the same process by the pool's name, and by the class of its connections.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from mcp_tasks.quiet import get_logger

logger: Final = get_logger(__name__)

POOL_NAME: Final = "mcp-tasks of "
"""What the names of our pools begin with."""

QUIET_FOR: Final = 60.0
"""Seconds between two lines about a database that is away."""


class Pooled:
    """Marks the connections of our pools."""

    __slots__ = ()


class QuietPools(logging.Filter):
    """Lets through what is not of ours; of the rest, one line of our own that says what is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self._said = -QUIET_FOR

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is let through."""
        args = record.args if isinstance(record.args, tuple) else ()
        if not any(map(_is_ours, args)) or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        errors = [arg for arg in args if isinstance(arg, Exception)]
        now = time.monotonic()
        if errors and now - self._said >= QUIET_FOR:
            self._said = now
            logger.warning("Postgres cannot be reached now, and is tried again until it can: %s", errors[0])
        return False


def _is_ours(arg: object) -> bool:
    return isinstance(arg, Pooled) or (isinstance(arg, str) and arg.startswith(POOL_NAME))


_QUIET: Final = QuietPools()


def keep_pools_quiet() -> None:
    """Have our pools say little from now on. Those of others are heard as before."""
    logging.getLogger("psycopg.pool").addFilter(_QUIET)
