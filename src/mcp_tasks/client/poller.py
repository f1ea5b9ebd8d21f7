"""When to look at a task again: decisions without I/O and without a clock.

Times are seconds on any clock that only goes forward; the caller says what time it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self, TypeAlias, cast

from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED

from mcp_tasks._utils import short_id
from mcp_tasks.errors import TasksError
from mcp_tasks.model.limits import backoff
from mcp_tasks.model.values import check_duration
from mcp_tasks.protocol.shapes import TaskSnapshot
from mcp_tasks.quiet import get_logger

DEFAULT_INTERVAL = 1.0
"""For a server that suggests no interval."""

SHORTEST_INTERVAL = 0.05
"""The least, whatever a server suggests: polling is not a busy loop."""

BACKSTOP = 30.0
"""With push, poll this often: for lost notifications, and for a stream that died silently."""

SOON = 0.2
"""Before a look that a hint asks for, ahead of the server's pace. It doubles with each such look of a wait: a server
that hints all the time is polled at the interval that it suggests."""

MOST_UNREADABLE = 5
"""Answers in a row that are no JSON-RPC. One may have been cut off on its way; so many are what the server sends."""

OnOutage: TypeAlias = Callable[[timedelta | None], None]
"""Called whenever a server could not be asked, with how long it has been out of reach; and with None when it is back.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long a server may be unreachable before a wait ends, and how often it is tried meanwhile.

    Attributes:
        max_outage: How long it may be unreachable, from the first failure in a row.
        first_pause: The pause after the first failure; it doubles with every further one, with jitter.
        max_pause: The longest pause.
    """

    max_outage: timedelta = timedelta(minutes=5)
    first_pause: timedelta = timedelta(milliseconds=250)
    max_pause: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        check_duration("max_outage", self.max_outage, zero=True)
        check_duration("first_pause", self.first_pause)
        check_duration("max_pause", self.max_pause)


class Poller:
    """Decides for one task when to look at it next.

    Args:
        on_outage: Told when looks fail, and when they no longer do.
    """

    def __init__(
        self,
        patience: Patience | None = None,
        *,
        jitter: Callable[[], float] = random.random,
        on_outage: OnOutage | None = None,
    ) -> None:
        self._patience = patience or Patience()
        self._jitter = jitter
        self._on_outage = on_outage
        self._interval = DEFAULT_INTERVAL
        self._hints = 0
        self._pushed = False
        self._failures = 0
        self._failing_since = 0.0
        self._unreadable = 0
        self.next_look: float = 0.0

    def saw(self, snapshot: TaskSnapshot, now: float, *, pushed: bool) -> None:
        """A state arrived, by a look or pushed. `pushed` says whether notifications are known to come."""
        if self._failures and self._on_outage is not None:
            self._on_outage(None)
        self._failures = self._unreadable = 0
        self._pushed = pushed
        suggested = DEFAULT_INTERVAL if snapshot.poll_interval is None else snapshot.poll_interval.total_seconds()
        # No upper limit: a client SHOULD respect the interval, however long it is.
        self._interval = max(suggested, SHORTEST_INTERVAL)
        self.next_look = now + (max(self._interval, BACKSTOP) if pushed else self._interval)

    def hinted(self, now: float, *, ended: bool = False) -> None:
        """Something tells of a change of the task, or of its end, without saying which: look ahead of the pace."""
        look = now + (0 if ended and not self._hints else SOON * 2 ** min(self._hints, 30))
        if look < self.next_look:
            self.next_look = look
            self._hints += 1

    def lost_push(self, now: float) -> None:
        """Notifications stopped: go back to polling at the server's pace."""
        if self._pushed:
            self._pushed = False
            self.next_look = min(self.next_look, now + self._interval)

    def failed(self, now: float, *, unreadable: bool = False) -> bool:
        """A look failed for now, or had an answer that is `unreadable`. Whether to try again; if so, `next_look` says
        when."""
        self._unreadable = self._unreadable + 1 if unreadable else 0
        if not self._failures:
            self._failing_since = now
        pause = backoff(self._failures, base=self._patience.first_pause, limit=self._patience.max_pause).total_seconds()
        self._failures += 1
        # Half of the pause is certain, half is chance: clients of a server that comes back do not come all at once.
        self.next_look = now + pause * (0.5 + self._jitter() / 2)
        in_time = self.next_look - self._failing_since <= self._patience.max_outage.total_seconds()
        tries_again = in_time and self._unreadable < MOST_UNREADABLE
        if tries_again and self._on_outage is not None:
            self._on_outage(timedelta(seconds=now - self._failing_since))
        return tries_again


# ---- failure
# `TaskFailed`, where clients look for it, and `CallLost`: both are errors of the SDK's as well as ours.


