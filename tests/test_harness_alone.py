"""Outside of the harness nobody starts or kills processes, binds ports, runs web servers or sets up authentication."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final

from harness.processes import ROOT

FOLDERS: Final = ("tests", "bench", "examples")

HARNESS: Final[Mapping[str, str]] = {
    "asyncio.create_subprocess_exec": "process",
    "asyncio.create_subprocess_shell": "process",
    "anyio.open_process": "process",
    "anyio.run_process": "process",
    "os.fork": "process",
    "os.killpg": "kill",
    "os.system": "process",
    "multiprocessing.Process": "process",
    "subprocess.Popen": "process",
    "subprocess.call": "process",
    "subprocess.check_call": "process",
    "subprocess.check_output": "process",
    "subprocess.run": "process",
    "uvicorn.Config": "serve",
    "uvicorn.Server": "serve",
    "uvicorn.run": "serve",
    "mcp.server.auth.settings.AuthSettings": "auth",
}
"""What is the harness's business: `harness.processes`, `ports`, `serving` and `auth` have it for all."""

WORDS: Final = frozenset({"SIGKILL", ".bind", *(called.rpartition(".")[2] for called in HARNESS)} - {"run", "call"}) | {
    "subprocess",
    "uvicorn",
}
"""What a file says somewhere that does any of it."""

EXCEPTIONS: Final[Mapping[str, str]] = {
    # Programs that readers copy: they stand for themselves.
    "examples/authentication.py": "auth",
    "examples/everything.py": "serve",
    "examples/server_process.py": "bind process",
    # Runs what is timed in the terminal of whoever asked for it, and does nothing else.
    "bench/numbers.py": "process",
    # What is measured is uvicorn as an author runs it, layer by layer.
    "bench/serve.py": "serve",
    # An authorization server of its own.
    "tests/everything/oauth.py": "auth",
    # Run with another release of the SDK, in an environment that has nothing of ours.
    "tests/interop/drivers/older_common.py": "kill",
    "tests/interop/drivers/older_server.py": "serve",
}
"""Files that do so themselves, and what; each is to be found doing it."""

NOT_YET: Final = frozenset(
    {
        "tests/conformance/everything_server.py",
        "tests/conformance/serving.py",
        "tests/conformance/suite.py",
        "tests/interop/driving.py",
        "tests/interop/inspector.py",
        "tests/interop/install.py",
        "tests/interop/older.py",
        "tests/interop/our_server.py",
        "tests/interop/test_older_hosting.py",
        "tests/interop/test_older_servers.py",
        "tests/interop/test_recipes.py",
    }
)
"""Files that still do so and need not. None is added here, and one that has stopped is taken out."""


def test_nobody_does_what_is_the_harnesses_business() -> None:
    found = _found()
    assert {name: kinds for name, kinds in found.items() if name not in NOT_YET} == EXCEPTIONS


def test_it_would_be_found_under_any_name() -> None:
    program = """
import subprocess as sp, os, signal, socket
from subprocess import run as go
from mcp.server.auth.settings import AuthSettings
sp.Popen(["x"])
"""
    assert set(_kinds(program)) == {"process"}
    assert set(_kinds(program.replace("sp.Popen", "go"))) == {"process"}
    assert set(_kinds(program.replace("sp.Popen", "AuthSettings"))) == {"auth"}
    assert set(_kinds(program.replace('sp.Popen(["x"])', "os.kill(7, signal.SIGKILL)"))) == {"kill"}
    assert set(_kinds(program.replace('sp.Popen(["x"])', "socket.socket().bind(('', 0))"))) == {"bind"}
    assert set(_kinds(program.replace('sp.Popen(["x"])', "os.kill(7, 0)"))) == set()


def _found() -> dict[str, str]:
    """By file, what it does that is the harness's business."""
    found: dict[str, str] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            program = path.read_text(encoding="utf-8")
            # Most say none of these words, and taking a program apart is slow.
            if any(word in program for word in WORDS) and (kinds := sorted(set(_kinds(program)))):
                found[path.relative_to(ROOT).as_posix()] = " ".join(kinds)
    return found


def _kinds(program: str) -> Iterator[str]:
    tree = ast.parse(program)
    names = _imported(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        first, dot, rest = ast.unparse(node.func).partition(".")
        called = names.get(first, first) + dot + rest
        if (kind := HARNESS.get(called)) is not None:
            yield kind
        elif called == "os.kill" and "SIGKILL" in ast.unparse(node.args[-1]):
            yield "kill"
        elif called.endswith(".bind") and node.args and isinstance(node.args[0], ast.Tuple):
            yield "bind"


def _imported(tree: ast.AST) -> dict[str, str]:
    """What the names of a module stand for that it has imported."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname is not None}
        elif isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return names
