"""`Keyring`: secrets at rest, encrypted with keys that can be changed.

    Tasks("sqlite:///tasks.db", cipher=Keyring.from_environment())

AES-256-GCM of the `cryptography` package, which comes with the SDK. Encrypted data is bound to its task and to the part
of the task that it is. Each part has a key of its own, derived from yours and from the name of the part (HKDF-Expand
with SHA-256, one block): with one key for everything, random nonces would be good for 2^32 values in all, which a busy
fleet writes in weeks.

A value says which key it needs: the first bytes of a hash of it. The first key of a ring encrypts, all of them decrypt.
So a key is changed by putting a new one in front, and dropped when nothing needs it any more (`mcp-tasks encrypt`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from secrets import token_bytes
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mcp_tasks.errors import CannotDecrypt, InvalidOption
from mcp_tasks.files import read_secret

__all__ = ["Cipher", "Keyring", "keyring_from_environment", "new_key"]

KEYS_VARIABLE: Final = "MCP_TASKS_KEYS"
"""What names the keys of a store in the environment; with `_FILE` behind it, a file that has them."""

LEDGER_KEYS_VARIABLE: Final = "MCP_TASKS_LEDGER_KEYS"
"""The same for the ledger of the command line. Not the same keys: those of a server are no business of its clients."""

_PREFIX: Final = "mtk_"
_KEY: Final = re.compile(rf"{_PREFIX}([A-Za-z0-9_-]{{43}})")
_SIZE: Final = 32
_ID: Final = 8
_NONCE: Final = 12
_TAG: Final = 16
_FORMAT: Final = b"\x01"
_HEADER: Final = len(_FORMAT) + _ID
_PURPOSE: Final = b"mcp-tasks/part-key/1\0"
_FIRST_BLOCK: Final = b"\x01"
_PARTS_AT_HAND: Final = 8_192
"""Parts of tasks whose keys are kept in memory: some hundred bytes each."""


class Cipher(Protocol):
    """Encrypts what is kept of tasks. Both methods may be called from any thread, at the same time.

    `bound_to` names one part of one task (`request:ID`, `outcome:ID`), a note of a server (`note:…`) or a value of a
    client's file (`ledger:…`). Bytes that were encrypted for one name must not decrypt for another: give it to an AEAD
    as its associated data. Then write access to the store is not enough to move an answer or a result from one task to
    another, or to pass off the arguments of a task as its result. A cipher that knows older keys as well makes it
    possible to change the key.
    """

    def encrypt(self, bound_to: str, data: bytes) -> bytes:
        """The encrypted bytes, bound to the name."""
        ...

    def decrypt(self, bound_to: str, data: bytes) -> bytes:
        """What `encrypt` was given for the same name; raises any exception if these bytes are something else.

        The message of a `CannotDecrypt` is shown, that of any other exception is not.
        """
        ...


def new_key() -> str:
    """A new random key, as text. Keep it where you keep passwords: what it encrypted is lost without it."""
    return _PREFIX + urlsafe_b64encode(token_bytes(_SIZE)).rstrip(b"=").decode()


class Keyring:
    """A `Cipher` with one key or several: the first encrypts, all of them decrypt.

    Args:
        keys: What `new_key` (or `mcp-tasks key`) gave, the newest first.

    Raises:
        InvalidOption: There is no key, or one is not a key. The message does not show it.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        texts = [keys] if isinstance(keys, str) else list(keys)
        if not texts:
            raise InvalidOption("a Keyring needs at least one key; `mcp-tasks key` makes one")
        self._keys: dict[bytes, bytes] = {}
        for number, text in enumerate(texts, 1):
            key = _key(text, number)
            self._keys.setdefault(hashlib.sha256(b"mcp-tasks/key-id/1\0" + key).digest()[:_ID], key)
        self._first = next(iter(self._keys))
        # A task that is polled is decrypted again and again; to derive its key takes longer than to use it.
        self._aead = lru_cache(maxsize=_PARTS_AT_HAND)(self._derived)

    @staticmethod
    def from_environment(variable: str = KEYS_VARIABLE) -> Keyring:
        """The keys that an environment variable has, with commas or spaces in between; or the file that the same with
        `_FILE` behind it names.

        Raises:
            InvalidOption: Neither is set, or both are, or what is there are no keys.
            UntrustedFile: Others can read or write the file.
        """
        ring = keyring_from_environment(variable)
        if ring is None:
            raise InvalidOption(
                f"the environment variable {variable} is not set, nor is {variable}_FILE; `mcp-tasks key` makes a key"
            )
        return ring

    @staticmethod
    def from_file(path: str | os.PathLike[str]) -> Keyring:
        """The keys in a file, one in each line, the newest first. Lines that begin with `#` are left out.

        Raises:
            InvalidOption: It cannot be read, or what is in it are no keys.
            UntrustedFile: Others can read or write it.
        """
        try:
            lines = read_secret(Path(path)).decode("utf-8", "replace").splitlines()
        except OSError as exc:
            raise InvalidOption(f"the file with keys {os.fspath(path)!r} cannot be read: {exc.strerror}") from exc
        words = (word for line in lines if not line.lstrip().startswith("#") for word in _words(line))
        return _ring(words, f"the file with keys {os.fspath(path)!r}")

    @property
    def key_ids(self) -> tuple[str, ...]:
        """What its keys are called in messages, in their order. It tells nothing of a key."""
        return tuple(key_id.hex() for key_id in self._keys)

    def __repr__(self) -> str:
        return f"<Keyring of {', '.join(self.key_ids)}>"

    def encrypt(self, bound_to: str, data: bytes) -> bytes:
        """The encrypted bytes, bound to the name."""
        header, name = _FORMAT + self._first, _bytes(bound_to)
        nonce = os.urandom(_NONCE)
        return b"".join((header, nonce, self._aead(self._first, name).encrypt(nonce, data, header + name)))

    def decrypt(self, bound_to: str, data: bytes) -> bytes:
        """What `encrypt` was given for the same name, by any ring that has the key."""
        header, key_id, name = data[:_HEADER], data[len(_FORMAT) : _HEADER], _bytes(bound_to)
        if data[: len(_FORMAT)] != _FORMAT or len(data) < _HEADER + _NONCE + _TAG:
            raise CannotDecrypt("it was not encrypted with a key of mcp-tasks")
        if key_id not in self._keys:
            raise CannotDecrypt(f"it needs the key {key_id.hex()}, and there is {' and '.join(self.key_ids)}")
        nonce, sealed = data[_HEADER : _HEADER + _NONCE], data[_HEADER + _NONCE :]
        try:
            return self._aead(key_id, name).decrypt(nonce, sealed, header + name)
        except InvalidTag as exc:
            raise CannotDecrypt("it was changed, or was encrypted for something else") from exc

    def is_current(self, data: bytes) -> bool:
        """Whether bytes that `encrypt` gave need the first key: if all do, the others can be dropped."""
        return data[:_HEADER] == _FORMAT + self._first

    def _derived(self, key_id: bytes, name: bytes) -> AESGCM:
        return AESGCM(hmac.digest(self._keys[key_id], _PURPOSE + name + _FIRST_BLOCK, "sha256"))


