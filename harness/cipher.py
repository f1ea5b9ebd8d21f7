"""A cipher as an author would write one: AES-GCM, with what the data is bound to as associated data."""

from os import urandom

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE = 12


class AesCipher:
    def __init__(self, key: bytes | None = None) -> None:
        self.aead = AESGCM(key or AESGCM.generate_key(bit_length=256))

    def encrypt(self, bound_to: str, data: bytes) -> bytes:
        nonce = urandom(NONCE)
        return nonce + self.aead.encrypt(nonce, data, self._aad(bound_to))

    def decrypt(self, bound_to: str, data: bytes) -> bytes:
        return self.aead.decrypt(data[:NONCE], data[NONCE:], self._aad(bound_to))

    def _aad(self, bound_to: str) -> bytes:
        return bound_to.encode("utf-8", "surrogatepass")
