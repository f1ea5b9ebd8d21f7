"""Processes: started in the root of the project, looked at, ended, and never left behind.

Whatever is started here ends with this process: at its usual end, after an error, and when it is told to end. For the
last, the first process that is started takes over SIGTERM, unless somebody has it: it ends this process as `sys.exit`
does, so that blocks are left in order.
"""

import asyncio
import atexit
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, NoReturn, Protocol, TypeAlias, TypedDict, TypeVar, Unpack

ROOT = Path(__file__).parent.parent
ENVIRONMENT: Final[dict[str, str]] = {
    key: value for key, value in os.environ.items() if not key.startswith("MCP_TASKS")
}
"""Ours, without what it says about tasks."""

PIPE: Final = subprocess.PIPE
DEVNULL: Final = subprocess.DEVNULL

START_LIMIT: Final = 60.0
"""Seconds for a process to be ready. Several may start at once on a busy machine; only a failing test waits so long."""

STOP_LIMIT: Final = 10.0
"""Seconds for a process to end that was asked to."""

Command: TypeAlias = Sequence[str | Path]
Stream: TypeAlias = int | IO[Any] | None
P = TypeVar("P", subprocess.Popen[Any], asyncio.subprocess.Process)


class ProcessError(Exception):
    """A process did not do what it was started for; the message has what it printed."""


class Running(Protocol):
    """A process that was started: by `start`, or forked (`harness.forking`)."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int, /) -> None: ...


def python(module: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


def environment(*paths: Path, **changes: str) -> dict[str, str]:
    """`ENVIRONMENT` with changes. What this process imports, so does the other, after what is in these folders."""
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([*map(str, paths), *sys.path]), **changes}


class RunOptions(TypedDict, total=False):
    """Where and as whom a process runs.

    Attributes:
        cwd: The root of the project, if not given.
        env: As ours, if not given.
        group: Whether it leads a group of its own: a Ctrl-C does not reach it, and its children end with it.
    """

    cwd: Path
    env: Mapping[str, str] | None
    user: int | None
    group: bool


class Options(RunOptions, total=False):
    """The same, and what it reads and prints."""

    stdin: Stream
    stdout: Stream
    stderr: Stream
    output: Path | None
    pass_fds: Iterable[int]


def start(command: Command, *, text: bool = False, **options: Unpack[Options]) -> subprocess.Popen[Any]:
    """Start a process; `end` it, or start it with `running`, which does."""
    with _prepared(options) as prepared:
        return _looked_after(subprocess.Popen(list(map(str, command)), text=text, **prepared), options)


async def start_async(
    command: Command, *, limit: int = 2**16, **options: Unpack[Options]
) -> asyncio.subprocess.Process:
    """The same, with pipes that are read and written by coroutines, in lines of at most `limit` bytes."""
    with _prepared(options) as prepared:
        process = await asyncio.create_subprocess_exec(*map(str, command), limit=limit, **prepared)
    return _looked_after(process, options)


@contextmanager
def _prepared(options: Options) -> Generator[dict[str, Any]]:
    """The same options as the standard library takes them, with a file that is open while the block lasts."""
    _look_after_all()
    prepared: dict[str, Any] = {"cwd": ROOT, **options, "pass_fds": tuple(options.get("pass_fds", ()))}
    prepared["start_new_session"] = prepared.pop("group", False)
    output = prepared.pop("output", None)
    with open(os.devnull if output is None else output, "ab") as sink:
        if output is not None:
            prepared |= {"stdout": sink, "stderr": sink}
        yield prepared


@contextmanager
def running(
    command: Command, *, polite: bool = False, text: bool = False, **options: Unpack[Options]
) -> Generator[subprocess.Popen[Any]]:
    """A process while the block lasts, started as `start` does."""
    # The process as a block closes its pipes.
    with start(command, text=text, **options) as process:
        try:
            yield process
            if polite:
                end(process)
        finally:
            kill(process)


def run(
    command: Command,
    *,
    stdin: str | None = None,
    limit: float = START_LIMIT,
    check: bool = False,
    **options: Unpack[RunOptions],
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; gives its exit code and what it printed."""
    process = start(command, stdin=DEVNULL if stdin is None else PIPE, stdout=PIPE, stderr=PIPE, text=True, **options)
    try:
        printed, complained = process.communicate(stdin, limit)
    except subprocess.TimeoutExpired:
        kill(process)
        printed, complained = process.communicate()
        told = f"did not end within {limit:g} s"
        raise ProcessError(_complaint(command, told, printed + complained)) from None
    finally:
        kill(process)
    if check and process.returncode:
        told = f"ended with exit code {process.returncode}"
        raise ProcessError(_complaint(command, told, printed + complained))
    return subprocess.CompletedProcess(list(map(str, command)), process.returncode, printed, complained)


