"""Child processes of a tool that end with its task, and with this process.

A command leads a session and a process group of its own. When the task is cancelled, times out or loses its process in
order, the whole group is asked to end, and is killed after some seconds. Before this process ends itself, for any
reason that our code controls, `kill_children` kills every group that is left.

A group is signalled only while it is known to be ours. Its leader is not reaped before the last signal: as long as it
is there, be it as a zombie, neither its process id nor its group can belong to another. So its end is learned without
reaping it, the group is killed, and only then the leader is reaped, all by the code here. The subprocesses of asyncio
reap a leader as soon as it ends, while its children may still be there, and so they are not used.

What remains:

- A process that leaves its group (`setsid`, a daemon) is not reached.
- If other code in this process reaps children that it did not start (`waitpid(-1)`), or has the kernel do it (SIGCHLD
  ignored), a leader may be gone before its group was killed. Then its group is not signalled any more.
- If this process itself is killed with SIGKILL, or by a signal that it does not handle, its children live on.
- On Windows only the command itself is ended, not its children.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any, TypedDict, Unpack

import anyio

TERMINATE_GRACE = 5.0
"""Seconds between asking a process group to end and killing it. After a lost lease it is less: see `LeaseTimes`."""

_children: dict[int, _Child] = {}
"""Those whose leader is not reaped, by its process id."""

# Reentrant: a signal handler may come here in the middle of something.
_lock = threading.RLock()


class ProcessOptions(TypedDict):
    """As for `subprocess.run`."""

    input: bytes | None
    stdout: int | IO[Any] | None
    stderr: int | IO[Any] | None
    cwd: str | Path | None
    env: Mapping[str, str] | None
    check: bool


def has_children(owner: object) -> bool:
    """Whether a run, or a runtime, has child processes."""
    with _lock:
        return any(owner in child.owners for child in _children.values())


def kill_children(owner: object | None = None) -> None:
    """Kill the process groups of a run, of a runtime, or all that there are. Returns at once."""
    with _lock:
        for child in _children.values():
            if owner is None or owner in child.owners:
                child.kill()


async def run_process(
    command: Sequence[str],
    *,
    stopped: asyncio.Event | None = None,
    owners: Sequence[object] = (),
    **options: Unpack[ProcessOptions],
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, or to the end of the task, whichever comes first."""
    child = _Child(command, owners, options)
    watcher = None if stopped is None else asyncio.create_task(_end_when(stopped, child))
    try:
        out, err = await child.communicate(options["input"])
        await child.ended.wait()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await child.end()
        raise
    finally:
        if watcher is not None:
            watcher.cancel()
        # Whatever has happened: an event loop that is closed cancels what is shielded, too.
        child.leave()
    done = subprocess.CompletedProcess(list(command), child.process.returncode, out, err)
    if options["check"]:
        done.check_returncode()
    return done


async def _end_when(stopped: asyncio.Event, child: _Child) -> None:
    # For a sync tool: its thread waits for the process and cannot be cancelled, so the process is ended for it.
    await stopped.wait()
    await child.end()


