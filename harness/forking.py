"""Processes like `python -m MODULE ARGUMENTS`, forked from one that has imported what they need.

Importing the SDK takes a second and a half of a core, which is most of what a short process does. What is forked is a
process of its own all the same: its own id, files, environment and end.
"""

import atexit
import ctypes
import fcntl
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from harness.processes import PIPE, ROOT, environment

PIPED = Path(__file__).with_name("piped.py")

_ORDER_SIZE = 1 << 17
_MOST_FILES = 16
_ABOVE_ALL_FILES = 200
_NEW_PID_SPACE = 0x20000000

_IMPORTED = (
    "mcp.client.stdio",
    "mcp.client.streamable_http",
    "mcp.server.auth.settings",
    "mcp.server.stdio",
    "mcp.server.streamable_http_manager",
    "mcp_tasks.client",
    "mcp_tasks.engines.local",
    "mcp_tasks.legacy.server",
    "mcp_tasks.server",
    "mcp_tasks.stores.sqlite",
    "rich.logging",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
"""What the processes of most tests import. Not what they run: that is imported under another name."""


class Forked:
    """A process that was forked, used as a `subprocess.Popen` is. It ends with the process that ordered it."""

    def __init__(self, pid: int, ended: socket.socket, stdin: IO[Any] | None, stdout: IO[Any] | None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = ended
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; gives the exit code, negative for a signal."""
        with self._lock:
            if self.returncode is None:
                ready, _, _ = select.select([self._ended], [], [], timeout)
                if not ready:
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
                # Nothing, if what looked after it was killed, and could not say.
                self.returncode = int(self._ended.recv(64) or -signal.SIGKILL)
                self._ended.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    module: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    stdin: int | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    pass_fds: Iterable[int] = (),
    text: bool = False,
    cwd: Path = ROOT,
    imported: Sequence[str] = (),
    session: bool = False,
    apart: bool = False,
) -> Forked:
    """Start `python -m module arguments`; files are what they are to `subprocess.Popen`.

    Args:
        imported: What else it need not import itself. Those who say the same are forked from the same process.
        session: Whether it leads a session of its own, of which its stdin is the terminal if it is one: Ctrl-C there
            reaches it.
        apart: Whether it is in a space of process ids of its own (see `can_be_apart`): to others it is as if on another
            machine.
    """
    order = {
        "module": module,
        "arguments": arguments,
        "environment": dict(os.environ if env is None else env),
        "cwd": str(cwd),
        "session": session,
        "apart": apart,
    }
    files: list[int] = []
    ours: dict[int, IO[Any]] = {}
    close: list[int] = []
    for number, given in enumerate((stdin, stdout, stderr)):
        if given == PIPE:
            reading, writing = os.pipe()
            theirs, kept = (reading, writing) if number == 0 else (writing, reading)
            binary = os.fdopen(kept, "wb" if number == 0 else "rb", buffering=0 if number == 0 else -1)
            ours[number] = io.TextIOWrapper(binary, write_through=True) if text else binary
            close.append(theirs)
        elif given is None and number == 0:
            close.append(theirs := os.open(os.devnull, os.O_RDONLY))
        elif given == subprocess.DEVNULL:
            close.append(theirs := os.open(os.devnull, os.O_RDWR))
        else:
            theirs = number if given is None else given if isinstance(given, int) else given.fileno()
        files.append(theirs)
    more = list(pass_fds)
    # Each message comes as a whole: first the id, then the exit code.
    zygote = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote.connect(_zygote(tuple(imported)))
    socket.send_fds(zygote, [json.dumps({**order, "numbers": [0, 1, 2, *more]}).encode()], [*files, *more])
    for file in close:
        os.close(file)
    return Forked(int(zygote.recv(64)), zygote, ours.get(0), ours.get(1))


@contextmanager
def forked(module: str, *arguments: str | Path, **options: Any) -> Generator[Forked]:
    """A process while the block lasts, forked as `fork` does, and killed with the block."""
    process = fork(module, *map(str, arguments), **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def piped(module: str, *arguments: str) -> list[str]:
    """A command that is to its pipes what `python -m module arguments` is, for those who start processes themselves.

    It is another process that serves the pipes: for tests that need its id, this is nothing.
    """
    return [sys.executable, "-I", "-S", str(PIPED), _zygote(), module, *arguments]


def can_be_apart() -> bool:
    """Whether processes can be in a space of process ids of their own."""
    child = os.fork()
    if child == 0:
        os._exit(ctypes.CDLL(None).unshare(_NEW_PID_SPACE) and 1)
    return os.waitpid(child, 0)[1] == 0


@cache
def _zygote(imported: Sequence[str] = ()) -> str:
    """Where orders go: the socket of a process that lives as long as this one."""
    folder = TemporaryDirectory(prefix="mcp-tasks-fork-")
    path = str(Path(folder.name) / "zygote")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        # From here on orders are taken, and wait.
        listener.listen(64)
        number = listener.fileno()
        command = [sys.executable, "-m", "harness.forking", str(number), *imported]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            pass_fds=[number],
            stdin=subprocess.PIPE,
            # A Ctrl-C is for us: whoever looks after a process has to outlive it.
            start_new_session=True,
        )

    def end() -> None:
        process.communicate()
        folder.cleanup()

    atexit.register(end)
    return path


# The process that forks


def main(number: int, *imported: str) -> None:
    """Fork for each order, until nobody can give one."""
    for name in (*_IMPORTED, *imported):
        # Some need an extra. Whoever needs it too says so.
        with suppress(ModuleNotFoundError):
            import_module(name)
    # What is there now is there for good: no process has to look through it, nor to copy it for that.
    gc.collect()
    gc.freeze()
    listener = socket.socket(fileno=number)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if listener not in ready:
            return
        caller, _ = listener.accept()
        if os.fork() == 0:
            break
        caller.close()
        _reap()
    listener.close()
    data, files, _, _ = socket.recv_fds(caller, _ORDER_SIZE, _MOST_FILES)
    if not data:
        return
    order = json.loads(data)
    if order.get("apart"):
        # Not this process, but those that it forks.
        ctypes.CDLL(None).unshare(_NEW_PID_SPACE)
    pid = os.fork()
    if pid:
        _look_after(pid, caller, files)
    caller.close()
    _become(order, files)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _look_after(pid: int, caller: socket.socket, files: Iterable[int]) -> None:
    """Say its id, and its exit code when it has ended; end it if nobody cares any more."""
    for file in files:
        os.close(file)
    with suppress(OSError):
        caller.sendall(str(pid).encode())
        ended = os.pidfd_open(pid)
        ready, _, _ = select.select([ended, caller], [], [])
        if ended not in ready:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        caller.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(order: Mapping[str, Any], files: Iterable[int]) -> None:
    """Be the process that was ordered, to its end."""
    # Out of the way of the numbers that they are to have.
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, _ABOVE_ALL_FILES) for file in files]
    os.closerange(3, _ABOVE_ALL_FILES)
    for file, number in zip(high, order["numbers"], strict=True):
        os.dup2(file, number)
        os.close(file)
    if order.get("session"):
        os.setsid()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # As a new process has them: ours were made for other files.
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1 if os.isatty(1) else -1, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [order["module"], *order["arguments"]]
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
