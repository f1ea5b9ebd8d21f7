"""Real processes of this machine, and the names that they would have given themselves as workers."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from harness.processes import PIPE, running
from mcp_tasks.runtime.lease import new_worker_name


def renamed(worker: str, **parts: str) -> str:
    """The same name with some of its parts replaced."""
    names = ("place", "pid", "started", "nonce")
    return "/".join((dict(zip(names, worker.split("/"), strict=True)) | parts).values())


def start_time(pid: int) -> str:
    """Field 22 of proc_pid_stat(5), counted behind the name; our own process names have it too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "?"


@contextmanager
def other_process() -> Generator[tuple[str, subprocess.Popen[bytes]]]:
    with running([sys.executable, "-S", "-c", "input()"], stdin=PIPE) as process:
        yield renamed(new_worker_name(), pid=str(process.pid), started=start_time(process.pid)), process


def dead_worker() -> str:
    with other_process() as (worker, process):
        process.kill()
        process.wait()
    return worker
