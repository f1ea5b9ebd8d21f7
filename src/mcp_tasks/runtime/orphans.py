"""Child processes of a task that outlive the process that started them: after SIGKILL, it could not end them.

Each is written into the task's record before its command runs: the machine and its boot, the process group, and when
the leader of the group started. So whoever takes the task over can find it, and kills it before the next run begins.

A group is signalled only if it is known to be the one that was started:

- Its leader is there and started at that time, as a zombie too: as long as it is there, its number is not given again.
- Its leader is gone, and a process of the group has `MARK` in its environment, with the number and the time. Only Linux
  shows that. The kernel does not give the number of a group again that still has a process.

In any other case the number is free, or belongs to another by now, and nothing is signalled.

A task that has ended keeps no record of its commands. A worker may be killed while it still ends those, for one of a
task that was cancelled a moment ago. On Linux they are found by `WORKER` in their environment, when the next process on
the machine finds that worker dead.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

from mcp_tasks.core.record import ChildProcess, TaskRecord
from mcp_tasks.errors import short_id
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.worker_name import boot, is_gone, process_here, stat_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

logger: Final = get_logger(__name__)

MARK: Final = "MCP_TASKS_CHILD"
"""A variable in the environment of commands, on Linux: by it the group of a command is known without its leader."""

WORKER: Final = "MCP_TASKS_WORKER"
"""Beside `MARK`: the process id and the start time of the process that started the command."""

PATIENCE: Final = 5.0
"""Seconds to wait for the end of what was killed. It comes at once, but for a process that the kernel keeps busy."""


async def describe(group: int, attempt: int) -> ChildProcess | None:
    """What is written down of a process group; None if it cannot outlive this process, or not be found again."""
    if os.name != "posix" or (sys.platform == "linux" and os.getpid() == 1):
        # With the first process of a container, the kernel kills all others in it.
        return None
    started = await start_time(group)
    if started is None:
        return None
    return ChildProcess(attempt=attempt, group=group, started=started, boot=boot(), host=_host())


def mark_of(group: int, started: str) -> str:
    """The value of `MARK` for a group."""
    return f"{group}:{started}"


def marks_of(group: int, started: str) -> dict[str, str]:
    """What the commands of this process have in their environment, on Linux."""
    return {MARK: mark_of(group, started), WORKER: f"{os.getpid()}:{_start_time(os.getpid())}"}


async def start_time(pid: int) -> str | None:
    """When a process started, as its system says it; None if it is not there, or that cannot be told."""
    if sys.platform == "linux":
        return _start_time(pid)
    return await _in_thread(_start_time, pid)


async def end_orphans(record: TaskRecord, *, warn: bool = True) -> frozenset[ChildProcess]:
    """Kill the child processes of a task whose run is gone, where they are on this machine, and wait for their end.

    Those of another machine may still run; `warn` has the log say so. Returns those that are known to be gone.
    """
    here = [each for each in record.processes if each.boot == boot()]
    # One of this machine from before it, or its container, was started again is gone.
    elsewhere = {each for each in record.processes if each.boot != boot() and each.host != _host()}
    for process in elsewhere if warn else ():
        logger.warning(
            "task %s (%s): run %d was lost on %s, and its child process may still run there (process group %d)",
            short_id(record.id),
            record.name,
            process.attempt,
            process.host,
            process.group,
        )
    left = await _in_thread(_kill_all, record, here)
    return frozenset(record.processes) - elsewhere - left


async def end_children_of(worker: str) -> None:
    """Kill what is left of the commands of a process that is gone, whatever became of their tasks. Only on Linux, and
    for a process of this machine."""
    pid, started = process_here(worker)
    if sys.platform == "linux" and pid is not None and is_gone(worker):
        await _in_thread(_kill_children_of, f"{WORKER}={pid}:{started}".encode())


async def _in_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    # Not one of the threads that tools use: those may be busy for as long as the tools like.
    return await anyio.to_thread.run_sync(function, *args, limiter=anyio.CapacityLimiter(1))


def _kill_children_of(worker: bytes) -> None:
    groups: set[int] = set()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        environment = _environment(pid)
        if worker in environment and (stat := stat_of(pid)) is not None:
            group = int(stat[2])
            # One that has left its group is not ours to kill.
            if any(each.startswith(f"{MARK}={group}:".encode()) for each in environment):
                groups.add(group)
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
            logger.warning("a child process outlived its worker, and was killed (process group %d)", group)


def _kill_all(record: TaskRecord, processes: Iterable[ChildProcess]) -> set[ChildProcess]:
    """Kill process groups; those that are still there after a while."""
    left = {process for process in processes if _kill(process)}
    for process in left:
        logger.warning(
            "task %s (%s): a child process of run %d outlived its worker, and was killed (process group %d)",
            short_id(record.id),
            record.name,
            process.attempt,
            process.group,
        )
    until = time.monotonic() + PATIENCE
    while left and time.monotonic() < until:
        time.sleep(0.01)
        left = {process for process in left if _is_at_work(process.group)}
    for process in left:
        logger.error(
            "task %s (%s): process group %d was killed and is still there after %g s",
            short_id(record.id),
            record.name,
            process.group,
            PATIENCE,
        )
    return left


def _kill(process: ChildProcess) -> bool:
    """Kill a process group, if it is known to be the one that was started; whether it was. Zombies are left alone."""
    if not _is_same(process) or not _is_at_work(process.group):
        return False
    try:
        os.killpg(process.group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    except PermissionError:
        # It runs as another user by now; or all of it are zombies, on macOS.
        return _is_at_work(process.group)
    return True


def _is_same(process: ChildProcess) -> bool:
    started = _start_time(process.group)
    if started is not None or sys.platform != "linux":
        return started == process.started
    mark = f"{MARK}={mark_of(process.group, process.started)}".encode()
    return any(mark in _environment(pid) for pid in _members(process.group))


def _is_at_work(group: int) -> bool:
    """Whether a process of the group is there that is no zombie."""
    if sys.platform == "linux":
        return bool(_members(group))
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # macOS says so of a group that is all zombies.
        return False
    return True


def _members(group: int) -> list[int]:
    """The processes of a group, on Linux; without zombies."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return [pid for pid in pids if (stat := stat_of(pid)) and int(stat[2]) == group and stat[0] not in (b"Z", b"X")]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        # It is gone, or another user's.
        return []


def _start_time(pid: int) -> str | None:
    if sys.platform == "linux":
        stat = stat_of(pid)
        return None if stat is None else stat[19].decode()
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        printed = subprocess.run(command, env=environment, capture_output=True, check=False).stdout
    except OSError:
        return None
    return "_".join(printed.decode(errors="replace").split()).replace("/", "-") or None


def _host() -> str:
    """The name of this machine, as one word."""
    return "-".join(platform.node().replace("/", " ").split()) or "this-machine"