class _Child:
    """A command, and its process group."""

    def __init__(self, command: Sequence[str], owners: Sequence[object], options: ProcessOptions) -> None:
        self.owners = owners
        self.ended: asyncio.Event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._is_left = False
        with _lock:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if options["input"] is None else subprocess.PIPE,
                stdout=options["stdout"],
                stderr=options["stderr"],
                cwd=options["cwd"],
                env=options["env"],
                start_new_session=os.name == "posix",
            )
            _children[self.process.pid] = self
        self._pipes: set[IO[bytes]] = {
            pipe for pipe in (self.process.stdin, self.process.stdout, self.process.stderr) if pipe is not None
        }
        try:
            threading.Thread(target=self._wait, name=f"mcp-tasks-child-{self.process.pid}", daemon=True).start()
        except RuntimeError:
            # There are as many threads as there can be.
            self.kill()
            self._reap()
            raise

    async def communicate(self, given: bytes | None) -> tuple[bytes | None, bytes | None]:
        """Write what it is given, and read what it prints, to the end."""
        process = self.process
        _, out, err = await asyncio.gather(
            self._write(process.stdin, given or b""), self._read(process.stdout), self._read(process.stderr)
        )
        return out, err

    async def end(self) -> None:
        """Ask the group to end, and kill it after a while; return when the command has ended."""
        self._signal(signal.SIGTERM)
        with anyio.move_on_after(TERMINATE_GRACE):
            await self.ended.wait()
        # Also when the command has ended: children of it may not have heard.
        self.kill()
        await self.ended.wait()

    def kill(self) -> None:
        """Kill the group now."""
        self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))

    def leave(self) -> None:
        """Kill what is left of the group, and reap the command as soon as that can be done."""
        with _lock:
            self.kill()
            if self.ended.is_set():
                self._reap()
            self._is_left = True
        # Those that are read or written belong to their transports.
        for pipe in self._pipes:
            pipe.close()

    def _signal(self, number: int) -> None:
        with _lock:
            if _children.get(self.process.pid) is not self or not _is_child(self.process.pid):
                return
            if os.name == "posix":
                # macOS refuses a group that is all zombies.
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, number)
            else:  # pragma: no cover - Windows, where the tests of processes do not run
                self.process.terminate()

    async def _write(self, pipe: IO[bytes] | None, data: bytes) -> None:
        if pipe is None:
            return
        self._pipes.discard(pipe)
        if sys.platform == "win32":  # pragma: no cover - another system than the one that runs the tests
            with suppress(OSError), pipe:
                await asyncio.to_thread(pipe.write, data)
            return
        transport, writing = await self._loop.connect_write_pipe(_Writing, pipe)
        try:
            transport.write(data)
            transport.write_eof()
            await writing.over.wait()
        finally:
            if not writing.over.is_set():
                transport.abort()

    async def _read(self, pipe: IO[bytes] | None) -> bytes | None:
        if pipe is None:
            return None
        self._pipes.discard(pipe)
        if sys.platform == "win32":  # pragma: no cover - another system than the one that runs the tests
            with pipe:
                return await asyncio.to_thread(pipe.read)
        reader = asyncio.StreamReader()
        transport, _ = await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            return await reader.read()
        finally:
            transport.close()

    def _wait(self) -> None:
        _wait_for_end(self.process)
        try:
            self._loop.call_soon_threadsafe(self._note_end)
        except RuntimeError:
            # The event loop is closed, and the child was left before that.
            self._reap()

    def _note_end(self) -> None:
        self.ended.set()
        if self._is_left:
            self._reap()

    def _reap(self) -> None:
        with _lock:
            if _children.get(self.process.pid) is self:
                del _children[self.process.pid]
                self.process.wait()


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """Return when a process has ended. It is not reaped, where there are zombies."""
    if sys.platform == "win32":  # pragma: no cover - another system than the one that runs the tests
        process.wait()
    elif sys.platform == "darwin":  # pragma: no cover - another system than the one that runs the tests
        # `os.waitid` came to macOS with Python 3.13.
        event = select.kevent(process.pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        with closing(select.kqueue()) as queue, suppress(ProcessLookupError):
            queue.control([event], 1)
    else:
        # An error if other code has reaped it: it has ended then, too.
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def _is_child(pid: int) -> bool:
    """Whether a process is a child of this one, at least as a zombie. If other code has reaped it, it is not."""
    if sys.platform in ("win32", "darwin"):  # pragma: no cover - another system than the one that runs the tests
        return True
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class _Writing(asyncio.BaseProtocol):
    """Tells when all was written, or the reader had seen enough."""

    def __init__(self) -> None:
        self.over: asyncio.Event = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()


def _forget() -> None:
    """This process was forked from the one whose children they are, maybe while a thread of that had the lock."""
    global _lock
    _lock = threading.RLock()
    _children.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(kill_children)
