"""Parameters that are asked for before the tool's body (SEP-2663, "Composition with Multi Round-Trip Requests").

Questions before the work SHOULD be settled on the original `tools/call`, and only the leg that does the work becomes a
task. A tool asks before in one of two ways, and each is recognised by its own means:

- `Resolve(...)` parameters: the SDK asks for them before it enters the function. So a leg is run inline, and where
  the function would be entered it ends: everything is answered, the task can be made. That is what is here.
- A body that returns an `InputRequiredResult` first: nobody can tell from outside where the asking ends. So the task
  is made first, and announced later: see `creation`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from mcp.server.context import HandlerResult
from mcp.server.mcpserver.resolve import find_resolved_parameters, returns_input_required
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolResult, InputRequiredResult

from mcp_tasks.core.text import valid_json
from mcp_tasks.errors import WiringError

_only_parameters: ContextVar[bool] = ContextVar("mcp_tasks_only_parameters", default=False)
"""Whether the tool's function is not to be entered."""


class _BodyReached(MCPError):
    """Everything before the tool's body is settled. An `MCPError`, because only those pass through the SDK's tool."""

    def __init__(self) -> None:
        super().__init__(code=INTERNAL_ERROR, message="the body of the tool was reached while only its parameters ran")


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
        async def stopping_async(*args: Any, **kwargs: Any) -> Any:
            _stop_if_only_parameters()
            return await function(*args, **kwargs)

        return stopping_async

    @functools.wraps(function)
    def stopping(*args: Any, **kwargs: Any) -> Any:
        _stop_if_only_parameters()
        return function(*args, **kwargs)

    return stopping


async def settle_parameters(call: Callable[[], Awaitable[HandlerResult]], tool: str) -> HandlerResult | None:
    """Run a call of a tool whose function has a stop at its body, up to there.

    Returns what the call is answered with (a question, or an error in its arguments); None if the body was reached, and
    the work can begin.

    Raises:
        WiringError: The body ran, so it is not the one with the stop: the decorators are in the wrong order.
    """
    token = _only_parameters.set(True)
    try:
        result = await call()
    except _BodyReached:
        return None
    finally:
        _only_parameters.reset(token)
    if isinstance(result, InputRequiredResult):
        return _readable(result)
    if isinstance(result, CallToolResult) and result.is_error:
        return result
    raise WiringError(
        f"tool {tool!r} has Resolve(...) parameters and was registered before it was marked: "
        "put @server.tool() above @tasks.task()"
    )


def _stop_if_only_parameters() -> None:
    if _only_parameters.get():
        raise _BodyReached


def _readable(asked: InputRequiredResult) -> InputRequiredResult:
    """The question in text that every client can parse."""
    dumped = asked.model_dump(by_alias=True, mode="json", exclude_none=True)
    valid = valid_json(dumped)
    return asked if valid == dumped else InputRequiredResult.model_validate(valid, by_name=False)


def _inspect(question: Callable[[Callable[..., Any]], Any], function: Callable[..., Any]) -> Any:
    try:
        return question(function)
    except Exception:
        # A signature that cannot be read is for the SDK to report, when the tool is registered.
        return None
