"""What somebody does who follows calls and tasks: is told what happens, and answers what is asked."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from mcp_tasks.client.followed import Followed
from mcp_tasks.client.questions import Question
from mcp_tasks.client.servers.unreachable import leaves


class Hooks:
    """What somebody does who follows tasks. Every hook does nothing, until a class of yours says otherwise. It is told
    how the task, or the call, stands. What one raises ends the following, and is raised from it as it is.

    Attributes:
        can_answer: Whether there is somebody to ask. If not, a task that asks something ends the wait for it.
    """

    can_answer: bool = False

    def on_change(self, followed: Followed) -> None:
        """The task has a new state; or its server cannot be reached, and is tried again. That is told after every try,
        and `away_since` says since when it lasts."""

    async def on_question(self, followed: Followed, question: Question) -> Mapping[str, Any] | None:
        """The task asks something.

        Returns:
            The answer, as `TaskHandle.answer` takes it. None leaves the question open, and ends the wait for this task.
        """
        return None

    def on_withdrawn(self, followed: Followed, key: str) -> None:
        """The task no longer asks what `on_question` was working on, which has been cancelled."""

    def on_refused(self, followed: Followed, key: str, problem: Exception) -> None:
        """The server refused the answer. The question is asked again."""

    def on_back(self, followed: Followed, after: timedelta) -> None:
        """The task's server can be reached again."""

    def on_call_ended(self, followed: Followed) -> None:
        """A call of `Follower.call` is over: it was answered, failed, or has become a task, which has its own entry."""

    def on_problem(self, followed: Followed, problem: Exception) -> None:
        """The wait for the task has ended, and no more is known of it."""

    def on_not_cancelled(self, followed: Followed, problem: Exception) -> None:
        """`Follower.cancel_all` could not cancel the task."""


class HookFailed(Exception):
    """A hook raised; the cause is what it raised."""


@contextmanager
def in_hook() -> Generator[None]:
    """Tells what a hook raises from the troubles of servers: an `OSError` of its own ends no wait for a task."""
    try:
        yield
    except Exception as exc:
        raise HookFailed from exc


@contextmanager
def raised_by_hooks() -> Generator[None]:
    """Raises what a hook raised, as it was, out of the groups that it comes in."""
    try:
        yield
    except (HookFailed, BaseExceptionGroup) as exc:
        failed = next((leaf for leaf in leaves(exc) if isinstance(leaf, HookFailed)), None)
        if failed is None or failed.__cause__ is None:
            raise
        raise failed.__cause__ from None
