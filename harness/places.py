"""Where the temporary files of tests are: in memory, on a machine that has room for them there.

A store in a file waits for the disk at each commit, which is most of what its tests would do. No test can cut the power
and see what the wait was for. Whoever wants them on a disk all the same says where, with TMPDIR.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")

ENOUGH: Final = 4 << 30
"""Bytes: many times what tests of stores have there at a time. Containers have 64 MB, unless told otherwise."""


def keep_in_memory() -> None:
    """Keep the temporary files of this process there, and those of processes that it starts from now on."""
    if "TMPDIR" not in os.environ and _is_fit(MEMORY):
        os.environ["TMPDIR"] = str(MEMORY)
        # Asked for before, it is remembered.
        tempfile.tempdir = None


def _is_fit(folder: Path) -> bool:
    """Whether all tests can be there, also those that start a program from their files."""
    return (
        folder.is_dir()
        and os.access(folder, os.W_OK)
        and shutil.disk_usage(folder).free >= ENOUGH
        and not os.statvfs(folder).f_flag & os.ST_NOEXEC
    )