def keyring_from_environment(variable: str = KEYS_VARIABLE) -> Keyring | None:
    """The keys that the environment names; None if it names none.

    Raises:
        InvalidOption: What it names are no keys, or it names them twice.
        UntrustedFile: Others can read or write the file that it names.
    """
    text, file = os.environ.get(variable), os.environ.get(f"{variable}_FILE")
    if text is not None and file is not None:
        raise InvalidOption(f"both {variable} and {variable}_FILE are set; unset one of them")
    # Set and empty is not unset: whoever set it wanted keys, and a store without them would be plain.
    if file is not None:
        return Keyring.from_file(file)
    return None if text is None else _ring(_words(text), f"the environment variable {variable}")


def _ring(words: Iterable[str], where: str) -> Keyring:
    try:
        return Keyring(words)
    except InvalidOption as exc:
        raise InvalidOption(f"{where}: {exc}") from None


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _key(text: object, number: int) -> bytes:
    """The bytes of a key. What is wrong with one is said without showing it: it may be another secret."""
    found = _KEY.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidOption(
            f"key number {number} is no key of mcp-tasks: one is {_PREFIX} and 43 characters. `mcp-tasks key` makes one"
        )
    return urlsafe_b64decode(found[1] + "=")


def _bytes(bound_to: str) -> bytes:
    return bound_to.encode("utf-8", "surrogatepass")
