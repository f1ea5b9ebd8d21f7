"""`StateKeys`: the keys under which the state of a call is sealed, kept in the store.

A call that comes back brings its state along, and may come to another process, or to this one after a restart. So the
keys are a note of the server's beside its tasks (`Store.note`): every process that has its tasks has them, and one that
starts finds them. The crypto is the SDK's.

The note holds a ring: the newest key seals, all of them open. Which key sealed a token is said in front of it. A
process reads the ring when it first needs it, when it meets a key that it does not know, and now and then before it
seals; so it learns of a new key in good time. An older one is kept for as long as what is sealed under it may be valid.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, cast

from mcp.server.request_state import AESGCMRequestStateCodec, InvalidRequestState

from mcp_tasks.core.json_bytes import decode_json, encode_json
from mcp_tasks.errors import StoreCorrupt, StoreUnavailable, TasksError
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.stores.columns import from_micros, to_micros
from mcp_tasks.stores.fields import NOT_OURS

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