class CallLost(TasksError, MCPError):
    """A call got no answer. Code that handles the `MCPError` of a plain call handles this one too.

    Attributes:
        tool: Which tool was called.
        may_have_run: Whether the call may have been made. If not, it was never sent.
        idempotency_key: The key that it was made under. Where the server honours it, another call under the same one
            comes to the same task. It is not in the text, as it may be all that keeps others from that task.
        error: The JSON-RPC error that the SDK made of it; `code`, `message` and `data` are its parts.
    """

    tool: str = ""
    may_have_run: bool = True
    idempotency_key: str | None = None
    _how_to_go_on: str = ""

    # No constructor of its own: the SDK builds errors by the parameters of its class, and so does unpickling.

    @classmethod
    def of(cls, exc: Exception, *, tool: str, key: str | None, may_have_run: bool, is_honoured: bool) -> Self:
        """The exception for a call that failed with this one."""
        code, data = (exc.code, exc.error.data) if isinstance(exc, MCPError) else (CONNECTION_CLOSED, None)
        lost = cls(code, exc.message if isinstance(exc, MCPError) else str(exc) or type(exc).__name__, data)
        lost.tool, lost.idempotency_key, lost.may_have_run = tool, key, may_have_run
        lost._how_to_go_on = _how_to_go_on(may_have_run=may_have_run, is_honoured=is_honoured and key is not None)
        return lost

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message, self.error.data), self.__dict__

    def __str__(self) -> str:
        return f"the call of {self.tool!r} got no answer: {self.message.rstrip('.')}. {self._how_to_go_on}"


def _how_to_go_on(*, may_have_run: bool, is_honoured: bool) -> str:
    if not may_have_run:
        return "It was never sent, so it was not made: call again when the server can be reached."
    if is_honoured:
        return (
            "It may have been made. Make it again with idempotency_key=exc.idempotency_key: if it was, that gives its "
            "task, and nothing runs twice."
        )
    return (
        "It may have been made, and this server does not say that it honours idempotency keys: find out before you "
        "make it again."
    )


# ---- life
# The lives of a client's tasks, as one logger tells them: `mcp_tasks.client`.


logger: Final = get_logger("mcp_tasks.client")

_KINDS: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


class TaskLife:
    """The life of one task."""

    def __init__(self, task_id: str, tool: str) -> None:
        self._task = f"{short_id(task_id)} of {tool!r}" if tool else short_id(task_id)
        self._is_away = False
        self._has_ended = False

    def created(self) -> None:
        """A call became the task."""
        logger.info("task %s was created", self._task)

    def resumed(self) -> None:
        """Somebody came back to it."""
        logger.info("task %s is taken up again", self._task)

    def asked(self, question: object) -> None:
        """A question of the task goes to a callback."""
        # A server may send anything in its place.
        method = cast("Mapping[str, Any]", question).get("method") if isinstance(question, Mapping) else None
        logger.info("task %s asks (%s)", self._task, _KINDS.get(str(method), "unknown"))

    def answered(self) -> None:
        """The server has the answer."""
        logger.info("task %s has its answer", self._task)

    def refused(self, exc: Exception) -> None:
        """A callback failed, and the server has its error as the answer."""
        logger.warning("task %s asks, and is answered with an error: %s", self._task, _kind(exc))

    def unanswered(self, exc: Exception) -> None:
        """A question got no answer."""
        logger.warning("task %s asks, and got no answer: %s", self._task, _kind(exc.__cause__ or exc))

    def out_of_reach(self, exc: Exception) -> None:
        """The server could not be asked about it; said once, however long that lasts."""
        if not self._is_away:
            self._is_away = True
            logger.warning("task %s cannot be looked at, trying again: %s", self._task, _kind(exc))

    def reached(self) -> None:
        """The server could be asked about it."""
        if self._is_away:
            self._is_away = False
            logger.info("task %s can be looked at again", self._task)

    def seen(self, snapshot: TaskSnapshot) -> None:
        """The server has shown it."""
        if snapshot.is_final and not self._has_ended:
            self._has_ended = True
            logger.info("task %s is %s", self._task, snapshot.status.value)

    def unknown(self) -> None:
        """The server does not know it."""
        logger.warning("task %s is not known to its server (any more)", self._task)


def call_repeated(tool: str, failure: Exception) -> None:
    """A call got no answer, or its server could not make it for now, and the call is made again."""
    why = _kind(failure.__cause__ or failure)
    logger.warning("the call of %r got no answer or was refused for now (%s): making it again", tool, why)


def _kind(exc: BaseException) -> str:
    return f"error {exc.code}" if isinstance(exc, MCPError) else type(exc).__name__
