"""The ledger, for one task. Where there is none, nothing is kept, and callers need not care."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_tasks.client.ledger import Ledger
from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import StoreError
from mcp_tasks.wire.parse import TaskSnapshot


class TaskLedger:
    """The ledger as far as it concerns one task: of one server, by its address, and of one identity there."""

    def __init__(self, ledger: Ledger | None, task_id: str, *, server: str = "", identity: str = "") -> None:
        self._ledger = ledger
        self._task_id = task_id
        self._server = server
        self._identity = identity

    @property
    def exists(self) -> bool:
        """Whether there is a ledger."""
        return self._ledger is not None

    def add(self, tool: str, arguments: Mapping[str, Any] | None = None) -> None:
        """Add the task, and what its tool was called with.

        Raises:
            StoreError: It cannot be kept. A note of the exception has its id, which would be known to nobody.
        """
        if self._ledger is None:
            return
        try:
            self._ledger.add(
                self._task_id, server=self._server, tool=tool, identity=self._identity, arguments=arguments
            )
        except StoreError as exc:
            exc.add_note(f"The task goes on, and is not in the ledger: {self._task_id}")
            raise

    def saw(self, snapshot: TaskSnapshot) -> None:
        """Record a state of the task."""
        if self._ledger is not None:
            self._ledger.saw(self._server, snapshot, identity=self._identity)

    def lost(self) -> None:
        """Record that the server does not know the task (any more)."""
        if self._ledger is not None:
            self._ledger.lost(self._task_id, server=self._server, identity=self._identity)

    def cancelled(self) -> None:
        """Record that the server acknowledged our cancelling the task."""
        if self._ledger is not None:
            self._ledger.cancelled(self._task_id, server=self._server, identity=self._identity)

    def forget(self) -> None:
        """Remove the task."""
        if self._ledger is not None:
            self._ledger.forget(self._task_id, server=self._server, identity=self._identity)

    def recorded_answer(self, key: str, question: JsonObject) -> Mapping[str, Any] | None:
        """The recorded answer to this very question."""
        if self._ledger is None:
            return None
        return self._ledger.recorded_answer(
            self._server, self._task_id, key, question=question, identity=self._identity
        )

    def record_answer(self, key: str, question: JsonObject | None, answer: Mapping[str, Any]) -> None:
        """Record an answer, before it is sent."""
        if self._ledger is not None:
            self._ledger.record_answer(
                self._server, self._task_id, key, answer, question=question, identity=self._identity
            )

    def answer_sent(self, key: str) -> None:
        """Record that the server acknowledged the answer."""
        if self._ledger is not None:
            self._ledger.answer_sent(self._server, self._task_id, key, identity=self._identity)

    def answer_refused(self, key: str) -> None:
        """Remove an answer that the server refused."""
        if self._ledger is not None:
            self._ledger.answer_refused(self._server, self._task_id, key, identity=self._identity)
