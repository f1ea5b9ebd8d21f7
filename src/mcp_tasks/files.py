"""Private files: stores, ledgers, keys, audit logs. Other users must not be able to create or write them.

A file that another user planted would be as bad as one that another user wrote: its tasks would be run, its answers
sent. So a file must be a regular file, must be ours (or root's), must have no second name, and others must not be able
to write it. One that others could only read is made private silently; all else is refused, saying what to do.

A database is checked by its name, before it is opened and again after: to open and close it here would release the
locks that SQLite has on it in this process. A file that is read or written here is opened first, never through a link,
and the open file is checked.

Windows has other means (access control lists, and a private profile folder): nothing is checked there.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

from mcp_tasks.errors import StoreUnavailable, UntrustedFile

BESIDE: Final = ("-wal", "-shm", "-journal")
"""Files that SQLite keeps beside a database. It would play a planted journal into it."""

_IS_POSIX: Final = os.name == "posix"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE_FILE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
FileId: TypeAlias = "tuple[int, int] | None"
"""Identifies a file under any name; None where that is not checked."""

LARGEST_SECRET: Final = 64 * 1024
"""Bytes of a file with keys or a token."""

LARGEST_SETTINGS: Final = 1024 * 1024


def make_folder(folder: Path) -> None:
    """Create a folder that only its owner can look into, with those above it, unless it exists."""
    for missing in reversed([folder, *folder.parents]):
        with suppress(FileExistsError):
            if not missing.exists():
                missing.mkdir(_PRIVATE_FOLDER)
    if not folder.is_dir():
        # With the error of the system.
        folder.mkdir(exist_ok=True)


def make_private_folder(folder: Path) -> None:
    """The same for a folder for our files alone: also if it exists, nobody else may write to it.

    Raises:
        OSError: It cannot be created.
        UntrustedFile: Another user has created it, or can replace it.
    """
    make_folder(folder)
    if not _IS_POSIX:
        return
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise UntrustedFile(f"{folder} is a link, and must be a folder: what it leads to may be somebody else's.")
    if found.st_uid != os.geteuid():
        raise UntrustedFile(
            f"{folder} belongs to {_user(found.st_uid)}, who could change what is in it. {_own(folder)}"
        )
    if found.st_mode & _OTHERS:
        folder.chmod(_PRIVATE_FOLDER)
    for above in folder.resolve().parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise UntrustedFile(
                f"everybody can write to {above}, and put another folder in the place of {folder}. "
                f"Run: chmod o-w {_quoted(above)}"
            )


def state_folder() -> Path:
    """The folder of this user for the state of mcp-tasks."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "mcp-tasks"
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/mcp-tasks"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "mcp-tasks"


def private_state_folder() -> Path:
    """The same, created if it does not exist, and private.

    Raises:
        UntrustedFile: Others can write to it.
        StoreUnavailable: It cannot be created.
    """
    folder = state_folder()
    try:
        make_private_folder(folder)
    except OSError as exc:
        raise StoreUnavailable(f"{folder} cannot be made: {exc}. Choose another place for tasks.") from exc
    return folder


def make_private_file(path: Path) -> FileId:
    """Create an empty private database file, unless it exists, and check it like `check_database`."""
    make_folder(path.parent)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _NO_LINK, _PRIVATE_FILE))
    return check_database(path)


def check_database(path: Path) -> FileId:
    """Make sure that a database and SQLite's files beside it are private files of ours; identifies the database.

    Call it before the file is opened, and again when it is open: it may be replaced in between.

    Raises:
        OSError: It cannot be read.
        UntrustedFile: It is not trusted.
    """
    if not _IS_POSIX:
        return None
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode):
        # SQLite has its own error for it.
        return None
    _make_private(path, found)
    for suffix in BESIDE:
        beside = path.with_name(path.name + suffix)
        with suppress(FileNotFoundError):
            _make_private(beside, beside.lstat())
    return found.st_dev, found.st_ino


def check_still(path: Path, before: FileId) -> None:
    """Check a database again when it has been opened: it must be the same file as before."""
    if check_database(path) != before:
        raise UntrustedFile(f"{path} was replaced by another file while it was being opened. Look at who can do that.")


