"""The lives of a client's tasks, as one logger tells them: `mcp_tasks.client`.

Tools by their names, tasks by the beginnings of their ids, and never what was asked, answered or returned: a task's id
is as good as the task, and so is the key of a call. Errors of a server are told by their codes, not by their texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from mcp.shared.exceptions import MCPError

from mcp_tasks.quiet import get_logger, short_id
from mcp_tasks.wire.parse import TaskSnapshot

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
