"""Calls of several round trips: the request state that a client carries from one request to the next.

A client of 2026-07-28 that is answered with an `InputRequiredResult` comes back with its `requestState`. Ours is opened
and sealed outside the SDK's own boundary for such states, which would seal it under a key of its process and refuse it
after a restart. The state of a tool, or of its `Resolve(...)` parameters, passes inside that boundary in plain text,
and is part of ours on the wire. The keys are kept in the store.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from types import NoneType
from typing import Any, Final, cast

from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from mcp.server.request_state import AESGCMRequestStateCodec, InvalidRequestState, RequestStateBoundary
from mcp_types import INVALID_PARAMS

from mcp_tasks.errors import StoreCorrupt, StoreUnavailable, TasksError, UsageError, ValueNotStorable
from mcp_tasks.model.json import JsonObject, decode_json, encode_canonical, encode_json, is_large
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.owners import Caller
from mcp_tasks.protocol.versions import version_of
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.sdk import RequestContext, caller_of
from mcp_tasks.server.tool_runner import to_mcp_error
from mcp_tasks.stores.codec import NOT_OURS, from_micros, in_thread_if, to_micros

logger: Final = get_logger(__name__)

NOTE: Final = "request-state-keys"
"""The name of the store's note with the keys."""

FORMAT: Final = 1

KEPT_FOR: Final = timedelta(days=30)
"""How long a key opens after another replaced it: as long as a state may be valid."""

READ_AGAIN: Final = timedelta(minutes=5)
"""How long a process seals with the keys that it read. Another process may have rotated them."""

MOST_KEYS: Final = 32
"""A new key every day, each kept for 30 days, and one to spare."""


