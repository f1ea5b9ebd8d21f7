"""Files that somebody else may have put there, or can write: not taken as a store or a ledger."""

import asyncio
import os
import sqlite3
import stat
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from mcp_tasks import files
from mcp_tasks.client import Ledger
from mcp_tasks.errors import StoreError, UntrustedFile
from mcp_tasks.files import make_private_file, make_private_folder, open_private, read_secret
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.stores.url import default_store

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")

STRANGER = 12345
as_root = pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can plant as a stranger")


def use_store(path: Path) -> None:
    async def use() -> None:
        store = SqliteStore(path)
        await store.open()
        await store.close()

    asyncio.run(use())


def use_ledger(path: Path) -> None:
    with closing(Ledger(path)):
        pass


USERS = pytest.mark.parametrize("use", [use_store, use_ledger])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "tasks.db"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@USERS
def test_what_we_make_is_private(use: Callable[[Path], None], path: Path) -> None:
    before = os.umask(0)
    try:
        use(path)
    finally:
        os.umask(before)
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)


@USERS
def test_what_others_can_read_is_made_private_and_what_they_can_write_is_refused(
    use: Callable[[Path], None], path: Path
) -> None:
    use(path)
    path.chmod(0o644)
    use(path)
    assert mode(path) == 0o600
    for bits in (0o620, 0o602, 0o666):
        path.chmod(bits)
        with pytest.raises(UntrustedFile, match=f"others can write .*mode {bits:04o}.*chmod 600"):
            use(path)
    path.chmod(0o600)
    use(path)


@USERS
def test_links_are_refused(use: Callable[[Path], None], path: Path) -> None:
    use(path)
    link, twin = path.with_name("link.db"), path.with_name("twin.db")
    link.symlink_to(path)
    with pytest.raises(UntrustedFile, match="is a symbolic link"):
        use(link)
    nowhere = path.with_name("nowhere.db")
    nowhere.symlink_to(path.parent / "stolen.db")
    with pytest.raises(UntrustedFile, match="is a symbolic link"):
        use(nowhere)
    assert not (path.parent / "stolen.db").exists()
    twin.hardlink_to(path)
    with pytest.raises(UntrustedFile, match="2 hard links"):
        use(path)

    fifo = path.with_name("pipe.db")
    os.mkfifo(fifo, 0o600)
    with pytest.raises(UntrustedFile, match="no regular file"):
        use(fifo)


@as_root
@USERS
def test_a_file_and_a_journal_of_somebody_else_are_refused(use: Callable[[Path], None], path: Path) -> None:
    use(path)
    for suffix in ("-wal", "-journal", "-shm"):
        planted = path.with_name(path.name + suffix)
        planted.touch()
        os.chown(planted, STRANGER, -1)
        with pytest.raises(UntrustedFile, match=f"{suffix} belongs to"):
            use(path)
        planted.unlink()
        planted.symlink_to(path)
        with pytest.raises(UntrustedFile, match=f"{suffix} is a symbolic link"):
            use(path)
        planted.unlink()
    os.chown(path, STRANGER, -1)
    with pytest.raises(UntrustedFile, match=r"belongs to the user with the number 12345.*chown 0"):
        use(path)


def test_what_is_opened_is_what_was_looked_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is laid at the last moment is not followed: it is the open that refuses it, and no look before."""
    victim = path.with_name("victim")
    make_private_file(path)
    victim.write_bytes(b"secret")
    really_open = os.open

    def late(name: str | Path, flags: int, mode: int = 0o777) -> int:
        path.unlink(missing_ok=True)
        path.symlink_to(victim)
        return really_open(name, flags, mode)

    monkeypatch.setattr(files.os, "open", late)
    with pytest.raises(UntrustedFile, match="is a symbolic link"):
        open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    assert victim.read_bytes() == b"secret"


def test_the_folder_of_the_default_path_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "state" / "mcp-tasks"
    default_store("demo", "acme")
    assert mode(folder) == 0o700
    folder.chmod(0o775)
    default_store("demo", "acme")
    assert mode(folder) == 0o700
    (tmp_path / "state").chmod(0o777)
    with pytest.raises(UntrustedFile, match=r"everybody can write to .*state.*chmod o-w"):
        default_store("demo", "acme")
    # As /tmp is: others can add to it, and not replace what is ours.
    (tmp_path / "state").chmod(0o1777)
    default_store("demo", "acme")
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    with pytest.raises(UntrustedFile, match="is a link"):
        make_private_folder(folder)


@as_root
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, STRANGER, -1)
    with pytest.raises(UntrustedFile, match="belongs to"):
        make_private_folder(tmp_path)


def test_a_secret_may_be_mounted_and_must_be_small(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    secret = tmp_path / "..data" / "key"
    secret.write_bytes(b"s")
    secret.chmod(0o600)
    (tmp_path / "key").symlink_to(secret)
    assert read_secret(tmp_path / "key") == b"s"
    secret.write_bytes(b"x" * 100_000)
    with pytest.raises(UntrustedFile, match="bytes"):
        read_secret(secret)
    with pytest.raises(UntrustedFile, match="no file"):
        read_secret(tmp_path)


def test_a_ledger_that_somebody_wrote_into_is_read_or_refused(path: Path) -> None:
    odd = [b"\xff\xfe", "x" * 1_000, "{", '{"a":' * 50, "9" * 5_000, b"", "NaN", 7, -1.5, "null", "[]"]
    columns = ["task_id", "server", "tool", "started", "status", "message", "result", "error", "finished"]
    with closing(Ledger(path, keep_results=True)) as ledger:
        ledger.add("t", server="s", tool="x")
    for column, value in zip(columns * len(odd), odd * len(columns), strict=True):
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            [(before,)] = db.execute(f"SELECT {column} FROM tasks").fetchall()
            db.execute(f"UPDATE tasks SET {column} = ?", (value,))
            with suppress(StoreError), closing(Ledger(path)) as ledger:
                ledger.entries()
            db.execute(f"UPDATE tasks SET {column} = ?", (before,))
