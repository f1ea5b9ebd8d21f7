"""Safe logging: nothing that a caller, a tool or a person said, and no whole id of a task.

The message of an exception often quotes the arguments of a tool: `KeyError` does, and pydantic. So a log gets its type
and where it was raised, and no message, unless it is one of ours, which quote nothing. To see the messages for a while:

    logging.getLogger("mcp_tasks.secrets").setLevel("DEBUG")

Only the level of that logger itself counts: a root logger at DEBUG shows no secrets.

Names of tools, URIs of resources, ids and keys are the caller's, and are in log lines. So every module gets its logger
from `get_logger`: a line has no line breaks, no control characters and no escape sequences of a terminal, and is cut.

The SDK logs ids of sessions at INFO, and an id is enough to use a session that has no owner. A filter on its loggers
cuts them.
"""

from __future__ import annotations

import logging
import re
import sys
from types import TracebackType
from typing import Any, Final, TypeAlias, cast

from mcp_tasks.errors import TasksError
from mcp_tasks.model.json import legible

SECRETS: Final = logging.getLogger("mcp_tasks.secrets")

ExcInfo: TypeAlias = "tuple[type[BaseException], BaseException, TracebackType | None] | None"

LONGEST_ARGUMENT: Final = 1_000
"""Characters of one value in a log line."""

LONGEST_LINE: Final = 4_000
"""Characters of a log line, without what a traceback adds."""

WITHHELD: Final = "(its message is not logged)"
_LONGEST_CHAIN: Final = 20


class _Legible(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        try:
            if isinstance(record.args, tuple):
                record.args = tuple(map(_cut, record.args))
            line = record.getMessage()
        except Exception:
            # A `repr` of the author's that fails: handlers report it, and the caller goes on.
            return True
        if len(line) > LONGEST_LINE or not line.isprintable():
            record.msg, record.args = legible(line, LONGEST_LINE), ()
        return True


_LEGIBLE: Final = _Legible()


def get_logger(name: str) -> logging.Logger:
    """The logger of that name. What callers send cannot forge a line of it, nor fill the log with one."""
    logger = logging.getLogger(name)
    logger.addFilter(_LEGIBLE)
    return logger


class _SessionsHidden(logging.Filter):
    """Leaves the beginning of each id of a session: enough to find its lines, and far from enough to use it."""

    # An id has a digit in it; the words that follow "session" elsewhere have none.
    _ID: Final = re.compile(r"(session(?: for)?(?: id)?:? )(?=\S*\d)(\S{8})\S+", re.IGNORECASE)

    def filter(self, record: logging.LogRecord) -> bool:
        # At DEBUG, the SDK logs messages whole.
        if record.levelno < logging.INFO or shows_secrets():
            return True
        try:
            line = record.getMessage()
        except Exception:
            return True
        record.msg, record.args = legible(self._ID.sub(r"\1\2…", line), LONGEST_LINE), ()
        return True


_SESSIONS_HIDDEN: Final = _SessionsHidden()

for _name in ("server.streamable_http", "server.streamable_http_manager", "server.sse", "client.streamable_http"):
    logging.getLogger(f"mcp.{_name}").addFilter(_SESSIONS_HIDDEN)


def _cut(value: Any) -> Any:
    if isinstance(value, str | BaseException):
        text = str(value)
        return f"{text[: LONGEST_ARGUMENT - 1]}…" if len(text) > LONGEST_ARGUMENT else value
    return value


def quietly(exc: BaseException | None = None) -> ExcInfo:
    """An exception (the one that is being handled, unless another is given) as `exc_info`, without its messages."""
    exc = exc or sys.exc_info()[1]
    if exc is None:
        return None
    shown = exc if shows_secrets() else _without_message(exc, _LONGEST_CHAIN)
    return type(shown), shown, exc.__traceback__


def what(exc: BaseException) -> str:
    """An exception in a few words: what it says if it is one of ours, and otherwise its type."""
    return str(exc) or type(exc).__name__ if shows_secrets() or isinstance(exc, TasksError) else type(exc).__name__


def shows_secrets() -> bool:
    return SECRETS.level == logging.DEBUG


def _without_message(exc: BaseException, depth: int) -> BaseException:
    """An exception that looks like this one in a traceback, and says nothing; those that it came from as well."""
    kind = type(exc)
    text = legible(str(exc), LONGEST_LINE) if isinstance(exc, TasksError) else WITHHELD
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    stand_in: BaseException = type(kind.__name__, (Exception,), named)(text)
    stand_in.__traceback__ = exc.__traceback__
    stand_in.__suppress_context__ = exc.__suppress_context__
    if depth:
        if exc.__cause__ is not None:
            stand_in.__cause__ = _without_message(exc.__cause__, depth - 1)
        elif isinstance(exc, BaseExceptionGroup):
            # Of many the first: a log line is no place for all of them.
            first: BaseException = cast("BaseExceptionGroup[BaseException]", exc).exceptions[0]
            stand_in.__cause__ = _without_message(first, depth - 1)
        elif exc.__context__ is not None and not exc.__suppress_context__:
            stand_in.__context__ = _without_message(exc.__context__, depth - 1)
    return stand_in
