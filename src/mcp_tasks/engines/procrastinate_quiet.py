"""procrastinate, without what it says about itself: our ids are no work of their own, and the tasks they stand for are
told of elsewhere.

Our worker runs in a context that says so. What procrastinate logs there is let through only when debugging, or when it
is a mistake; a database that is away is for the engine to tell, in one line. Whoever uses procrastinate for something
else in the same process hears all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import psycopg
from procrastinate.exceptions import ConnectorException

NAME: Final = "mcp-tasks"
"""Of our workers."""

_LOGGERS: Final = ("app", "blueprints", "jobs", "manager", "periodic", "psycopg_connector", "tasks", "utils", "worker")

_is_ours: ContextVar[bool] = ContextVar("mcp_tasks_procrastinate", default=False)


@contextmanager
def quiet() -> Generator[None]:
    """In the block, and in whatever is started there, procrastinate is quiet."""
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)


class _Quiet(logging.Filter):
    """Decides what is let through of what procrastinate logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is."""
        if not _is_ours.get():
            return True
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.ERROR and not isinstance(error, ConnectorException | psycopg.Error):
            return True
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


_QUIET: Final = _Quiet()
for _name in (*_LOGGERS, f"worker.{NAME}"):
    logging.getLogger(f"procrastinate.{_name}").addFilter(_QUIET)