def open_private(path: Path, flags: int) -> int:
    """A descriptor of a private file, which is made if the flags say so (`os.O_CREAT`).

    Raises:
        OSError: It cannot be opened.
        UntrustedFile: It is not to be trusted.
    """
    if flags & os.O_CREAT:
        make_folder(path.parent)
    try:
        descriptor = os.open(path, flags | _NO_LINK, _PRIVATE_FILE)
    except OSError:
        if path.is_symlink():
            raise _link(path) from None
        raise
    try:
        if _IS_POSIX:
            found = os.fstat(descriptor)
            _check(path, found)
            if found.st_mode & _OTHERS:
                os.fchmod(descriptor, _PRIVATE_FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_secret(path: Path) -> bytes:
    """The content of a file with a secret. It may be a link, and may be root's: that is how secrets are mounted.

    Raises:
        OSError: It cannot be read.
        UntrustedFile: Others can write it; or it is ours, and others can read it; or it is no file, or a large one.
    """

    def check(found: os.stat_result) -> None:
        # The mode of a file that root mounted is not ours to change, and says nothing: there is one user there.
        if found.st_mode & (_OTHERS_WRITE if found.st_uid == 0 else _OTHERS):
            raise UntrustedFile(
                f"others can read or write {path}, which holds a secret. Run: chmod 600 {_quoted(path)}"
            )

    return _read(path, LARGEST_SECRET, check)


def read_trusted(path: Path) -> bytes:
    """The content of a file with settings, which anybody may read. It may be a link.

    Raises:
        OSError: It cannot be read.
        UntrustedFile: Another user owns it, or everybody can write it; or it is no file, or a large one.
    """

    def check(found: os.stat_result) -> None:
        if found.st_mode & stat.S_IWOTH:
            raise UntrustedFile(f"everybody can write {path}. Run: chmod o-w {_quoted(path)}")

    return _read(path, LARGEST_SETTINGS, check)


def _read(path: Path, most: int, check: Callable[[os.stat_result], None]) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | (_NO_LINK & ~getattr(os, "O_NOFOLLOW", 0)))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UntrustedFile(f"{path} is no file.")
        if _IS_POSIX:
            _check_owner(path, found)
            check(found)
    except BaseException:
        os.close(descriptor)
        raise
    with open(descriptor, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise UntrustedFile(f"{path} has more than {most:,} bytes, and is not what it should be.")
    return data


def write_private(path: Path, data: bytes) -> None:
    """Write a private file as a whole, or not at all: a reader sees the old one or the new one."""
    if _IS_POSIX and os.path.lexists(path):
        _check(path, path.lstat())
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(beside, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)
        raise


@contextmanager
def alone(path: Path) -> Generator[None]:
    """Hold an advisory lock on NAME.lock beside a file. The lock file stays; the lock ends with its process."""
    descriptor = open_private(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT)
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_private(path: Path, found: os.stat_result) -> None:
    _check(path, found)
    if found.st_mode & _OTHERS and found.st_uid == os.geteuid():
        path.chmod(found.st_mode & ~_OTHERS & 0o7777)


def _check(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise _link(path)
    if not stat.S_ISREG(found.st_mode):
        raise UntrustedFile(f"{path} is no regular file. Choose another path.")
    _check_owner(path, found)
    if found.st_nlink > 1:
        raise UntrustedFile(
            f"{path} is known under another name as well (it has {found.st_nlink} hard links), so others may reach it. "
            "Remove the other names, or copy it and use the copy."
        )
    if found.st_mode & _OTHERS_WRITE:
        raise UntrustedFile(
            f"others can write {path} (mode {stat.S_IMODE(found.st_mode):04o}), and may have done so. If you trust "
            f"what is in it, run: chmod 600 {_quoted(path)}"
        )


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise UntrustedFile(
            f"{path} belongs to {_user(found.st_uid)}, and this process runs as {_user(os.geteuid())}: somebody else "
            f"may have put it there. {_own(path)}"
        )


def _link(path: Path) -> UntrustedFile:
    return UntrustedFile(
        f"{path} is a symbolic link, which somebody else may have laid. Give the path that it leads to."
    )


def _own(path: Path) -> str:
    return f"If you trust what is in it, run: chown {os.geteuid()} {_quoted(path)}"


def _user(number: int) -> str:
    try:
        import pwd

        return f"the user {pwd.getpwuid(number).pw_name!r}"
    except (ImportError, KeyError):
        return f"the user with the number {number}"


def _quoted(path: Path) -> str:
    text = str(path)
    return text if text.isascii() and not set(text) & set(" '\"\\$`()&;<>|*?!#~\t\n") else repr(text)