class InvalidState(TasksError):
    """A request state is not valid here and now.

    The reason is for the log only: it would tell an attacker how far a forged state got.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the request state is not valid: {reason}")


class _Key:
    """One key. Not a dataclass, whose `repr` would show the secret."""

    def __init__(self, key_id: str, secret: bytes, made: datetime) -> None:
        self.id = key_id
        self.secret = secret
        self.made = made
        self.codec: AESGCMRequestStateCodec = AESGCMRequestStateCodec([secret])


@dataclass(frozen=True, kw_only=True, slots=True)
class _KeyRing:
    """The keys, newest first, with the note that they were read from and when that was."""

    runtime: TaskRuntime
    note: bytes = field(repr=False)
    keys: Sequence[_Key]
    read_at: float

    def find(self, key_id: str) -> _Key | None:
        return next((key for key in self.keys if key.id == key_id), None)


class StateKeys:
    """Seals bytes for clients to carry, and opens them in any process of the server.

    Every method raises `StoreError` if the keys cannot be read or kept.

    Args:
        runtime: The runtime whose store has the keys. Asked each time, because a server may start again.
    """

    def __init__(self, runtime: Callable[[], TaskRuntime]) -> None:
        self._runtime = runtime
        self._ring: _KeyRing | None = None

    async def prepare(self) -> None:
        """Make the first key if there is none."""
        await self._current()

    async def seal(self, payload: bytes) -> str:
        """The bytes under the newest key, as text that fits a URL."""
        newest = (await self._current()).keys[0]
        return f"{newest.id}.{newest.codec.seal(payload)}"

    async def open(self, token: str) -> bytes:
        """The sealed bytes. The store is read once at the most, whatever the token is.

        Raises:
            InvalidState: The token was not sealed by this server, or its key is no longer kept.
        """
        key_id, _, sealed = token.partition(".")
        ring = self._known()
        key = None if ring is None else ring.find(key_id)
        if key is None and (ring := await self._read()) is not None:
            key = ring.find(key_id)
        if key is None:
            raise InvalidState("its key is not known")
        try:
            return key.codec.unseal(sealed)
        except InvalidRequestState as exc:
            raise InvalidState(f"it cannot be opened ({exc})") from exc

    async def rotate(self) -> None:
        """Make a new key for all processes, and drop keys under which no state can be valid any more.

        If several processes rotate at the same time, one of them makes the key.
        """
        runtime = self._runtime()
        note = await runtime.store.note(runtime.namespace, NOTE)
        keys = () if note is None else _decoded(runtime.namespace, note)
        now = runtime.now()
        replaced = [now, *(newer.made for newer in keys)]
        # Other processes seal under the old key until they read the note again.
        longest = KEPT_FOR + READ_AGAIN
        older = [key for key, replaced_at in zip(keys, replaced, strict=False) if now - replaced_at < longest]
        if len(older) >= MOST_KEYS:
            logger.warning(
                "a key for requestState is dropped that may still be in use, because there are %d newer ones: rotate "
                "less often, and in one process only",
                MOST_KEYS,
            )
        await self._keep([_new_key(now), *older[: MOST_KEYS - 1]], expected=note)

    async def _current(self) -> _KeyRing:
        """The keys, read recently enough to seal with them; made if there are none."""
        known = self._known()
        if known is not None and self._runtime().monotonic() - known.read_at <= READ_AGAIN.total_seconds():
            return known
        try:
            return await self._read() or await self._keep([_new_key(self._runtime().now())], expected=None)
        except StoreUnavailable as exc:
            if known is None:
                raise
            # Every process opens states of an older key, so the call need not fail.
            logger.debug("the keys for requestState are not read again now: %s", exc)
            return known

    async def _keep(self, keys: Sequence[_Key], *, expected: bytes | None) -> _KeyRing:
        """Keep the keys, unless another process was first; returns those that are kept then."""
        runtime = self._runtime()
        fields = [{"id": key.id, "secret": b64encode(key.secret).decode(), "made": to_micros(key.made)} for key in keys]
        note = encode_json({"format": FORMAT, "keys": fields})
        if await runtime.store.set_note(runtime.namespace, NOTE, note, expected=expected):
            return self._remember(runtime, note, keys)
        ring = await self._read()
        if ring is None:
            raise StoreUnavailable(f"the keys for requestState of the server {runtime.namespace!r} could not be kept")
        return ring

    async def _read(self) -> _KeyRing | None:
        runtime = self._runtime()
        note = await runtime.store.note(runtime.namespace, NOTE)
        if note is None:
            return None
        known = self._known()
        # A made-up key id has the note read each time; to make keys of the note takes a hundred times as long.
        keys = known.keys if known is not None and known.note == note else _decoded(runtime.namespace, note)
        return self._remember(runtime, note, keys)

    def _remember(self, runtime: TaskRuntime, note: bytes, keys: Sequence[_Key]) -> _KeyRing:
        self._ring = _KeyRing(runtime=runtime, note=note, keys=keys, read_at=runtime.monotonic())
        return self._ring

    def _known(self) -> _KeyRing | None:
        """The keys that were read; none if the server has started again, with another store perhaps."""
        return self._ring if self._ring is not None and self._ring.runtime is self._runtime() else None


def _new_key(now: datetime) -> _Key:
    return _Key(secrets.token_hex(8), secrets.token_bytes(32), now)


def _decoded(namespace: str, note: bytes) -> Sequence[_Key]:
    subject = f"the keys for requestState of the server {namespace!r} (its note {NOTE!r})"
    try:
        fields = cast("dict[str, Any]", decode_json(note))
        if fields["format"] > FORMAT:
            raise StoreCorrupt(f"{subject} are of a newer release: use that one, or a newer one.")
        keys = [_Key(key["id"], b64decode(key["secret"]), from_micros(key["made"])) for key in fields["keys"]]
        if not keys:
            raise ValueError("there is none")
        return keys
    except NOT_OURS as exc:
        # Not the exception's text: it may show the secret.
        raise StoreCorrupt(
            f"{subject} cannot be read ({type(exc).__name__}): restore a backup, or delete the note."
        ) from exc


# ---- state


PREFIX: Final = "mcp-tasks."
"""The start of our states. States of the SDK start otherwise, so the two can be told apart."""

LARGEST_STATE: Final = 4 * 1024 * 1024
"""Characters, as many as the SDK accepts of a whole request. Ours need some hundred; the rest is for the state of a
tool that asks by returning."""

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
    """The request state of a call.

    Attributes:
        task_id: The task that runs for the call; None if only parameters were asked for so far.
        legs: How often the client was asked to come back.
        window: Since when the host's limit for the whole call counts.
        expires: When the call cannot be resumed any more. At most 30 days ahead, for which keys are kept.
        progress: The last progress that was sent on the call.
        inner: The state of the tool itself, or of its parameters, in plain text.
        nonce: The key of the task that the next request may begin, so that a repeated request begins it once; None if
            there is a task.
    """

    task_id: str | None
    legs: int
    window: datetime
    expires: datetime
    progress: float | None
    inner: str | None
    nonce: str | None = None


@dataclass(slots=True)
class RoundTrip:
    """One request of a call that may have several.

    Attributes:
        state: The state that it came with; None for the first.
        next_state: The sealed state for the next one, if the client is asked to come back.
    """

    state: CallState | None = None
    next_state: str | None = None


current_trip: ContextVar[RoundTrip | None] = ContextVar("mcp_tasks_current_trip", default=None)
"""The request that is being answered; None if its client cannot come back."""


def comes_back() -> bool:
    """Whether the request that is being answered came back for a task."""
    trip = current_trip.get()
    return trip is not None and trip.state is not None and trip.state.task_id is not None


class RequestStates:
    """Opens the state that a request came with, and seals that of the next one."""

    def __init__(self, keys: StateKeys, *, owner: Callable[[Caller], str | None], now: Callable[[], datetime]) -> None:
        self._keys = keys
        self._owner = owner
        self._now = now

    async def outside(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """The middleware before the SDK's boundary: puts our state in the place of the SDK's."""
        if ctx.method != "tools/call" or ctx.request_id is None:
            return await call_next(ctx)
        trip = RoundTrip() if version_of(ctx.protocol_version).asks_by_result else None
        params = ctx.params or {}
        text = params.get("requestState")
        if trip is not None and isinstance(text, str) and text.startswith(PREFIX):
            try:
                trip.state = await self._open(ctx, text)
            except InvalidState as exc:
                raise to_mcp_error(refused_state(str(exc))) from exc
            except (RpcError, TasksError) as exc:
                raise to_mcp_error(exc) from exc
            ctx = replace(ctx, params={name: value for name, value in params.items() if name != "requestState"})
        # Also if it is None: a tool may make the call, in the context of the call that it answers.
        token = current_trip.set(trip)
        try:
            result = await call_next(ctx)
        finally:
            current_trip.reset(token)
        if trip is None or trip.next_state is None or not isinstance(result, Mapping):
            return result
        return {**result, "requestState": trip.next_state}

    async def inside(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """The middleware after the boundary: gives the tool its own state."""
        trip = current_trip.get()
        inner = None if trip is None or trip.state is None else trip.state.inner
        if inner is not None and ctx.method == "tools/call":
            ctx = replace(ctx, params={**(ctx.params or {}), "requestState": inner})
        return await call_next(ctx)

    async def seal(self, ctx: RequestContext, state: CallState) -> str:
        """The state for the next request, bound to the call that it belongs to.

        Raises:
            UsageError: The tool's own state is too large to be carried.
            StoreError: The keys cannot be read or kept.
        """
        fields = {
            "task": state.task_id,
            "legs": state.legs,
            "window": to_micros(state.window),
            "expires": to_micros(state.expires),
            "progress": state.progress,
            "inner": state.inner,
            "nonce": state.nonce,
        }
        text = PREFIX + await self._keys.seal(encode_json(fields | await _bound_to(ctx, self._owner(caller_of(ctx)))))
        if len(text) > LARGEST_STATE:
            raise UsageError(
                f"The requestState of tool {_called(ctx)[0]!r} is too large: with all that is kept beside it, it has "
                f"{len(text):,} characters, and a call takes at most {LARGEST_STATE:,}. Keep less in it."
            )
        return text

    async def _open(self, ctx: RequestContext, text: str) -> CallState:
        """The state, if it belongs to this call and has not expired.

        Raises:
            InvalidState: It does not, or has.
            StoreError: The keys cannot be read.
        """
        if len(text) > LARGEST_STATE:
            raise InvalidState(f"it has {len(text):,} characters")
        owner = self._owner(caller_of(ctx))
        payload = await self._keys.open(text[len(PREFIX) :])
        try:
            fields = decode_json(payload)
        except NOT_OURS as exc:
            raise InvalidState("it is not JSON") from exc
        if not isinstance(fields, dict):
            raise InvalidState("it is not an object")
        try:
            bound_to = await _bound_to(ctx, owner)
        except ValueNotStorable as exc:
            raise InvalidState("the arguments are not JSON") from exc
        for name, value in bound_to.items():
            if fields.get(name) != value:
                raise InvalidState(f"it is of another call: {name}")
        state = _state_from(cast("JsonObject", fields))
        if state.expires <= self._now():
            raise InvalidState(f"it has expired at {state.expires:%Y-%m-%d %H:%M:%S} UTC")
        return state


def refused_state(reason: str) -> RpcError:
    """The refusal of a state, in the SDK's words for its own; the reason is only logged."""
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
        raise InvalidState("it has an invalid timestamp") from exc


def _called(ctx: RequestContext) -> tuple[str, JsonObject]:
    params = ctx.params or {}
    name, arguments = params.get("name"), params.get("arguments")
    return str(name), dict(cast("JsonObject", arguments)) if isinstance(arguments, Mapping) else {}


async def _bound_to(ctx: RequestContext, owner: str | None) -> dict[str, Any]:
    tool, arguments = _called(ctx)
    digest = await in_thread_if(is_large(arguments), lambda: sha256(encode_canonical(arguments)).hexdigest())
    return {"version": VERSION, "tool": tool, "owner": owner, "arguments": digest}
