"""A cipher as an author would write one: AES-GCM, with the id of the task as associated data."""

from __future__ import annotations

from os import urandom

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE = 12


class AesCipher:
    """Encrypts with a key of its own."""

    def __init__(self, key: bytes | None = None) -> None:
        self.aead = AESGCM(key or AESGCM.generate_key(bit_length=256))

    def encrypt(self, task_id: str, data: bytes) -> bytes:
        nonce = urandom(NONCE)
        return nonce + self.aead.encrypt(nonce, data, self._bound_to(task_id))

    def decrypt(self, task_id: str, data: bytes) -> bytes:
        return self.aead.decrypt(data[:NONCE], data[NONCE:], self._bound_to(task_id))

    def _bound_to(self, task_id: str) -> bytes:
        return task_id.encode("utf-8", "surrogatepass")
