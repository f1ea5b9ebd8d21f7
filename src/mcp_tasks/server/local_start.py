"""A task that code in the server's own process starts: what is asked for, whose it is, and under which key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from mcp_types.version import LATEST_MODERN_VERSION

from mcp_tasks.core.durations import check_duration
from mcp_tasks.core.record import TaskRecord, TaskRequest
from mcp_tasks.core.values import check_text
from mcp_tasks.errors import (
    InvalidOption,
    KeySpent,
    OwnerRequired,
    StoreUnavailable,
    UsageError,
    ValueNotStorable,
)
from mcp_tasks.runtime import Run, TaskRuntime
from mcp_tasks.server.options import TaskOptions, Unset

ALL_CAPABILITIES: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
"""A task that is started in this process may ask anything: `send_input` can answer anything."""


def request_for(method: str, name: str, arguments: Mapping[str, Any] | None) -> TaskRequest:
    """The request that a client would have made.

    Raises:
        InvalidOption: The name is not one, or the arguments are not.
    """
    check_text("uri" if method == "resources/read" else "name", name)
    if arguments is not None and not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"arguments must be a mapping of names to values, got {arguments!r}")
    if wrong := [key for key in arguments or () if not isinstance(key, str)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"the names of arguments must be strings, got {wrong[0]!r}")
    return TaskRequest(
        method=method,
        name=name,
        arguments=dict(arguments or {}),
        protocol_version=LATEST_MODERN_VERSION,
        client_capabilities=ALL_CAPABILITIES,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalStart:
    """A task to be started from code in this process."""

    request: TaskRequest
    options: TaskOptions
    ttl: timedelta | Unset | None
    owner: str | Unset | None
    session: str | Unset | None
    key: str | None

    def __post_init__(self) -> None:
        if self.ttl is not None and not isinstance(self.ttl, Unset):
            check_duration("ttl", self.ttl)
        for name in ("owner", "session"):
            value: object = getattr(self, name)
            if value is not None and not isinstance(value, str | Unset):
                raise InvalidOption(f"{name} must be a string or None, got {value!r}")
        if self.key is not None:
            check_text("key", self.key)

    @property
    def identity(self) -> str:
        """What is started, and with what."""
        try:
            arguments = json.dumps(self.request.arguments, sort_keys=True)
        except (TypeError, ValueError, RecursionError) as exc:
            raise ValueNotStorable(f"the arguments of {self.request.name!r} are not JSON: {exc}") from exc
        return f"{self.request.method} {self.request.name} {arguments}"

    async def launch(self, runtime: TaskRuntime, usual: TaskOptions, key: str | None, run: Run | None = None) -> str:
        """The id of the new task, or of the one that stands or stood under the key."""
        parent = None if run is None else run.record
        owner = self._owner(runtime, run)
        session = parent and parent.session if isinstance(self.session, Unset) else self.session
        try:
            record = await runtime.launch(
                self.request,
                owner=owner,
                retention=self.options.retention(usual) if isinstance(self.ttl, Unset) else self.ttl,
                poll_interval=self.options.poll_interval,
                key=key,
                session=session,
                parent=None if parent is None else parent.id,
            )
        except KeySpent as exc:
            if exc.task_id is None:
                if run is None:
                    raise
                # The task that this run belongs to has ended, and the run has not heard of it yet.
                run.stop()
                await run.go_no_further()
            # An earlier run started it, and its result has expired by now. Who waits for it is told so.
            return exc.task_id
        if self.key is not None:
            await self._check_same(runtime, record)
        return record.id

    def owner_in(self, run: Run | None) -> str | None:
        """The owner that is given, or that of the run's own task."""
        return (run and run.record.owner) if isinstance(self.owner, Unset) else self.owner

    def _owner(self, runtime: TaskRuntime, run: Run | None) -> str | None:
        """Whose task it will be.

        Raises:
            OwnerRequired: Nobody's, on a server where every task has to have an owner.
        """
        owner = self.owner_in(run)
        if not owner and runtime.requires_owner:
            whose = "the task that it is started in has no owner either" if run is not None else "nobody is named"
            raise OwnerRequired(
                f"{self.request.name!r} was to be started as a task that nobody owns ({whose}), and this server "
                "requires authentication, so that nobody could see it: say whose it is, as in "
                'tasks.start(..., owner="reports"). Tasks of a client\'s user have the owner that '
                "current_task().owner gives in a tool that runs for them"
            )
        return owner

    async def _check_same(self, runtime: TaskRuntime, record: TaskRecord) -> None:
        try:
            standing = await runtime.store.request(record.id)
        except StoreUnavailable as exc:
            # Only the check failed. The task was made.
            raise StoreUnavailable(str(exc), may_have_happened=True) from exc
        mine = self.request
        if standing is not None and (standing.method, standing.name, dict(standing.arguments)) != (
            mine.method,
            mine.name,
            dict(mine.arguments),
        ):
            raise UsageError(
                f"under the key {self.key!r} stands another call, of {standing.name!r} or with other arguments: "
                "one key is for one call"
            )
