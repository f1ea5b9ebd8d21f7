"""Child processes of a tool that end with its task, and with this process.

A command leads a session and a process group of its own. When the task is cancelled, times out or loses its process in
order, the whole group is asked to end, and is killed after some seconds. Before this process ends itself, for any
reason that our code controls, `kill_children` kills every group that is left.

If this process is killed with SIGKILL, or by a signal that it does not handle, two things are prepared:

- A command is started through a small program, which becomes the command only when it is told to. In between, the group
  is written down: the next run of the task kills what is left of it (`end_orphans`). If this process is killed before
  that, the command never runs.
- On Linux the kernel kills the command with this process, though not its children (PR_SET_PDEATHSIG). That signal comes
  when the *thread* ends that started the command, so it is asked for only where that is the main thread.

A group is signalled only while it is known to be ours. Its leader is not reaped before the last signal: as long as it
is there, be it as a zombie, neither its process id nor its group can belong to another. The subprocesses of asyncio
reap a leader as soon as it ends, while its children may still be there, and so they are not used.

Limits:

- A process that leaves its group (`setsid`, a daemon) is not reached.
- If other code in this process reaps children that it did not start (`waitpid(-1)`), or has the kernel do it (SIGCHLD
  ignored), a leader may be gone before its group was killed. Then its group is not signalled any more.
- A frozen program, or one that embeds Python, has no interpreter that could be the small program. There a command is
  started first and written down then, and the kernel does not end it.
- On Windows only the command itself is ended, not its children.
"""

from __future__ import annotations

import asyncio
import atexit
import marshal
import os
import platform
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import IO, Any, Final, TypeAlias, TypedDict, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread

from mcp_tasks._utils import short_id
from mcp_tasks.model.record import ChildProcess, TaskRecord
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.lease import boot, is_gone, process_here, stat_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

logger: Final = get_logger(__name__)

# ---- orphans: child processes that outlive the process that started them

MARK: Final = "MCP_TASKS_CHILD"
"""A variable in the environment of commands, on Linux: by it the group of a command is known without its leader."""

WORKER: Final = "MCP_TASKS_WORKER"
"""Beside `MARK`: the process id and the start time of the process that started the command."""

PATIENCE: Final = 5.0
"""Seconds to wait for the end of what was killed. It comes at once, but for a process that the kernel keeps busy."""


async def describe(group: int, attempt: int) -> ChildProcess | None:
    """A process group for the record; None if it cannot outlive this process, or not be found again."""
    if os.name != "posix" or (sys.platform == "linux" and os.getpid() == 1):
        # With the first process of a container, the kernel kills all others in it.
        return None
    started = _start_time(group) if sys.platform == "linux" else await _in_thread(_start_time, group)
    if started is None:
        return None
    return ChildProcess(attempt=attempt, group=group, started=started, boot=boot(), host=_host())


async def end_orphans(record: TaskRecord, *, warn: bool = True) -> frozenset[ChildProcess]:
    """Kill the child processes of a task whose run is gone, where they are on this machine, and wait for their end.

    Those of another machine may still run; `warn` has the log say so. Returns those that are known to be gone.
    """
    here = [each for each in record.processes if each.boot == boot()]
    # One of this machine from before it, or its container, was started again is gone.
    elsewhere = {each for each in record.processes if each.boot != boot() and each.host != _host()}
    for process in elsewhere if warn else ():
        lost = "task %s (%s): run %d was lost on %s, and its child process may still run there (process group %d)"
        logger.warning(lost, short_id(record.id), record.name, process.attempt, process.host, process.group)
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
    left, task = {process for process in processes if _kill(process)}, (short_id(record.id), record.name)
    for process in left:
        killed = "task %s (%s): a child process of run %d outlived its worker, and was killed (process group %d)"
        logger.warning(killed, *task, process.attempt, process.group)
    until = time.monotonic() + PATIENCE
    while left and time.monotonic() < until:
        time.sleep(0.01)
        left = {process for process in left if _is_running(process.group)}
    for process in left:
        stays = "task %s (%s): process group %d was killed and is still there after %g s"
        logger.error(stays, *task, process.group, PATIENCE)
    return left


