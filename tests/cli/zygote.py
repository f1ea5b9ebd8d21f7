"""A process that has imported the command line and forks for each run of it, as importing takes longer than running.

    python -m tests.cli.zygote SOCKET

What runs is the command line in a process of its own, with its own files, environment and terminal.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import signal
import socket
import sys
import termios
import traceback
from contextlib import suppress
from typing import Any


def main(path: str) -> None:
    """Serve until terminated."""
    _import_everything()
    # Whoever looks after one run is nobody's concern when it has ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    _look_after(connection)
                    os._exit(0)


def _import_everything() -> None:
    from mcp_tasks.cli.app import COMMANDS

    for module, _ in COMMANDS.values():
        importlib.import_module(module)
    for module in ("mcp_tasks.cli.running", "rich.logging", "rich.live", "rich.panel", "rich.progress"):
        importlib.import_module(module)
    # What workers on databases need, some of which takes a second.
    for module in ("stores.postgres", "engines.procrastinate", "stores.redis", "engines.docket"):
        with suppress(ModuleNotFoundError):
            importlib.import_module(f"mcp_tasks.{module}")


def _look_after(connection: socket.socket) -> None:
    """Start one run, say its pid, and say its exit code when it has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    order: dict[str, Any] = json.loads(data)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(order, files)
    for file in files:
        os.close(file)
    connection.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(order: dict[str, Any], files: list[int]) -> None:
    """Be the command line."""
    code = 99
    try:
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
        for file in files:
            os.close(file)
        if order["terminal"]:
            # Ctrl-C goes to the processes of the terminal that controls them, so it has to be made that.
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)
        from mcp_tasks.cli.running import run_app

        code = run_app(order["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