def end(process: Running, how: signal.Signals = signal.SIGTERM, limit: float = STOP_LIMIT) -> int:
    """Ask a process to end, and wait until it has; gives its exit code."""
    if process.returncode is None:
        process.send_signal(how)
    try:
        return process.wait(limit)
    finally:
        kill(process)


def kill(process: Running) -> None:
    """End a process as a crash does, with what is left of its group, whatever it does. Safe twice."""
    if process.pid in _groups:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.returncode is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
    _started.pop(process.pid, None)
    _groups.discard(process.pid)


def send(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that others have started, if it is there."""
    # No process has the id 0, and to signal it is to signal ourselves and all our kin.
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def crash() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nothing comes after it")


def until_ready(
    process: Running,
    is_ready: Callable[[], bool],
    *,
    what: str,
    output: Callable[[], str] = lambda: "",
    limit: float = START_LIMIT,
) -> None:
    """Wait until a process that was started is ready."""
    began = time.monotonic()
    while not is_ready():
        if (code := process.poll()) is not None:
            raise ProcessError(_complaint(what, f"ended by itself with exit code {code}", output()))
        if time.monotonic() - began > limit:
            kill(process)
            raise ProcessError(_complaint(what, f"was not ready after {limit:g} s and was killed", output()))
        time.sleep(0.02)


def read_line(process: subprocess.Popen[Any]) -> Any:
    """The next line that a process says on its pipe."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        words: Any = process.args
        raise ProcessError(_complaint(words, f"ended with exit code {process.wait()}", ""))
    return line


def tell(process: subprocess.Popen[Any], line: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.flush()


def _complaint(command: Command | str, what: str, printed: str) -> str:
    name = command if isinstance(command, str) else shlex.join(map(str, command))
    return f"{name} {what}; it printed:\n{printed[-4000:].strip() or 'nothing'}"


# Nothing is left behind

_started: dict[int, subprocess.Popen[Any] | asyncio.subprocess.Process] = {}
_groups: set[int] = set()
_owner = 0


def _looked_after(process: P, options: Options) -> P:
    _started[process.pid] = process
    if options.get("group"):
        _groups.add(process.pid)
    return process


def _look_after_all() -> None:
    """See to it that what is started ends with this process."""
    global _owner
    for pid in [pid for pid, process in _started.items() if process.returncode is not None and pid not in _groups]:
        del _started[pid]
    if _owner == os.getpid():
        return
    if not _owner:
        atexit.register(_end_all)
    # A process that was forked from this one has nothing of its own to look after yet.
    _owner = os.getpid()
    _started.clear()
    _groups.clear()
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: object) -> NoReturn:
    # Coroutines are cancelled first, and one may wait for what never comes.
    late = threading.Timer(STOP_LIMIT, _leave_at_once, [number])
    late.daemon = True
    late.start()
    sys.exit(128 + number)


def _leave_at_once(number: int) -> NoReturn:
    _end_all()
    os._exit(128 + number)


def _end_all() -> None:
    if _owner != os.getpid():
        return
    for pid, process in list(_started.items()):
        if pid in _groups:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        elif process.returncode is None:
            send(pid)
