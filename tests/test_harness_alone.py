"""Outside of the harness nobody starts or kills processes, binds ports, runs web servers, sets up authentication or
writes JSON-RPC by hand.
"""

from __future__ import annotations

import ast
import re
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
"""What is the harness's business: `harness.processes`, `ports`, `serving`, `auth` and `rpc` have it for all."""

WORDS: Final = {"SIGKILL", ".bind", "jsonrpc", "subprocess", "uvicorn"} | (
    {called.rpartition(".")[2] for called in HARNESS} - {"run", "call"}
)
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
    # Servers that need nothing but the standard library, so that a test waits for no imports.
    "tests/cli/hostile_server.py": "message",
    "tests/cli/old_server.py": "message",
    # Its matter is a process that was forked, and groups of processes of which this one is the parent.
    "tests/unit/runtime/test_child_process.py": "process",
    # Their matter is a message that is taken apart, member by member; and bytes that are no message.
    "tests/short/requests.py": "message",
    "tests/wire/test_bad_input.py": "message",
    # Each process that looks for a fault is a fork of this one, and is killed when another has found it.
    "tests/simulation/mutants.py": "process",
    # Run with another release of the SDK, in an environment that has nothing of ours.
    "tests/interop/drivers/older_common.py": "kill",
    "tests/interop/drivers/older_server.py": "serve",
}
"""Files that do so themselves, and what; each is to be found doing it."""


def test_nobody_does_what_is_the_harnesses_business() -> None:
    assert _found() == EXCEPTIONS


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


def test_a_message_would_be_found_as_an_object_and_as_text() -> None:
    for written in ("x = {'id': 1, 'jsonrpc': '2.0'}", """x = '{"jsonrpc":"2.0"}'""", """x = f'{{"jsonrpc":{y}}}'"""):
        assert set(_kinds(written)) == {"message"}
    assert set(_kinds("x = message['jsonrpc'], {'jsonrpc': error}")) == set()


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
        if _is_message(node):
            yield "message"
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


def _is_message(node: ast.AST) -> bool:
    """Whether it is a JSON-RPC message, as an object or as text."""
    if isinstance(node, ast.Dict):
        members = zip(node.keys, node.values, strict=True)
        return any(key is not None and _values(key, value) == ["jsonrpc", "2.0"] for key, value in members)
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
        return re.match(r'\s*\{"jsonrpc"', text) is not None
    return False


def _values(*nodes: ast.expr) -> list[object]:
    return [node.value for node in nodes if isinstance(node, ast.Constant)]


def _imported(tree: ast.AST) -> dict[str, str]:
    """What the names of a module stand for that it has imported."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname is not None}
        elif isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return names
