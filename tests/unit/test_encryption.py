"""A ring of keys: what it decrypts, what it says when it cannot, and where its keys come from."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from mcp_tasks import Tasks
from mcp_tasks.encryption import Keyring, keyring_from_environment, new_key
from mcp_tasks.errors import CannotDecrypt, InvalidOption, UntrustedFile, UsageError
from mcp_tasks.stores.sqlite import SqliteStore


def test_what_was_encrypted_for_a_task_decrypts_for_that_task_alone() -> None:
    key = new_key()
    ring = Keyring([key])
    sealed = ring.encrypt("mine \udcff", b"secret")
    assert b"secret" not in sealed
    assert key[4:] not in repr(ring)
    assert ring.decrypt("mine \udcff", sealed) == b"secret"
    with pytest.raises(CannotDecrypt, match="changed, or was encrypted for something else"):
        ring.decrypt("another", sealed)


@pytest.mark.parametrize("place", [0, 1, 9, -1])
def test_a_changed_byte_is_seen(place: int) -> None:
    ring = Keyring([new_key()])
    sealed = bytearray(ring.encrypt("mine", b"secret"))
    sealed[place] ^= 1
    with pytest.raises(CannotDecrypt):
        ring.decrypt("mine", bytes(sealed))
    with pytest.raises(CannotDecrypt, match="not encrypted with a key of mcp-tasks"):
        ring.decrypt("mine", bytes(sealed[:20]))


def test_the_first_key_encrypts_and_all_decrypt() -> None:
    old, new = new_key(), new_key()
    before = Keyring([old]).encrypt("t", b"1")
    both = Keyring([new, old])
    after = both.encrypt("t", b"2")
    assert (both.decrypt("t", before), both.decrypt("t", after)) == (b"1", b"2")
    assert (both.is_current(before), both.is_current(after)) == (False, True)
    with pytest.raises(CannotDecrypt) as refused:
        Keyring([new]).decrypt("t", before)
    assert str(refused.value) == f"it needs the key {both.key_ids[1]}, and there is {both.key_ids[0]}"


def test_it_is_hkdf_and_aes_gcm_so_that_others_can_read_it() -> None:
    from base64 import urlsafe_b64decode

    text = new_key()
    ring = Keyring([text])
    sealed = ring.encrypt("t", b"secret")
    master = urlsafe_b64decode(text.removeprefix("mtk_") + "=")
    key = HKDFExpand(hashes.SHA256(), 32, b"mcp-tasks/part-key/1\0t").derive(master)
    assert AESGCM(key).decrypt(sealed[9:21], sealed[21:], sealed[:9] + b"t") == b"secret"


@pytest.mark.parametrize("keys", [[], "", ["hunter2"], ["mtk_short"], [new_key() + "x"], [7]])
def test_what_is_no_key_is_refused_and_not_shown(keys: list[str]) -> None:
    with pytest.raises(InvalidOption) as refused:
        Keyring(keys)
    assert "hunter2" not in str(refused.value)


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one, two = new_key(), new_key()
    monkeypatch.delenv("MCP_TASKS_KEYS", raising=False)
    assert keyring_from_environment() is None
    with pytest.raises(InvalidOption, match="MCP_TASKS_KEYS is not set"):
        Keyring.from_environment()
    monkeypatch.setenv("MCP_TASKS_KEYS", f"{one}, {two}")
    assert Keyring.from_environment().key_ids == Keyring([one, two]).key_ids
    monkeypatch.setenv("MCP_TASKS_KEYS", "")
    with pytest.raises(InvalidOption, match="the environment variable MCP_TASKS_KEYS: a Keyring needs"):
        keyring_from_environment()
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(f"# since May\n{one}\n\n{two}\n")
    monkeypatch.setenv("MCP_TASKS_KEYS_FILE", str(file))
    with pytest.raises(InvalidOption, match="both"):
        keyring_from_environment()
    monkeypatch.delenv("MCP_TASKS_KEYS")
    assert Keyring.from_environment().key_ids == Keyring([one, two]).key_ids


def test_a_file_with_keys_that_others_can_read_is_refused(tmp_path: Path) -> None:
    import os

    file = tmp_path / "keys"
    file.write_text(new_key())
    file.chmod(0o622)
    with pytest.raises(UntrustedFile, match="chmod 600"):
        Keyring.from_file(file)
    if os.geteuid() == 0:
        # Of root's files the mode is how they were mounted; those of others are theirs.
        os.chown(file, 12345, -1)
        with pytest.raises(UntrustedFile, match="belongs to"):
            Keyring.from_file(file)
    with pytest.raises(InvalidOption, match="cannot be read: No such file"):
        Keyring.from_file(tmp_path / "none")
    empty = tmp_path / "empty"
    empty.touch(0o600)
    with pytest.raises(InvalidOption, match="at least one key"):
        Keyring.from_file(empty)


def test_a_cipher_is_for_a_store_that_a_url_names(tmp_path: Path) -> None:
    ring = Keyring(new_key())
    Tasks(f"sqlite:///{tmp_path}/x.db", cipher=ring)
    Tasks("memory://", cipher=ring)
    with pytest.raises(UsageError, match=r"give it to the store you pass instead.*codec=Codec\(cipher\)"):
        Tasks(SqliteStore(tmp_path / "x.db"), cipher=ring)
    with pytest.raises(InvalidOption, match="encrypt and decrypt"):
        Tasks("memory://", cipher="mtk_x")  # type: ignore[arg-type]
