"""Questions a tool asks before its work begins (SEP-2663, "Composition with Multi Round-Trip Requests").

They SHOULD be settled on the original `tools/call`, and only the leg that does the work becomes a task. A tool asks
before in one of two ways, and each is recognised by its own means:

- `Resolve(...)` parameters: the SDK asks for them before it enters the function. So a leg is run inline, and where
  the function would be entered it ends: everything is answered, the task can be made.
- A body that returns an `InputRequiredResult` first: nobody can tell from outside where the asking ends. So the task
  is made, and not announced until the body either asks by returning (then the question is answered inline and the
  task is forgotten), or shows that it is at work, or has had some time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final

from mcp.server.context import HandlerResult
from mcp.server.mcpserver.resolve import find_resolved_parameters, returns_input_required
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolResult, InputRequiredResult

from mcp_tasks.core.text import valid_json
from mcp_tasks.errors import WiringError

ANNOUNCE_AFTER: Final = timedelta(seconds=1)
"""How long a body that may ask by returning is given to do so before its task is announced. A check that takes
longer is not lost: the question is then asked in the task."""

STARTED_VERSION: Final = 2
"""Created is version 1, taken by a run is 2: anything after that is the body at work."""

_inspecting: ContextVar[bool] = ContextVar("mcp_tasks_inspecting", default=False)


class BodyReached(MCPError):
    """Everything before the tool's body is settled. An `MCPError`, because only those pass through the SDK's tool."""

    def __init__(self) -> None:
        super().__init__(code=INTERNAL_ERROR, message="the body of the tool was reached while only its parameters ran")


@asynccontextmanager
async def only_parameters() -> AsyncGenerator[None]:
    """In here a tool with `Resolve(...)` parameters ends with `BodyReached` instead of doing its work."""
    token = _inspecting.set(True)
    try:
        yield
    finally:
        _inspecting.reset(token)


def resolves_parameters(function: Callable[..., Any]) -> bool:
    """Whether the SDK asks for parameters of this function."""
    return bool(_inspect(find_resolved_parameters, function))


def asks_by_returning(function: Callable[..., Any]) -> bool:
    """Whether the function declares that it may return an `InputRequiredResult`."""
    return bool(_inspect(returns_input_required, function))


def stop_at_body(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with a stop at its first line while only its parameters are wanted."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def guarded_async(*args: Any, **kwargs: Any) -> Any:
            if _inspecting.get():
                raise BodyReached
            return await function(*args, **kwargs)

        return guarded_async

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if _inspecting.get():
            raise BodyReached
        return function(*args, **kwargs)

    return guarded


def settled_before_body(result: HandlerResult, tool: str) -> HandlerResult:
    """The answer of a leg that ended before the tool's body: a question, or an error in its arguments.

    Raises:
        WiringError: The body ran, so it is not the one that stops: the decorators are in the wrong order.
    """
    if isinstance(result, InputRequiredResult):
        return readable(result)
    if isinstance(result, CallToolResult) and result.is_error:
        return result
    raise WiringError(
        f"tool {tool!r} has Resolve(...) parameters and was registered before it was marked: "
        "put @server.tool() above @tasks.task()"
    )


def readable(asked: InputRequiredResult) -> InputRequiredResult:
    """The question in text that every client can parse."""
    dumped = asked.model_dump(by_alias=True, mode="json", exclude_none=True)
    valid = valid_json(dumped)
    return asked if valid == dumped else InputRequiredResult.model_validate(valid, by_name=False)


class Guards:
    """Tasks that are not announced yet, and what their tools asked by returning."""

    def __init__(self) -> None:
        self._open: dict[str, InputRequiredResult | None] = {}

    @contextmanager
    def call(self) -> Generator[Guard]:
        """While an original call is being answered. Whichever way it ends, nothing can be asked on it after that."""
        guard = Guard(self._open)
        try:
            yield guard
        finally:
            guard.close()

    def offer(self, task_id: str, asked: InputRequiredResult) -> bool:
        """Ask on the original call; False if that has been answered already."""
        if task_id not in self._open:
            return False
        self._open[task_id] = asked
        return True


class Guard:
    """One original call, on which the tool of one task may ask."""

    def __init__(self, opened: dict[str, InputRequiredResult | None]) -> None:
        self._opened = opened
        self._task_id: str | None = None

    def open(self, task_id: str) -> None:
        """From now on the tool of this task may ask on the original call."""
        self._task_id = task_id
        self._opened[task_id] = None

    def close(self) -> InputRequiredResult | None:
        """The original call is answered now, with this question if there is one."""
        return None if self._task_id is None else self._opened.pop(self._task_id, None)


def _inspect(question: Callable[[Callable[..., Any]], Any], function: Callable[..., Any]) -> Any:
    try:
        return question(function)
    except Exception:
        # A signature that cannot be read is for the SDK to report, when the tool is registered.
        return None
