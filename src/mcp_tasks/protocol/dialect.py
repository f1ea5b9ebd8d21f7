"""What differs between the eras of the protocol, behind one seam.

A dialect parses, renders and words refusals. It decides nothing about tasks, and nothing above it asks which version a
caller speaks: `Dialects` is the one place where the version chooses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from mcp_types import METHOD_NOT_FOUND

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import Outcome, TaskRecord
from mcp_tasks.protocol.caller import Caller
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.message import Message


class Dialect(Protocol):
    """How one era words tasks."""

    @property
    def versions(self) -> frozenset[str]:
        """The versions of the protocol that are worded like this."""
        ...

    @property
    def methods(self) -> frozenset[str]:
        """The methods of this era that have to do with tasks."""
        ...

    @property
    def notification_method(self) -> str:
        """The notification that carries the state of a task."""
        ...

    def declares_tasks(self, caller: Caller) -> bool:
        """Whether the client said, in the way of this era, that it takes tasks."""
        ...

    def undeclared(self) -> RpcError:
        """The refusal of a request that needs that declaration."""
        ...

    def parse_task_id(self, params: JsonObject) -> str:
        """The task that `tasks/get` or `tasks/cancel` names.

        Raises:
            RpcError: The params are malformed; so it is for the other parsers.
        """
        ...

    def parse_answers(self, params: JsonObject) -> tuple[str, Mapping[str, Any]]:
        """The task that `tasks/update` names, and the answers by key."""
        ...

    def parse_listened(self, params: JsonObject) -> Sequence[str]:
        """The tasks that a listen request names, each once."""
        ...

    def asks_to_listen(self, params: JsonObject) -> bool:
        """Whether a listen request is about tasks at all, well-formed or not."""
        ...

    def created(self, record: TaskRecord, now: datetime) -> Message:
        """The answer to a call that became a task."""
        ...

    def result(self, outcome: Outcome) -> bytes:
        """The answer to a call whose tool ended before there was a task to speak of, as JSON."""
        ...

    def question(self, question: JsonObject) -> Message:
        """The answer to a call whose tool asks before there is a task."""
        ...

    def task(self, record: TaskRecord, outcome: Outcome | None, now: datetime) -> Message:
        """The answer to `tasks/get`."""
        ...

    def moving(self, record: TaskRecord, now: datetime) -> JsonObject:
        """Those fields of the answer to `tasks/get` that depend on when it is given."""
        ...

    def acknowledgement(self) -> Message:
        """The answer to `tasks/update` and `tasks/cancel`."""
        ...

    def notification(self, record: TaskRecord, outcome: Outcome | None, now: datetime) -> Message:
        """The params of the notification that carries the state of a task."""
        ...


class Dialects:
    """The dialects that a server speaks, by version."""

    def __init__(self, dialects: Iterable[Dialect]) -> None:
        self._by_version = {version: dialect for dialect in dialects for version in dialect.versions}

    def speaks(self, version: str) -> bool:
        """Whether there is a dialect for that version."""
        return version in self._by_version

    def find(self, caller: Caller) -> Dialect | None:
        """The dialect of a caller; None in an era that has no tasks."""
        return self._by_version.get(caller.protocol_version)

    def require(self, caller: Caller, method: str) -> Dialect:
        """The dialect in which a caller uses a method.

        Raises:
            RpcError: -32601: in that era there is no such method.
        """
        dialect = self.find(caller)
        if dialect is None or method not in dialect.methods:
            raise RpcError(METHOD_NOT_FOUND, "Method not found", method)
        return dialect
