"""What one call wants of the task that it may become, on its way through the SDK and back.

The SDK has no room for options of an extension in `call_tool`, but hands the tool's name through to the claim as it was
given: the options ride on the name. A handle comes back as an exception, because a claim must return a tool's result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from mcp_tasks.client.handle import OnAbandon, OnProgress, TaskHandle, check_on_abandon, check_on_progress
from mcp_tasks.client.repeating import check_key
from mcp_tasks.core.durations import check_duration, seconds_of


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOptions:
    """How one call treats the task that it may become. None means as the `TasksClient` was made.

    Attributes:
        arguments: What the tool is called with, for the ledger: a claim is not told.
    """

    timeout: timedelta | float | None = None
    on_progress: OnProgress | None = None
    on_abandon: OnAbandon | None = None
    want_handle: bool = False
    ttl: timedelta | None = None
    idempotency_key: str | None = None
    arguments: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        # Here, because here nothing has been sent yet.
        seconds_of(self.timeout)
        check_on_abandon(self.on_abandon)
        check_on_progress(self.on_progress)
        check_key(self.idempotency_key)
        if self.ttl is not None:
            check_duration("ttl", self.ttl, zero=True)


class ToolName(str):
    """A tool's name that carries the options of the one call it is given to.

    Anything kept beside the call (a context variable, the running asyncio task) would be found by calls that are made
    inside its callbacks as well.
    """

    options: CallOptions

    def __new__(cls, name: str, options: CallOptions) -> Self:
        tool = super().__new__(cls, name)
        tool.options = options
        return tool


def options_of(name: str) -> CallOptions:
    """The options that ride on a tool's name; the defaults for a plain name."""
    return name.options if isinstance(name, ToolName) else CallOptions()


class HandleWanted(Exception):
    """The call became a task, and its caller wants the handle."""

    def __init__(self, handle: TaskHandle) -> None:
        self.handle = handle
        super().__init__(f"the caller of {handle!r} wants the handle")
