"""How much a server may have a client's callbacks do: it is a stranger, and they ask a person or a model."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import AbstractAsyncContextManager
from typing import Final
from weakref import WeakKeyDictionary

from mcp_tasks.core.values import check_number

AT_ONCE: Final = 4
PER_TASK: Final = 100

MAX_KNOWN: Final = 10_000
"""Tasks whose callbacks are counted. The one that was asked about longest ago is forgotten first."""


class Callbacks:
    """The callbacks of one `TasksClient`, for elicitation, sampling and roots.

    Attributes:
        at_once: How many work at a time, for all tasks together. Others wait for their turn.
        per_task: How many questions one task may ask in all.
    """

    def __init__(self, at_once: int = AT_ONCE, per_task: int = PER_TASK) -> None:
        check_number("max_callbacks", at_once, 1)
        check_number("max_callbacks_per_task", per_task, 1)
        self.at_once: int = at_once
        self.per_task: int = per_task
        # One per event loop: a semaphore belongs to the first that waits in it.
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._asked: OrderedDict[str, int] = OrderedDict()

    def wait_for_turn(self) -> AbstractAsyncContextManager[None]:
        """Waits for one callback's turn, and has it while it is entered."""
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.at_once))

    def admit(self, task_id: str) -> bool:
        """Count one question more of a task; whether it may ask it."""
        asked = self._asked.get(task_id, 0) + 1
        self._asked[task_id] = asked
        self._asked.move_to_end(task_id)
        if len(self._asked) > MAX_KNOWN:
            self._asked.popitem(last=False)
        return asked <= self.per_task
