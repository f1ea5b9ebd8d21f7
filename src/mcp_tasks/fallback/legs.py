"""A call that takes several requests: what each of them brings along, and is told to bring the next time.

A client of the newest era that is answered with an `InputRequiredResult` comes back with its `requestState`. Ours is
opened and sealed outside the SDK's own boundary for such states, which would seal it under a key of its process and
refuse it after a restart. What a tool, or its `Resolve(...)` parameters, put into their own state passes inside that
boundary in plain text, and lies within ours on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, cast

from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from mcp.server.request_state import RequestStateBoundary
from mcp_types import INVALID_PARAMS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_tasks.adapters.era import RequestContext
from mcp_tasks.adapters.sdk import caller_of
from mcp_tasks.errors import TasksError
from mcp_tasks.fallback.keys import InvalidState, StateKeys
from mcp_tasks.fallback.state import PREFIX, CallState, open_state, seal_state
from mcp_tasks.protocol import Caller, RpcError
from mcp_tasks.quiet import get_logger
from mcp_tasks.tools.sdk_errors import to_mcp_error

logger: Final = get_logger(__name__)

_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)


@dataclass(slots=True)
class Leg:
    """One request of a call.

    Attributes:
        brought: What it came with; None for the first of a call.
        takes: What the next one is to come with, sealed, if the answer is that there is to be one.
    """

    brought: CallState | None = None
    takes: str | None = None


current_leg: ContextVar[Leg | None] = ContextVar("mcp_tasks_current_leg", default=None)
"""The request that is being answered; None where it cannot come back."""


def comes_back() -> bool:
    """Whether the request that is being answered is one of a call that has a task already."""
    leg = current_leg.get()
    return leg is not None and leg.brought is not None and leg.brought.task_id is not None


class Legs:
    """Opens what a request brings, and seals what the next one is to bring."""

    def __init__(self, keys: StateKeys, *, owner: Callable[[Caller], str | None], now: Callable[[], datetime]) -> None:
        self._keys = keys
        self._owner = owner
        self._now = now

    async def outside(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware that goes before the SDK's boundary."""
        if ctx.method != "tools/call" or ctx.request_id is None:
            return await call_next(ctx)
        leg = Leg() if ctx.protocol_version in _MODERN else None
        params = ctx.params or {}
        state = params.get("requestState")
        if leg is not None and isinstance(state, str) and state.startswith(PREFIX):
            leg.brought = await self._open(ctx, state)
            ctx = replace(ctx, params={name: value for name, value in params.items() if name != "requestState"})
        # Also where there is none: the call may be made by a tool, in the context of the call that it answers.
        token = current_leg.set(leg)
        try:
            result = await call_next(ctx)
        finally:
            current_leg.reset(token)
        if leg is None or leg.takes is None or not isinstance(result, Mapping):
            return result
        return {**result, "requestState": leg.takes}

    async def inside(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware that goes after it: gives the tool back what it put into a state of its own."""
        leg = current_leg.get()
        inner = None if leg is None or leg.brought is None else leg.brought.inner
        if inner is not None and ctx.method == "tools/call":
            ctx = replace(ctx, params={**(ctx.params or {}), "requestState": inner})
        return await call_next(ctx)

    async def seal(self, ctx: RequestContext, state: CallState) -> str:
        """The state for the next request of a call.

        Raises:
            StoreError: There is no key, and the store cannot be reached.
        """
        tool, arguments = _target(ctx)
        return await seal_state(self._keys, state, tool=tool, arguments=arguments, owner=self._owner(caller_of(ctx)))

    async def _open(self, ctx: RequestContext, state: str) -> CallState:
        tool, arguments = _target(ctx)
        try:
            owner = self._owner(caller_of(ctx))
            return await open_state(self._keys, state, tool=tool, arguments=arguments, owner=owner, now=self._now())
        except InvalidState as exc:
            raise to_mcp_error(refused_state(str(exc))) from exc
        except (RpcError, TasksError) as exc:
            raise to_mcp_error(exc) from exc


def refused_state(reason: str) -> RpcError:
    """The refusal of a state, in the words in which the SDK refuses its own; the reason is for the log."""
    logger.warning("a requestState is refused: %s", reason)
    return RpcError(INVALID_PARAMS, "Invalid or expired requestState", {"reason": "invalid_request_state"})


def put_around_boundary(
    chain: list[ServerMiddleware[Any]], outside: ServerMiddleware[Any], inside: ServerMiddleware[Any]
) -> None:
    """Put the two into a server's middleware, before and after the SDK's boundary. Twice changes nothing."""
    if outside not in chain:
        boundaries = [place for place, each in enumerate(chain) if isinstance(each, RequestStateBoundary)]
        chain.insert(boundaries[0] if boundaries else len(chain), outside)
    if inside not in chain:
        chain.append(inside)


def _target(ctx: RequestContext) -> tuple[str, Mapping[str, Any]]:
    params = ctx.params or {}
    name, arguments = params.get("name"), params.get("arguments")
    return str(name), cast("Mapping[str, Any]", arguments) if isinstance(arguments, Mapping) else {}
