"""A call that takes several requests: what each of them brings along, and is told to bring the next time.

A client of the newest era that is answered with an `InputRequiredResult` comes back with its `requestState`. Ours is
opened and sealed outside the SDK's own boundary for such states, which would seal it under a key of its process and
refuse it after a restart. What a tool, or its `Resolve(...)` parameters, put into their own state passes inside that
boundary in plain text, and lies within ours on the wire.
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
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_tasks.errors import StoreCorrupt, StoreUnavailable, TasksError, UsageError, ValueNotStorable
from mcp_tasks.model.json import JsonObject, decode_json, encode_canonical, encode_json, is_large
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.owners import Caller
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.sdk import RequestContext, caller_of
from mcp_tasks.server.tool_runner import to_mcp_error
from mcp_tasks.stores.codec import NOT_OURS, from_micros, in_thread_if, to_micros

# ---- keys
# `StateKeys`: the keys under which the state of a call is sealed, kept in the store.


logger: Final = get_logger(__name__)

NOTE: Final = "request-state-keys"
"""The name of the note."""

FORMAT: Final = 1

KEPT_FOR: Final = timedelta(days=30)
"""How long a key opens after another took its place: as long as a state may be valid."""

READ_AGAIN: Final = timedelta(minutes=5)
"""How long a process seals with what it knows. Another may have made a new key, and wants the old one out of use."""

MOST_KEYS: Final = 32
"""A new key every day, each kept for 30 days, and one to spare."""


class InvalidState(TasksError):
    """What a call brought along as its state is not valid here and now.

    The reason is for the log alone: whoever made the state up must not learn how far it got.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the state that a call brought along is not valid: {reason}")


class StateKeys:
    """Seals bytes for clients to carry, and opens them again in any process of the server.

    Args:
        runtime: Whose store has the keys, and for which server. Asked each time, because a server may start again.
        kept_for: How long a key opens after another took its place.
    """

    def __init__(self, runtime: Callable[[], TaskRuntime], *, kept_for: timedelta = KEPT_FOR) -> None:
        self._runtime = runtime
        self._kept_for = kept_for
        self._known: _Known | None = None

    async def prepare(self) -> None:
        """Make the first key if there is none.

        Raises:
            StoreError: The keys cannot be read or kept.
        """
        await self._current()

    async def seal(self, payload: bytes) -> str:
        """The bytes under the newest key, as text that fits a URL. The first key is made by whoever seals first.

        Raises:
            StoreError: The keys cannot be read or kept.
        """
        newest = (await self._current())[0]
        return f"{newest.id}.{newest.codec.seal(payload)}"

    async def open(self, token: str) -> bytes:
        """What was sealed. The store is read once at the most, whatever the token is.

        Raises:
            InvalidState: It was not sealed by this server, or under a key that is not kept any more.
            StoreError: The keys cannot be read.
        """
        key_id, _, sealed = token.partition(".")
        known = self._still_known()
        key = _find(() if known is None else known.ring, key_id) or _find(await self._read(), key_id)
        if key is None:
            raise InvalidState("its key is not known")
        try:
            return key.codec.unseal(sealed)
        except InvalidRequestState as exc:
            raise InvalidState(f"it cannot be opened ({exc})") from exc

    async def rotate(self) -> None:
        """Make a new key, and drop those under which nothing can be valid any more. Once for all processes.

        Of several that rotate at the same time one makes the key: it is as new as that of the others would be.

        Raises:
            StoreError: The keys cannot be read or kept.
        """
        runtime = self._runtime()
        kept = await runtime.store.note(runtime.namespace, NOTE)
        older = self._needed(() if kept is None else _decoded(runtime.namespace, kept), runtime.now())
        if len(older) >= MOST_KEYS:
            logger.warning(
                "a key for requestState is dropped that may still be in use, because there are %d newer ones: rotate "
                "less often, and in one process only",
                MOST_KEYS,
            )
        await self._keep([_new_key(runtime.now()), *older[: MOST_KEYS - 1]], expected=kept)

    async def _current(self) -> Sequence[_Key]:
        """The ring, as new as it has to be to seal; made if there is none."""
        known = self._still_known()
        if known is not None and self._runtime().monotonic() - known.read_at <= READ_AGAIN.total_seconds():
            return known.ring
        try:
            return await self._read() or await self._make_first()
        except StoreUnavailable as exc:
            if known is None:
                raise
            # Whoever waits on the call is not to lose it for that: others open what is sealed under an older key.
            logger.debug("the keys for requestState are not read again now: %s", exc)
            return known.ring

    def _needed(self, ring: Sequence[_Key], now: datetime) -> Sequence[_Key]:
        """The keys that something valid may be sealed under, once there is another before them."""
        replaced_at = [now, *(newer.made for newer in ring)]
        # Others seal under the old key until they read the ring again.
        longest = self._kept_for + READ_AGAIN
        return [key for key, replaced in zip(ring, replaced_at, strict=False) if now - replaced < longest]

    async def _make_first(self) -> Sequence[_Key]:
        return await self._keep([_new_key(self._runtime().now())], expected=None)

    async def _keep(self, ring: Sequence[_Key], *, expected: bytes | None) -> Sequence[_Key]:
        """Keep the ring, unless another process was first; the one that stands then."""
        runtime, kept = self._runtime(), _encoded(ring)
        if await runtime.store.set_note(runtime.namespace, NOTE, kept, expected=expected):
            return self._remember(runtime, kept, ring)
        standing = await self._read()
        if not standing:
            raise StoreUnavailable(f"the keys for requestState of the server {runtime.namespace!r} could not be kept")
        return standing

    async def _read(self) -> Sequence[_Key]:
        """The ring as it is now; empty if there is none yet."""
        runtime = self._runtime()
        kept = await runtime.store.note(runtime.namespace, NOTE)
        if kept is None:
            return ()
        known = self._still_known()
        # Whoever makes up ids of keys has the note read each time; to make keys of it takes a hundred times as long.
        ring = known.ring if known is not None and known.kept == kept else _decoded(runtime.namespace, kept)
        return self._remember(runtime, kept, ring)

    def _remember(self, runtime: TaskRuntime, kept: bytes, ring: Sequence[_Key]) -> Sequence[_Key]:
        self._known = _Known(runtime=runtime, kept=kept, ring=ring, read_at=runtime.monotonic())
        return ring

    def _still_known(self) -> _Known | None:
        """What was read, if the server has not started again since: it may have another store now."""
        return self._known if self._known is not None and self._known.runtime is self._runtime() else None


