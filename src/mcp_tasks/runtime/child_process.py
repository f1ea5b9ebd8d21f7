"""Child processes of a tool that end with its task.

A child gets a process group of its own, and when the task is cancelled, times out or loses its process in order,
the whole group goes: asked first, then made to. What this cannot do: if the server itself is killed with SIGKILL,
nobody is left to end the child.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import anyio

TERMINATE_GRACE = 5.0
"""Seconds between asking a process group to end and ending it."""


async def run_process(
    command: Sequence[str],
    *,
    stopped: asyncio.Event | None,
    input: bytes | None,  # noqa: A002 - as in `subprocess.run`
    stdout: int | IO[Any] | None,
    stderr: int | IO[Any] | None,
    cwd: str | Path | None,
    env: Mapping[str, str] | None,
    check: bool,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, or to the end of the task, whichever comes first."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env=env,
        start_new_session=os.name == "posix",
    )
    watcher = None if stopped is None else asyncio.create_task(_end_when(stopped, process))
    try:
        out, err = await process.communicate(input)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await _end(process)
        raise
    finally:
        if watcher is not None:
            watcher.cancel()
    returncode = process.returncode if process.returncode is not None else -1
    done = subprocess.CompletedProcess(list(command), returncode, out, err)
    if check:
        done.check_returncode()
    return done


async def _end_when(stopped: asyncio.Event, process: asyncio.subprocess.Process) -> None:
    # For a sync tool: its thread waits for the process and cannot be cancelled, so the process is ended for it.
    await stopped.wait()
    await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    _signal_group(process, signal.SIGTERM)
    with anyio.move_on_after(TERMINATE_GRACE):
        await process.wait()
    # Also when the process itself has ended: children of it may not have heard.
    _signal_group(process, getattr(signal, "SIGKILL", signal.SIGTERM))
    await process.wait()


def _signal_group(process: asyncio.subprocess.Process, number: int) -> None:
    try:
        if os.name == "posix":
            os.killpg(process.pid, number)
        else:  # pragma: no cover - Windows, where the tests of processes do not run
            process.send_signal(number)
    except ProcessLookupError:
        pass
