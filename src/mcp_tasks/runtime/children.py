"""The other tasks of a run: those that it starts, each once in the life of its own task, and those that it waits for.

Both are steps as far as replay goes. A child is started under an idempotency key that its parent and its identity make:
should the process die between the start and its entry in the journal, the next run finds the same child. The store
keeps the key and the child's id until the parent has ended, so that a child that has expired by then is not started
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from mcp_tasks.core.json import JsonObject

if TYPE_CHECKING:
    from mcp_tasks.runtime.run import Run

IDENTITY_SHOWN = 60
"""Characters of an identity in the name of a step: enough to know it by, and a URI may be of any length."""


class Children:
    """The other tasks of one run."""

    def __init__(self, run: Run, *, starts_over: int = 0) -> None:
        self._run = run
        # A tool that starts over has children of its own: those of before are of another version of it.
        self._start = f"/{starts_over}" if starts_over else ""
        self._met: Counter[str] = Counter()
        self._started: set[str] = set()

    async def start(self, identity: str, launch: Callable[[str], Awaitable[str]], *, key: str | None = None) -> str:
        """The id of the child with this identity, launched now unless an earlier run did.

        Args:
            identity: What is started, and with what. The next one that equals it is another child.
            launch: Starts it under the idempotency key that it is given, and returns its id.
            key: The author's own name for the child: whatever is started under it in this task is that one child.
        """
        what = identity if key is None else f"key {key}"
        name = self._step("start", what)
        number = self._met[what] - 1 if key is None else 0
        under = f"child/{self._run.record.id}/{_digest(what)}/{number}{self._start}"

        async def once() -> str:
            return await launch(under)

        task_id: str = await self._run.step(name, once)
        self._started.add(task_id)
        return task_id

    def has_started(self, task_id: str) -> bool:
        """Whether this run, or an earlier one of its task, started this task."""
        return task_id in self._started

    async def wait(self, task_id: str, end: Callable[[], Awaitable[JsonObject]]) -> JsonObject:
        """How another task ended, as `end` says once it has; in every later run the same.

        While it waits, the run occupies no slot: the other task may need just this one.
        """
        ended: dict[str, Any] = {}

        async def wait() -> None:
            ended.update(await end())

        async def kept() -> dict[str, Any]:
            return ended

        return await self._run.step(self._step("end of task", task_id), kept, after=wait)

    def _step(self, what: str, identity: str) -> str:
        """The name of a step that is there once for each time that something equal is done."""
        self._met[identity] += 1
        shown = identity[:IDENTITY_SHOWN] if what == "start" else identity[:12] + "…"
        return f"{what} {shown} ({_digest(identity)}, #{self._met[identity]})"


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
