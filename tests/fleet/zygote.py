"""A process that has imported the server and forks for each process of a fleet: importing takes longer than starting.

    python -m tests.fleet.zygote

It reads one order per line, answers with a process id, and ends what it started when its input ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_NEW_PID_SPACE = 0x20000000
_DIE_WITH_PARENT = 1

_IMPORTED_LATE = (
    "mcp_tasks.engines.docket",
    "mcp_tasks.engines.procrastinate",
    "mcp_tasks.stores.postgres",
    "mcp_tasks.stores.redis",
    "mcp_tasks.legacy.server",
    "mcp.server.streamable_http_manager",
    "uvicorn.protocols.http.auto",
    "uvicorn.lifespan.on",
    "anyio._backends._asyncio",
    "docket.tasks",
    "procrastinate.worker",
    "rich.logging",
)
"""What a process of a fleet imports when it needs it."""


class Zygote:
    """Starts processes of the fleet. They end with it, and it ends with its block."""

    def __init__(self) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MCP_TASKS")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fleet.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
            start_new_session=True,
        )

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def start(self, arguments: Sequence[str], log: Path, *, apart: bool = False) -> int:
        """Start a process with the arguments of `tests.fleet.served`; gives its id.

        With `apart` it is in a space of process ids of its own, where that is allowed: to the others it is as if on
        another machine, and only its lease tells whether it is alive.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"arguments": list(arguments), "log": str(log), "apart": apart}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def is_running(pid: int) -> bool:
    """Whether there is such a process. Zygotes leave none behind that has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def can_be_apart() -> bool:
    """Whether processes can be in a space of process ids of their own."""
    child = os.fork()
    if child == 0:
        os._exit(ctypes.CDLL(None).unshare(_NEW_PID_SPACE) and 1)
    return os.waitpid(child, 0)[1] == 0


def main() -> None:
    """Start what is ordered, until there are no more orders."""
    from tests.fleet import served

    for name in _IMPORTED_LATE:
        import_module(name)
    # Those that end are gone at once.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    started: list[int] = []
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        fork = partial(_fork, order, served.main)
        pid = _apart(fork) if order["apart"] else fork()
        started.append(pid)
        print(pid, flush=True)
    for pid in filter(is_running, started):
        os.kill(pid, signal.SIGKILL)


def _fork(order: dict[str, Any], run: Callable[[Sequence[str]], None]) -> int:
    pid = os.fork()
    if pid == 0:
        _become(order, run)
    return pid


def _become(order: dict[str, Any], run: Callable[[Sequence[str]], None]) -> None:
    code = 99
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, file in enumerate((nothing, log, log)):
            os.dup2(file, number)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w", buffering=1)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        run(order["arguments"])
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _apart(fork: Callable[[], int]) -> int:
    """Fork into a space of process ids of its own."""
    libc = ctypes.CDLL(None)
    ours = os.open("/proc/self/ns/pid", os.O_RDONLY)
    try:
        libc.unshare(_NEW_PID_SPACE)
        return fork()
    finally:
        libc.setns(ours, _NEW_PID_SPACE)
        os.close(ours)


if __name__ == "__main__":
    main()
