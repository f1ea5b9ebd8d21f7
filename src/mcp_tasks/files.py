"""Files that hold secrets, and that nobody else may have put there or may write: stores, ledgers, keys, logs of audits.

A file that a stranger planted is as good as one that a stranger wrote: its tasks would be run, its answers sent. So a
file must be a file and no link, must be ours (or root's), must have no second name, and others must not be able to
write it. One that others could only read is made private without a word; whatever else is wrong is refused, saying what
to do.

A database is looked at by its name, before it is opened and again after: to open and close it here would let go of the
locks that SQLite has on it in this process. A file that is read or written here is opened first, never through a link,
and what is looked at is what was opened.

Windows has other means (access control lists, and a profile folder that is private): nothing is looked at there.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

from mcp_tasks.errors import StoreUnavailable, UntrustedFile

BESIDE: Final = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database. A journal that somebody planted would be played into it."""

_IS_POSIX: Final = os.name == "posix"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE_FILE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
FileId: TypeAlias = "tuple[int, int] | None"
"""Which file it is, under whatever name; None where that is not looked at."""

LARGEST_SECRET: Final = 64 * 1024
"""Bytes of a file with keys or a token."""

LARGEST_SETTINGS: Final = 1024 * 1024
"""Bytes of a file with settings."""


def make_folder(folder: Path) -> None:
    """Make a folder that only its owner can look into, with those above it, unless it is there.

    Raises:
        OSError: It cannot be made.
    """
    for missing in reversed([folder, *folder.parents]):
        with suppress(FileExistsError):
            if not missing.exists():
                missing.mkdir(_PRIVATE_FOLDER)
    if not folder.is_dir():
        # With what the system says of it.
        folder.mkdir(exist_ok=True)


def make_private_folder(folder: Path) -> None:
    """The same for a folder that is for our files alone: also if it is there, nobody else may write to it.

    Raises:
        OSError: It cannot be made.
        UntrustedFile: Somebody else has made it, or can put another in its place.
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
    """Where this user's programs keep what they must not forget."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "mcp-tasks"
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/mcp-tasks"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "mcp-tasks"


def private_state_folder() -> Path:
    """The same, made if it is not there, and private.

    Raises:
        UntrustedFile: Others can write to it.
        StoreUnavailable: It cannot be made.
    """
    folder = state_folder()
    try:
        make_private_folder(folder)
    except OSError as exc:
        raise StoreUnavailable(f"{folder} cannot be made: {exc}. Choose another place for tasks.") from exc
    return folder


def make_private_file(path: Path) -> FileId:
    """Make an empty file that only its owner can read, unless it is there; then see to it that it is such a file.

    It is that of a database, and what SQLite keeps beside it is looked at as well. Gives which file it is.

    Raises:
        OSError: It cannot be made.
        UntrustedFile: It is not to be trusted.
    """
    make_folder(path.parent)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _NO_LINK, _PRIVATE_FILE))
    return check_database(path)


def check_database(path: Path) -> FileId:
    """See to it that a database and what SQLite keeps beside it are private files of ours; gives which file it is.

    To be asked before it is opened, and again when it is open: somebody may have been quicker in between.

    Raises:
        OSError: It cannot be looked at.
        UntrustedFile: It is not to be trusted.
    """
    if not _IS_POSIX:
        return None
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode):
        # Not for us to say what that means.
        return None
    _make_private(path, found)
    for suffix in BESIDE:
        beside = path.with_name(path.name + suffix)
        with suppress(FileNotFoundError):
            _make_private(beside, beside.lstat())
    return found.st_dev, found.st_ino


def check_still(path: Path, before: FileId) -> None:
    """The second look at a database, when it has been opened.

    Raises:
        OSError: It cannot be looked at.
        UntrustedFile: It is not to be trusted, or is not the file that was looked at before.
    """
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
    """What a file with a secret holds. It may be a link, and may be root's: that is how secrets are mounted.

    Raises:
        OSError: It cannot be read.
        UntrustedFile: Others can write it; or it is ours, and others can read it; or it is no file, or a large one.
    """
    descriptor = os.open(path, os.O_RDONLY | (_NO_LINK & ~getattr(os, "O_NOFOLLOW", 0)))
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise UntrustedFile(f"{path} is no file.")
    with open(descriptor, "rb") as file:
        if _IS_POSIX:
            _check_owner(path, found)
            # Of a file that root mounted the mode is not ours to change, and says nothing: there is one user there.
            if found.st_mode & (_OTHERS_WRITE if found.st_uid == 0 else _OTHERS):
                raise UntrustedFile(
                    f"others can read or write {path}, which holds a secret. Run: chmod 600 {_quoted(path)}"
                )
        data = file.read(LARGEST_SECRET + 1)
    if len(data) > LARGEST_SECRET:
        raise UntrustedFile(f"{path} has more than {LARGEST_SECRET:,} bytes, and is not what it should be.")
    return data


def read_trusted(path: Path) -> bytes:
    """What a file holds that may be read by all, and tells us what to do. It may be a link.

    Raises:
        OSError: It cannot be read.
        UntrustedFile: Somebody else owns it, or everybody can write it; or it is no file, or a large one.
    """
    descriptor = os.open(path, os.O_RDONLY | (_NO_LINK & ~getattr(os, "O_NOFOLLOW", 0)))
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UntrustedFile(f"{path} is no file.")
        if _IS_POSIX:
            _check_owner(path, found)
            if found.st_mode & stat.S_IWOTH:
                raise UntrustedFile(f"everybody can write {path}. Run: chmod o-w {_quoted(path)}")
        data = file.read(LARGEST_SETTINGS + 1)
    if len(data) > LARGEST_SETTINGS:
        raise UntrustedFile(f"{path} has more than {LARGEST_SETTINGS:,} bytes, and is not what it should be.")
    return data


def write_private(path: Path, data: bytes) -> None:
    """Write a private file as a whole, or not at all: who reads it meanwhile reads the old one.

    Raises:
        OSError: It cannot be written.
        UntrustedFile: What is there is not ours to replace.
    """
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
    """Wait until no other process is changing a file, and keep others waiting until the block is left.

    Between those who all ask: by a lock on a file beside it, which stays. The lock ends with its process.

    Raises:
        UntrustedFile: Somebody else may have put that file there.
    """
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
