"""Calls that are made once, also where the answer to one is lost.

A call whose answer does not come may have been made or not, and only its server can tell. The same holds where the
server answers that its store gave it no answer. A server that honours idempotency keys says so among its capabilities;
to it every call goes out under a key, and goes out again under the same one if its answer was lost. Made again, a call
says that it is: of a tool whose calls the server does not keep the key means nothing, and then the server refuses the
repeat in place of making a second call of it. To all other servers a call goes out once.

A call that the server could not make, because its store is unavailable, is repeated in the same way. Not without a key,
although it was not made: any server's tool may give that reason for an error of its own.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar

import anyio
import httpx2
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, REQUEST_TIMEOUT

from mcp_tasks.client.failure import CallLost
from mcp_tasks.client.life import call_repeated
from mcp_tasks.client.messages import CONNECTION_OVER, SENT_DATA_KEY
from mcp_tasks.client.poller import Patience, Poller
from mcp_tasks.client.requests import store_reason
from mcp_tasks.core.json import JsonObject, object_in
from mcp_tasks.errors import CallNotKept, InvalidOption, TasksError
from mcp_tasks.failure import is_over_limit
from mcp_tasks.wire.models import (
    IDEMPOTENCY_CAPABILITY,
    IDEMPOTENCY_KEY,
    LONGEST_KEY,
    MAY_HAVE_HAPPENED,
    REPEATED_META_KEY,
    UNAVAILABLE,
)

MOST_REPEATS: Final = 5
"""With the pauses of `Patience` in between, that is some seconds; a server that restarts takes no longer."""

_CUT_OFF: Final = {CONNECTION_CLOSED: "SSE stream ", PARSE_ERROR: "Failed to parse "}
"""How the SDK's words begin for an answer that was cut off. A server has the same codes for other things."""

T = TypeVar("T")

Send: TypeAlias = Callable[[dict[str, Any] | None], Awaitable[T]]
"""Makes the call, with this `_meta`."""


def honours_keys(session: ClientSession) -> bool:
    """Whether the server of a session says that it honours idempotency keys."""
    capabilities = session.server_capabilities
    experimental = None if capabilities is None else capabilities.experimental
    return experimental is not None and IDEMPOTENCY_CAPABILITY in experimental


def check_key(key: object) -> None:
    """Refuse what no server takes for an idempotency key.

    Raises:
        InvalidOption: It is not one; None is, and means a new one.
    """
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= LONGEST_KEY):
        raise InvalidOption(f"idempotency_key must be a string of 1 to {LONGEST_KEY} characters, or None")


async def make_once(send: Send[T], *, tool: str, key: str | None, is_honoured: bool, patience: Patience | None) -> T:
    """Make a call, and make it again where its answer was lost and that is safe.

    Args:
        key: The caller's own idempotency key; by default a new one, for a server that honours it.

    Raises:
        CallLost: There is no answer. It says whether the call may have been made.
        MCPError: The server refuses the call; or its store cannot be used for too long, and the call was not made.
    """
    key = key or (secrets.token_urlsafe(16) if is_honoured else None)
    pauses = Poller(patience)
    lost: CallLost | None = None
    failure: Exception | None = None
    for repeats in itertools.count():
        try:
            return await send(_meta(key, repeated=repeats > 0))
        except (MCPError, httpx2.TransportError) as exc:
            if failure is not None and _is_not_kept(exc):
                raise failure from exc
            if _is_lost(exc):
                may_have_run = _was_sent(exc) or (lost is not None and lost.may_have_run)
                lost = CallLost.of(exc, tool=tool, key=key, may_have_run=may_have_run, is_honoured=is_honoured)
            elif not (store_reason(exc) == UNAVAILABLE or (lost is not None and _may_come_later(exc))):
                raise
            # A server that does not make a call for now says nothing of an earlier one whose answer was lost.
            failure = lost or exc
            is_safe = is_honoured and key is not None and _may_come_back(exc)
            if not (is_safe and repeats < MOST_REPEATS and pauses.failed(anyio.current_time())):
                if failure is exc:
                    raise
                raise failure from exc
        call_repeated(tool, failure)
        await anyio.sleep(max(0.0, pauses.next_look - anyio.current_time()))
    raise AssertionError("unreachable: the count never ends")


def _meta(key: str | None, *, repeated: bool) -> dict[str, Any] | None:
    if key is None:
        return None
    return {IDEMPOTENCY_KEY: key, REPEATED_META_KEY: True} if repeated else {IDEMPOTENCY_KEY: key}


def _is_lost(exc: Exception) -> bool:
    """Whether nobody answered, as far as can be told."""
    if not isinstance(exc, MCPError):
        return True
    if isinstance(exc, TasksError) or is_over_limit(exc):
        return False
    if store_reason(exc) == MAY_HAVE_HAPPENED:
        return True
    if exc.code == REQUEST_TIMEOUT or _sent(exc) is not None or _is_over(exc):
        return True
    return exc.code in _CUT_OFF and exc.message.startswith(_CUT_OFF[exc.code])


def _may_come_back(exc: Exception) -> bool:
    """Whether the connection is there for another try, and the caller has the time for it."""
    return not (isinstance(exc, MCPError) and (exc.code == REQUEST_TIMEOUT or _is_over(exc)))


def _is_over(exc: MCPError) -> bool:
    return exc.code == CONNECTION_CLOSED and exc.message == CONNECTION_OVER


def _was_sent(exc: Exception) -> bool:
    if isinstance(exc, MCPError):
        return _sent(exc) is not False
    return not isinstance(exc, httpx2.ConnectError | httpx2.ConnectTimeout)


def _sent(exc: MCPError) -> object:
    """What our own transport says of a request that got no answer; None if it says nothing."""
    return _data(exc).get(SENT_DATA_KEY)


def _may_come_later(exc: Exception) -> bool:
    """Whether the server refuses a repeat for now, because of a limit: that says nothing of the first call."""
    return isinstance(exc, MCPError) and _data(exc).get("reason") == "limit"


def _is_not_kept(exc: Exception) -> bool:
    return isinstance(exc, MCPError) and _data(exc).get("reason") == CallNotKept.reason


def _data(exc: MCPError) -> JsonObject:
    return object_in(exc.error.data) or {}
