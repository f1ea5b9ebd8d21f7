"""`CallState`: what a call that comes back brings along, sealed for the client to carry.

Whoever holds such a state can have what its task comes to, so it says for whom and for what it was made: the caller,
the tool and the arguments. It is taken up only for the same, and only until it expires. Which of these is not so, is
told to the log and never to the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from types import NoneType
from typing import Any, Final, cast

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.json_bytes import decode_json, encode_canonical, encode_json, is_large
from mcp_tasks.errors import UsageError, ValueNotStorable
from mcp_tasks.fallback.keys import InvalidState, StateKeys
from mcp_tasks.stores.columns import from_micros, to_micros
from mcp_tasks.stores.encoding import in_thread_if
from mcp_tasks.stores.fields import NOT_OURS

__all__ = ["LARGEST_STATE", "PREFIX", "CallState", "InvalidState", "open_state", "seal_state"]

PREFIX: Final = "mcp-tasks."
"""What a state of ours begins with. States of the SDK begin with something else, so each is told from the other."""

LARGEST_STATE: Final = 4 * 1024 * 1024
"""Characters, as many as the SDK takes of a whole request. Ours take some hundred; the rest is for a tool that asks by
returning, and has a state of its own."""

VERSION: Final = 1

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "task": (str, NoneType),
    "legs": (int,),
    "window": (int,),
    "expires": (int,),
    "progress": (int, float, NoneType),
    "inner": (str, NoneType),
    "nonce": (str, NoneType),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CallState:
    """What a call that comes back brings along.

    Attributes:
        task_id: The task that runs for the call; None if nothing was started yet, and only parameters were asked for.
        legs: How often the client was told to come back so far.
        window: Since when the host's limit for the whole call counts.
        expires: When the call can be taken up no longer. Keys are kept for 30 days: what says more is cut short then.
        progress: The last progress that was sent on the call.
        inner: The state of the tool's own, or of parameters that are asked for, in plain text.
        nonce: What the task is made under that the next request may begin, so that one which comes twice begins it
            once; None where there is a task.
    """

    task_id: str | None
    legs: int
    window: datetime
    expires: datetime
    progress: float | None
    inner: str | None
    nonce: str | None = None


async def seal_state(keys: StateKeys, state: CallState, *, tool: str, arguments: JsonObject, owner: str | None) -> str:
    """The state as text for the client, bound to the call that it belongs to.

    Raises:
        UsageError: The tool's own state is too large to be carried.
        StoreError: The keys cannot be read or kept.
    """
    bound = _bound_to(tool, await _digest(arguments), owner)
    text = PREFIX + await keys.seal(encode_json(_fields(state) | bound))
    if len(text) > LARGEST_STATE:
        raise UsageError(
            f"The requestState of tool {tool!r} is too large: with all that is kept beside it, it has {len(text):,} "
            f"characters, and a call takes at most {LARGEST_STATE:,}. Keep less in it."
        )
    return text


async def open_state(
    keys: StateKeys, text: str, *, tool: str, arguments: JsonObject, owner: str | None, now: datetime
) -> CallState:
    """The state that a call brought along, if it is the state of this very call and has not expired.

    Raises:
        InvalidState: It is not.
        StoreError: The keys cannot be read.
    """
    if not text.startswith(PREFIX):
        raise InvalidState("it is not one of ours")
    if len(text) > LARGEST_STATE:
        raise InvalidState(f"it has {len(text):,} characters")
    fields = _parsed(await keys.open(text[len(PREFIX) :]))
    try:
        digest = await _digest(arguments)
    except ValueNotStorable as exc:
        raise InvalidState("the arguments are not JSON") from exc
    for name, value in _bound_to(tool, digest, owner).items():
        if fields.get(name) != value:
            raise InvalidState(f"it is of another call: {name}")
    state = _state_from(fields)
    if state.expires <= now:
        raise InvalidState(f"it has expired at {state.expires:%Y-%m-%d %H:%M:%S} UTC")
    return state


def _bound_to(tool: str, digest: str, owner: str | None) -> dict[str, Any]:
    return {"version": VERSION, "tool": tool, "owner": owner, "arguments": digest}


async def _digest(arguments: JsonObject) -> str:
    plain = arguments if isinstance(arguments, dict) else dict(arguments)
    return await in_thread_if(is_large(plain), lambda: sha256(encode_canonical(plain)).hexdigest())


def _fields(state: CallState) -> dict[str, Any]:
    return {
        "task": state.task_id,
        "legs": state.legs,
        "window": to_micros(state.window),
        "expires": to_micros(state.expires),
        "progress": state.progress,
        "inner": state.inner,
        "nonce": state.nonce,
    }


def _parsed(payload: bytes) -> Mapping[str, Any]:
    try:
        fields = decode_json(payload)
    except NOT_OURS as exc:
        raise InvalidState("it is not JSON") from exc
    if not isinstance(fields, dict):
        raise InvalidState("it is not an object")
    return cast("dict[str, Any]", fields)


def _state_from(fields: Mapping[str, Any]) -> CallState:
    for name, types in _TYPES.items():
        if name not in fields or not isinstance(fields[name], types):
            raise InvalidState(f"it has no {name} that could be read")
    try:
        return CallState(
            task_id=fields["task"],
            legs=fields["legs"],
            window=from_micros(fields["window"]),
            expires=from_micros(fields["expires"]),
            progress=fields["progress"],
            inner=fields["inner"],
            nonce=fields["nonce"],
        )
    except OverflowError as exc:
        raise InvalidState("it has a time that there is not") from exc
