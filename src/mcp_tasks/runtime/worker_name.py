"""Who this process is, and whether another one that wrote its name into the store is still there.

A name says where to look: machine boot, process id space, process id and start time. On the same boot and in
the same id space a dead process is known to be dead at once, which is what makes a restart after a crash
quick. Anywhere else the answer is "cannot tell", and the lease decides.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def new_worker_name() -> str:
    """A name for this process, unique to this call."""
    return "/".join((boot(), str(os.getpid()), _start_time(os.getpid()) or "?", secrets.token_hex(4)))


def is_gone(worker: str) -> bool:
    """Whether the process of that name is known to have ended. False when that cannot be told."""
    pid, started = process_here(worker)
    if pid is None:
        return False
    if pid == os.getpid():
        # A name of our own process that is not ours: an earlier runtime in this process, still running or
        # stopped in order. Only a start time that differs says that the id was used again.
        return started not in ("?", _start_time(pid))
    return not _is_running(pid, started)


def process_here(worker: str) -> tuple[int | None, str]:
    """Process id and start time in a name that was given on this boot and in this id space; no id for any other."""
    place, _, rest = worker.partition("/")
    pid, _, rest = rest.partition("/")
    started, _, _ = rest.partition("/")
    return (int(pid) if place == boot() and pid.isdecimal() else None), started


def _is_running(pid: int, started: str) -> bool:
    if os.name == "nt":  # pragma: no cover - Windows, where the tests of processes do not run
        # There `os.kill` with 0 is not a question but an interrupt.
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError, OSError):
        return True
    now = _start_time(pid)
    return started == "?" or now is None or now == started


def boot() -> str:
    """What makes a process id meaningful: this boot of this machine, and this container's id space."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        # No /proc: a machine name is the best there is, and ids are taken at their word.
        return "-".join(os.uname().nodename.replace("/", " ").split()) if hasattr(os, "uname") else "this-machine"


def _start_time(pid: int) -> str | None:
    """When the process started, in the kernel's ticks; "dead" for one that only waits to be reaped."""
    fields = stat_of(pid)
    if fields is None:
        return None
    return "dead" if fields[0] in (b"Z", b"X") else fields[19].decode()


def stat_of(pid: int) -> list[bytes] | None:
    """What Linux says of a process, from its state on; None if it is not there, and on other systems."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold anything, so count from the last one.
    return stat[stat.rindex(b")") + 2 :].split()
