"""Docket, without what it says about itself: our ids are no work of their own, and the tasks they stand for are told of
elsewhere.

Everything of Docket's runs in a context that says so. What it logs there is let through only when debugging, or when it
is a mistake; a server that is away is one line of ours. Spans have a parent that is not sampled, so none is recorded
under the sampler that OpenTelemetry begins with. Whoever uses Docket for something else in the same process hears all
of it.
"""

from __future__ import annotations

import contextvars
import logging
import time
from contextvars import Context, ContextVar
from typing import Final

from opentelemetry import context, trace
from redis.exceptions import RedisError

from mcp_tasks.quiet import get_logger, what

logger: Final = get_logger("mcp_tasks.engines.docket")

QUIET_FOR: Final = 60.0
"""Seconds between two lines about a server that is away."""

_LOGGERS: Final = ("docket", "execution", "strikelist", "worker", "_redelivery", "_redis", "_redis_sentinel")

_voice: ContextVar[_Voice | None] = ContextVar("mcp_tasks_docket_voice", default=None)


def quiet_context() -> Context:
    """A copy of the current context in which Docket is quiet."""
    new = contextvars.copy_context()
    new.run(_voice.set, _Voice())
    new.run(context.attach, trace.set_span_in_context(trace.NonRecordingSpan(_NOT_SAMPLED)))
    return new


_NOT_SAMPLED: Final = trace.SpanContext(trace_id=1, span_id=1, is_remote=False, trace_flags=trace.TraceFlags(0))


class _Voice:
    """Says that the server is away, once in a while."""

    def __init__(self) -> None:
        self._said = -QUIET_FOR

    def away(self, error: BaseException) -> None:
        """Something could not be asked of the server."""
        now = time.monotonic()
        if now - self._said >= QUIET_FOR:
            self._said = now
            logger.warning("Redis does not carry tasks now, and is tried again until it does: %s", what(error))


class _Quiet(logging.Filter):
    """Decides what is let through of what Docket logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is."""
        voice = _voice.get()
        if voice is None:
            return True
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.ERROR and not _is_of_redis(error):
            return True
        if record.levelno >= logging.WARNING and error is not None:
            voice.away(error)
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def _is_of_redis(error: BaseException | None) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.split(RedisError)[1] is None
    return isinstance(error, RedisError)


_quiet: Final = _Quiet()
for _name in _LOGGERS:
    logging.getLogger(f"docket.{_name}").addFilter(_quiet)
