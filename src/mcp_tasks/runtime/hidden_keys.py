"""`HiddenKeys`: the keys that tasks stand under, as a store keeps them.

A key is made of the arguments of a call, or is the author's own text. A plain hash of either can be guessed by anyone
who reads the store: there are only 10,000 PINs. So a store gets an HMAC of each key. The secret for it is a note of the
server (`Store.note`): made once, the same for all processes, and encrypted where the store is. Another encryption key
seals the same secret again, so calls come to the same tasks as before.

Stores that are not encrypted do the same, so that encryption can be turned on without changing a key.

One gap is left: a failover that loses a new note between the read of it and the `create` after it. If that process dies
before its next call with a key, another makes a new secret, and a call that is repeated then makes a second task.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from mcp_tasks.errors import StoreCorrupt, StoreUnavailable
from mcp_tasks.stores.base import Store

NOTE: Final = "key-secret"
"""The name of the note."""

READ_AGAIN: Final = timedelta(minutes=5)
"""How long a process uses the secret without reading it again. A store without a disk may have lost it."""

SURE_AFTER: Final = timedelta(minutes=1)
"""How long a secret has to be there before a process stops reading it each time. A failover loses the last notes as
well, and the tasks under a secret that is lost are not found under the next: so it is far longer than a replica lags
behind."""

_SIZE: Final = 32
"""Random bytes of the secret, which is kept as hexadecimal digits."""


class HiddenKeys:
    """Hides the keys of the tasks of one server."""

    def __init__(self, store: Store, namespace: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._namespace = namespace
        self._monotonic = monotonic
        self._secret: bytes | None = None
        self._found_at = 0.0
        """Since when the secret is known to be there."""
        self._read_at = 0.0
        """When it was asked for last."""

    async def hide(self, key: str) -> str:
        """The key as the store keeps it: in every process the same, and it tells nothing of what it was made of.

        Raises:
            StoreUnavailable: The secret is not known for sure here yet, and cannot be read or kept. Nothing was done.
            StoreCorrupt: The secret cannot be read.
        """
        secret, asked_at = self._secret, self._monotonic()
        is_sure = self._read_at - self._found_at >= SURE_AFTER.total_seconds()
        if secret is None or not is_sure or asked_at - self._read_at > READ_AGAIN.total_seconds():
            try:
                secret = await self._agreed()
            except StoreUnavailable as exc:
                if secret is None or not is_sure:
                    # No task was made, whatever became of the note.
                    raise StoreUnavailable(str(exc)) from exc
            if secret != self._secret:
                self._found_at = self._monotonic()
            self._secret, self._read_at = secret, asked_at
        return f"key/{hmac.digest(secret, key.encode('utf-8', 'surrogatepass'), 'sha256').hex()}"

    async def _agreed(self) -> bytes:
        """The secret that all processes have: of many that propose one, the store keeps one."""
        while (kept := await self._store.note(self._namespace, NOTE)) is None:
            mine = self._secret or secrets.token_hex(_SIZE).encode()
            if await self._store.set_note(self._namespace, NOTE, mine, expected=None):
                self._found_at = self._monotonic()
                return mine
        if len(kept) < _SIZE:
            raise StoreCorrupt(
                f"the secret for the keys of tasks of the server {self._namespace!r} (its note {NOTE!r}) is damaged, "
                f"it has only {len(kept)} bytes: restore a backup, or delete the note"
            )
        return kept
