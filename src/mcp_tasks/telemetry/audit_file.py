"""The file of the audit log: only added to, only its owner's, opened again when it was moved away (logrotate).

Every entry is one write at the end of the file, so that several processes may share it. An entry that cannot be written
is not forgotten in silence: the log says so, and so does the file as soon as it can be written again.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from os import PathLike
from pathlib import Path
from typing import Final

from mcp_tasks.errors import UntrustedFile, UsageError
from mcp_tasks.files import open_private
from mcp_tasks.quiet import get_logger

logger: Final = get_logger(__name__)

WARN_EVERY: Final = 60.0
"""Seconds between two words in the log of a file that cannot be written."""

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class AuditFile:
    """Appends lines to a file.

    Raises:
        UsageError: It cannot be opened.
        UntrustedFile: Somebody else may have put it there, or could write it.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._file: int | None = None
        self._lost = 0
        self._is_half = False
        self._warned = -inf
        try:
            # Only to see that it can be: it is opened for good by the first entry.
            os.close(open_private(self._path, _FLAGS))
        except OSError as exc:
            raise UsageError(f"the audit log {str(self._path)!r} cannot be written: {exc.strerror or exc}") from exc

    def append(self, line: str) -> None:
        """Add one line."""
        with self._lock:
            try:
                file = self._current()
                self._say_lost(file)
                _write(file, line)
            except (OSError, UntrustedFile) as exc:
                self._lost += 1
                self._is_half = self._is_half or isinstance(exc, _HalfLine)
                self._warn(exc)

    def close(self) -> None:
        """See that all is on the disk, and let go of the file."""
        with self._lock:
            if self._lost:
                # The last chance to say so, whether or not the file could be opened the last time.
                with suppress(OSError, UntrustedFile):
                    self._say_lost(self._current())
            file, self._file = self._file, None
            if file is not None:
                try:
                    # Not every file can: a pipe or a terminal cannot.
                    with suppress(OSError):
                        os.fsync(file)
                finally:
                    os.close(file)
            if self._lost:
                logger.error("%d entries of the audit log %s were lost", self._lost, self._path)

    def _say_lost(self, file: int) -> None:
        """Write down how many entries are missing here, if any are."""
        if not self._lost:
            return
        # What the disk was too full for may have left half a line.
        if self._is_half:
            _write(file, "")
            self._is_half = False
        _write(file, _word_of_lost(self._lost))
        self._lost = 0

    def _current(self) -> int:
        """The file that is at the path now."""
        if self._file is not None:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.lstat(self._path), os.fstat(self._file)):
                    return self._file
            os.close(self._file)
            self._file, self._is_half = None, False
        self._file = open_private(self._path, _FLAGS)
        return self._file

    def _warn(self, why: Exception) -> None:
        now = time.monotonic()
        if now >= self._warned + WARN_EVERY:
            self._warned = now
            logger.error(
                "the audit log %s cannot be written: %s. %d entries are lost so far; the file will say how many",
                self._path,
                why,
                self._lost,
            )


class _HalfLine(OSError):
    """The disk was full in the middle of an entry."""


def _write(file: int, line: str) -> None:
    data = line.encode("utf-8", "backslashreplace") + b"\n"
    written = os.write(file, data)
    if written != len(data):
        raise _HalfLine(f"only {written} of {len(data)} bytes could be written")


def _word_of_lost(count: int) -> str:
    time_ = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    said = {"time": time_, "event": "lost", "count": count, "reason": f"entries lost: {count} (could not be written)"}
    return json.dumps(said, separators=(",", ":"))