def _kill(process: ChildProcess) -> bool:
    """Kill a process group, if it is known to be the one that was started; whether it was. Zombies are left alone."""
    if not _is_same(process) or not _is_running(process.group):
        return False
    try:
        os.killpg(process.group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    except PermissionError:
        # It runs as another user by now; or all of it are zombies, on macOS.
        return _is_running(process.group)
    return True


def _is_same(process: ChildProcess) -> bool:
    started = _start_time(process.group)
    if started is not None or sys.platform != "linux":
        return started == process.started
    mark = f"{MARK}={process.group}:{process.started}".encode()
    return any(mark in _environment(pid) for pid in _members(process.group))


def _is_running(group: int) -> bool:
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
    """When a process started, as its system says it; None if it is not there, or that cannot be told."""
    if sys.platform == "linux":
        stat = stat_of(pid)
        return None if stat is None else stat[19].decode()
    try:
        environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
        command = ["ps", "-o", "lstart=", "-p", str(pid)]
        printed = subprocess.run(command, env=environment, capture_output=True, check=False).stdout
    except OSError:
        return None
    return "_".join(printed.decode(errors="replace").split()).replace("/", "-") or None


def _host() -> str:
    """The name of this machine, as one word."""
    return "-".join(platform.node().replace("/", " ").split()) or "this-machine"


# ---- commands

TERMINATE_GRACE = 5.0
"""Seconds between asking a process group to end and killing it. After a lost lease it is less: see `LeaseTimes`."""

STARTER: Final = """
import marshal, os, sys
try:
    import _signal as signal
except ImportError:
    import signal
told, failed, parent, bound = map(int, sys.argv[1:])
os.set_inheritable(told, False)
os.set_inheritable(failed, False)
if bound:
    try:
        import ctypes
        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
    except Exception:
        pass
    if os.getppid() != parent:
        os._exit(1)
data = b""
while piece := os.read(told, 65536):
    data += piece
if len(data) < 8 or len(data) != 8 + int.from_bytes(data[:8], "big"):
    os._exit(1)
command, environment = marshal.loads(data[8:])
for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ"):
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
try:
    os.execvpe(command[0], command, environment)
except OSError as exc:
    os.write(failed, f"{exc.errno} {exc.strerror}".encode())
except Exception as exc:
    os.write(failed, f"0 {exc}".encode())
os._exit(255)
"""
"""The small program that becomes the command.

It asks for the signal (1 is PR_SET_PDEATHSIG, 9 is SIGKILL) before it looks whether its parent is still there, so that
neither order of the two leaves it alone. It is told all of the command at once, and what is told in part is not
followed. Signals that Python ignores are not ignored by the command. `_signal` starts faster than `signal`.
"""

_children: dict[int, _Child] = {}
"""Those whose leader is not reaped, by its process id."""

# Reentrant: a signal handler may come here in the middle of something.
_lock = threading.RLock()


Begin: TypeAlias = Callable[[int], Awaitable[None]]
"""Called with the number of a process group before the command runs in it."""


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
    begin: Begin | None = None,
    **options: Unpack[ProcessOptions],
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, or to the end of the task, whichever comes first."""
    command = [command] if isinstance(command, str | bytes | os.PathLike) else list(command)
    child = _Child(command, owners, options)
    watcher = None if stopped is None else asyncio.create_task(child.end_when(stopped))
    try:
        if begin is not None:
            await begin(child.process.pid)
        await child.begin()
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


class _Child:
    """A command, and its process group."""

    def __init__(self, command: Sequence[Any], owners: Sequence[object], options: ProcessOptions) -> None:
        self.owners = owners
        self._command = command
        self._env = options["env"]
        self._told: IO[bytes] | None = None
        self._failed: IO[bytes] | None = None
        self.ended: asyncio.Event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._is_left = False
        with _lock:
            self.process: subprocess.Popen[bytes] = self._started(options)
            _children[self.process.pid] = self
        pipes = (self.process.stdin, self.process.stdout, self.process.stderr, self._told, self._failed)
        self._pipes: set[IO[bytes]] = {pipe for pipe in pipes if pipe is not None}
        try:
            threading.Thread(target=self._wait, name=f"mcp-tasks-child-{self.process.pid}", daemon=True).start()
        except RuntimeError:
            # There are as many threads as there can be.
            self.kill()
            self._reap()
            raise

    def _started(self, options: ProcessOptions) -> subprocess.Popen[bytes]:
        """The command, or the small program that becomes it when it is told to."""
        command, env, given = self._command, self._env, ()
        with ExitStack() as its_ends, ExitStack() as our_ends:
            if _has_starter():
                told, tells = os.pipe()
                its_ends.callback(os.close, told)
                self._told = our_ends.enter_context(open(tells, "wb"))
                failed, fails = os.pipe()
                its_ends.callback(os.close, fails)
                self._failed = our_ends.enter_context(open(failed, "rb"))
                bound = sys.platform == "linux" and threading.current_thread() is threading.main_thread()
                given = (told, fails)
                arguments = (told, fails, os.getpid(), int(bound))
                command, env = [sys.executable, "-I", "-S", "-c", STARTER, *map(str, arguments)], None
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if options["input"] is None else subprocess.PIPE,
                stdout=options["stdout"],
                stderr=options["stderr"],
                cwd=options["cwd"],
                env=env,
                pass_fds=given,
                start_new_session=os.name == "posix",
            )
            our_ends.pop_all()
        return process

    async def begin(self) -> None:
        """Have the command run.

        Raises:
            OSError: It cannot be run.
        """
        if self._told is None:
            return
        given = os.environb if self._env is None else self._env
        environment = {os.fsencode(name): os.fsencode(value) for name, value in given.items()}
        if sys.platform == "linux" and (started := _start_time(self.process.pid)) is not None:
            pid, own = self.process.pid, os.getpid()
            environment |= {
                MARK.encode(): f"{pid}:{started}".encode(),
                WORKER.encode(): f"{own}:{_start_time(own)}".encode(),
            }
        command = [os.fsencode(argument) for argument in self._command]
        data = marshal.dumps((command, environment))
        _, failure = await asyncio.gather(
            self._write(self._told, len(data).to_bytes(8, "big") + data), self._read(self._failed)
        )
        if failure:
            number, _, text = failure.decode().partition(" ")
            if number == "0":
                raise ValueError(text)
            raise OSError(int(number), text, self._command[0])

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

    async def end_when(self, stopped: asyncio.Event) -> None:
        """For a sync tool: its thread waits for the process and cannot be cancelled, so the process is ended for it."""
        await stopped.wait()
        await self.end()

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


def _has_starter() -> bool:
    """Whether this system has what `STARTER` needs, and `sys.executable` is a Python that can run it."""
    executable = sys.executable or ""
    return (
        os.name == "posix"
        and not getattr(sys, "frozen", False)
        and re.match(r"(python|pypy)", os.path.basename(executable)) is not None
        and os.access(executable, os.X_OK)
    )


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