class _Key:
    """One key. No dataclass: nothing must show the secret."""

    def __init__(self, *, key_id: str, secret: bytes, made: datetime) -> None:
        self.id = key_id
        self.secret = secret
        self.made = made
        self.codec: AESGCMRequestStateCodec = AESGCMRequestStateCodec([secret])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """The ring, newest key first, the note that it was made of, and when that was read."""

    runtime: TaskRuntime
    kept: bytes = field(repr=False)
    ring: Sequence[_Key]
    read_at: float


def _new_key(now: datetime) -> _Key:
    return _Key(key_id=secrets.token_hex(8), secret=secrets.token_bytes(32), made=now)


def _find(ring: Sequence[_Key], key_id: str) -> _Key | None:
    return next((key for key in ring if key.id == key_id), None)


def _encoded(ring: Sequence[_Key]) -> bytes:
    keys = [{"id": key.id, "secret": b64encode(key.secret).decode(), "made": to_micros(key.made)} for key in ring]
    return encode_json({"format": FORMAT, "keys": keys})


def _decoded(namespace: str, kept: bytes) -> Sequence[_Key]:
    what = f"the keys for requestState of the server {namespace!r} (its note {NOTE!r})"
    try:
        fields = cast("dict[str, Any]", decode_json(kept))
        if fields["format"] > FORMAT:
            raise StoreCorrupt(f"{what} are of a newer release: use that one, or a newer one.")
        keys = [
            _Key(key_id=key["id"], secret=b64decode(key["secret"]), made=from_micros(key["made"]))
            for key in fields["keys"]
        ]
        if not keys:
            raise ValueError("there is none")
        return keys
    except NOT_OURS as exc:
        # Not the exception's text: it may show what was read.
        raise StoreCorrupt(
            f"{what} cannot be read ({type(exc).__name__}): restore a backup, or delete the note."
        ) from exc


# ---- state
# `CallState`: what a call that comes back brings along, sealed for the client to carry.


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
