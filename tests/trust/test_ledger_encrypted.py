"""What a client keeps, encrypted: the ledger, and the file of hosted tasks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mcp_tasks.client import Ledger, TasksClient
from mcp_tasks.encryption import Cipher, Keyring, new_key
from mcp_tasks.errors import EncryptionMismatch, InvalidOption, StoreUnavailable
from mcp_tasks.legacy.hosting_file import HostedFile
from mcp_tasks.model.record import TaskRecord, TaskStatus
from mcp_tasks.protocol.shapes import TaskSnapshot

SECRET = "the-secret-of-the-task"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
QUESTION = {"method": "elicitation/create", "params": {"message": SECRET}}
ANSWER = {"action": "accept", "content": {"pin": SECRET}}


def seen(status: TaskStatus) -> TaskSnapshot:
    return TaskSnapshot(
        id="task \udcff",
        status=status,
        created_at=NOON,
        updated_at=NOON,
        message=SECRET,
        result={"text": SECRET} if status is TaskStatus.COMPLETED else None,
    )


def fill_ledger(path: Path, cipher: Cipher | None) -> None:
    with closing(Ledger(path, keep_results=True, cipher=cipher)) as ledger:
        ledger.add("task \udcff", server="s", tool="render")
        ledger.saw("s", seen(TaskStatus.COMPLETED))
        ledger.record_answer("s", "task \udcff", "q", ANSWER, question=QUESTION)


def check_ledger(path: Path, cipher: Cipher | None) -> None:
    with closing(Ledger(path, keep_results=True, cipher=cipher)) as ledger:
        (entry,) = ledger.entries()
        assert (entry.message, entry.result) == (SECRET, {"text": SECRET})
        assert ledger.recorded_answer("s", "task \udcff", "q", question=QUESTION) == ANSWER
        assert ledger.recorded_answer("s", "task \udcff", "q", question={"method": "other"}) is None
        assert ledger.answers("s", "task \udcff") == {"q": (ANSWER, False)}


RECORD = TaskRecord(
    id="hosted",
    owner="s",
    name="elicitation/create",
    method="elicitation/create",
    created_at=NOON,
    updated_at=NOON,
    status_message=SECRET,
)


def fill_hosted(path: Path, cipher: Cipher | None) -> None:
    with closing(HostedFile(path, cipher)) as file:
        file.add(RECORD, {"message": SECRET})
        file.save(RECORD, {"content": SECRET})


def check_hosted(path: Path, cipher: Cipher | None) -> None:
    with closing(HostedFile(path, cipher)) as file:
        record = file.get("s", "hosted")
        assert record is not None
        assert record.status_message == SECRET
        assert (file.request("hosted"), file.outcome("hosted")) == ({"message": SECRET}, {"content": SECRET})


Act = Callable[[Path, Cipher | None], None]
BOTH = pytest.mark.parametrize(("fill", "check"), [(fill_ledger, check_ledger), (fill_hosted, check_hosted)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger" / "kept.db"


def found(path: Path) -> bool:
    return any(SECRET.encode() in file.read_bytes() for file in path.parent.iterdir())


@BOTH
def test_nothing_is_readable_and_all_is_there(fill: Act, check: Act, path: Path) -> None:
    ring = Keyring(new_key())
    fill(path, ring)
    assert not found(path)
    check(path, ring)
    plain = path.with_name("plain.db")
    fill(plain, None)
    assert found(plain)


def test_a_column_is_not_taken_for_another_one(path: Path) -> None:
    ring = Keyring(new_key())
    fill_ledger(path, ring)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE tasks SET result = message")
        db.commit()
    with closing(Ledger(path, keep_results=True, cipher=ring)) as ledger, pytest.raises(EncryptionMismatch):
        ledger.entries()
    hosted = path.with_name("hosted.db")
    fill_hosted(hosted, ring)
    with closing(sqlite3.connect(hosted)) as db:
        db.execute("UPDATE tasks SET outcome = request")
        db.commit()
    with closing(HostedFile(hosted, ring)) as file, pytest.raises(EncryptionMismatch):
        file.outcome("hosted")


@BOTH
def test_turned_on_nothing_readable_is_left_before_it_is_said_to_be(fill: Act, check: Act, path: Path) -> None:
    clean: list[bool] = []

    class Looking(Keyring):
        def encrypt(self, bound_to: str, data: bytes) -> bytes:
            if (bound_to, data) == ("ledger:mark", b"on"):
                clean.append(not found(path))
            return super().encrypt(bound_to, data)

    fill(path, None)
    assert found(path)
    ring = Looking(new_key())
    with (
        closing(Ledger(path) if fill is fill_ledger else HostedFile(path)),
        pytest.raises(StoreUnavailable, match="another process has it open"),
    ):
        check(path, ring)
    check(path, None)
    check(path, ring)
    assert (clean, found(path)) == ([True], False)
    check(path, ring)


@BOTH
def test_a_key_is_changed_when_the_file_is_opened(fill: Act, check: Act, path: Path) -> None:
    old, new = new_key(), new_key()
    fill(path, Keyring(old))
    check(path, Keyring([new, old]))
    check(path, Keyring(new))
    with pytest.raises(EncryptionMismatch, match="it needs the key"):
        check(path, Keyring(old))


@BOTH
def test_no_key_and_a_wrong_key_are_refused(fill: Act, check: Act, path: Path) -> None:
    ring = Keyring(new_key())
    fill(path, ring)
    with pytest.raises(EncryptionMismatch, match="is encrypted, and there is no key"):
        check(path, None)
    with pytest.raises(EncryptionMismatch, match=f"with a key that is not there .*{ring.key_ids[0]}"):
        check(path, Keyring(new_key()))
    check(path, ring)


def test_a_client_gives_its_cipher_to_the_ledger_that_a_path_names(path: Path) -> None:
    ring = Keyring(new_key())
    client = TasksClient(ledger=path, cipher=ring)
    assert client.ledger is not None
    client.ledger.close()
    with pytest.raises(EncryptionMismatch):
        TasksClient(ledger=path)
    with pytest.raises(InvalidOption, match=r"Ledger\(path, cipher=...\)"):
        TasksClient(cipher=ring)
