"""The dependency direction of the package, read from its imports.

    errors · model → wire · stores · engines → runtime → protocol → tools → adapters → fallback → server · client
        → cli

`wire` is `protocol.shapes` and `protocol.schema`; `tools` and `adapters` are modules of `server` (see `AREAS`).

`server` stands above `adapters` because the author's object is an extension of the SDK and hands its hooks on to one.
`legacy` has a side in each of `server` and `client`, and is passed in by one module of each: nothing else imports it.

A part that is not in the table below has no place yet, and fails here until it gets one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import mcp_tasks
from harness.processes import run

PACKAGE = "mcp_tasks"
SOURCE = Path(mcp_tasks.__file__).parent

_BELOW_RUNTIME = ("errors", "quiet", "files", "encryption", "model", "stores", "engines")
_BELOW_PROTOCOL = (*_BELOW_RUNTIME, "wire", "runtime")
_BELOW_SERVER = (*_BELOW_PROTOCOL, "protocol", "tools", "telemetry", "adapters", "failure")
_EVERYTHING_SHIPPED = (*_BELOW_SERVER, "fallback", "server", "client")

PARTS: Mapping[str, Sequence[str]] = {
    # Small helpers that know nothing of tasks: for everybody.
    "_utils": (),
    "errors": (),
    "model": ("errors",),
    # Files that hold secrets, and their keys: for whoever keeps something.
    "files": ("errors",),
    "encryption": ("errors", "files"),
    # What goes into a log.
    "quiet": ("errors", "model"),
    # An error of ours that is one of the SDK's as well: for those who raise it.
    "failure": ("errors",),
    "wire": ("errors", "model"),
    "stores": ("errors", "quiet", "model", "files", "encryption"),
    "engines": ("errors", "quiet", "model"),
    # Not `wire`: the runtime knows no dialect.
    "runtime": _BELOW_RUNTIME,
    "protocol": _BELOW_PROTOCOL,
    "tools": (*_BELOW_PROTOCOL, "protocol"),
    # Observers of the runtime, which know no wire either.
    "telemetry": (*_BELOW_RUNTIME, "runtime"),
    "adapters": (*_BELOW_PROTOCOL, "protocol", "tools", "telemetry"),
    # Answers for clients that speak no tasks.
    "fallback": _BELOW_SERVER,
    "server": (*_BELOW_SERVER, "fallback", "legacy.server"),
    # Needs no database driver, and never meets the server.
    "client": ("errors", "quiet", "files", "encryption", "model", "wire", "failure", "legacy.client"),
    # The older era. Imported by the two modules that pass it in, and by nothing else (see `PASSED_IN_BY`).
    # What both sides of it say alike; the sides never meet.
    "legacy": ("errors", "model", "wire"),
    "legacy.server": (*_BELOW_SERVER, "legacy"),
    "legacy.client": ("errors", "quiet", "files", "encryption", "model", "wire", "failure", "client", "legacy"),
    "cli": (*_EVERYTHING_SHIPPED, PACKAGE),
    # `python -m mcp_tasks`: the command.
    "__main__": ("cli",),
    # Imported by nothing, so it may import what it likes.
    "testing": (*_EVERYTHING_SHIPPED, PACKAGE),
    # The names of the first hour.
    PACKAGE: _EVERYTHING_SHIPPED,
}
"""Each part of the package, and the other parts it may import."""
AREAS: Mapping[str, str] = {
    "protocol.shapes": "wire",
    "protocol.schema": "wire",
    "server.tool_runner": "tools",
    "server.tool_host": "tools",
    "server.creation": "tools",
    "server.catalog": "tools",
    "server.questions": "tools",
    "server.sdk": "adapters",
    "server.fast_path": "adapters",
    "server.slow_clients": "adapters",
    "legacy.server": "legacy.server",
    "legacy.sessions": "legacy.server",
    "legacy.streams": "legacy.server",
    "legacy.client_tasks": "legacy.server",
    "legacy.client": "legacy.client",
    "legacy.hosting": "legacy.client",
    "legacy.hosting_file": "legacy.client",
}
"""Modules that are a part of their own inside of a package."""

PASSED_IN_BY: Mapping[str, str] = {"legacy.server": "server.calls", "legacy.client": "client.transport"}
"""The sides of the older era, and the one module that imports each: without those lines the room can be deleted."""

STDLIB_ONLY = frozenset({"errors", "model"})
IMPURE = frozenset({"asyncio", "logging", "os", "random", "secrets", "socket", "sqlite3", "threading", "time", "uuid"})
"""What of the standard library `core` has no use for: no waiting, clock, chance, disk or log."""

# Not `protocol`: its rules hold whichever way a request came in.
SDK = frozenset(
    {"failure", "tools", "adapters", "fallback", "server", "client", "legacy.server", "legacy.client", "cli", "testing"}
)
WIRE_TYPES = SDK | {"wire", "protocol"}
# The runtime keeps what steps return, models too; it knows no shape of the wire.
MODELS = WIRE_TYPES | {"runtime"}
DOORS = frozenset({"adapters", "legacy.server", "cli", "testing"})
LIMITED: Mapping[str, frozenset[str]] = {"mcp": SDK, "mcp_types": WIRE_TYPES, "pydantic": MODELS, "starlette": DOORS}
"""Packages that only some parts may import, and which."""

BACKENDS = frozenset({"memory", "sqlite", "postgres", "redis"})
"""Stores: none of them imports another."""


@dataclass(frozen=True)
class Import:
    """One name that a module imports, with its full path."""

    path: tuple[str, ...]
    line: int

    @property
    def is_ours(self) -> bool:
        return self.path[0] == PACKAGE

    @property
    def part(self) -> str:
        """The part of our package that is imported; the package itself for one of its first-hour names."""
        name = self.path[1] if len(self.path) > 1 else PACKAGE
        return _area_of(self.path) or (name if name in PARTS or _is_module(name) else PACKAGE)


def _is_module(name: str) -> bool:
    return (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()


def imports_of(module: Sequence[str], source: str) -> Iterator[Import]:
    """Every import of a module, also those inside functions and under `TYPE_CHECKING`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(tuple(alias.name.split(".")), node.lineno)
        elif isinstance(node, ast.ImportFrom):
            start = list(module[: len(module) - node.level]) if node.level else []
            base = (*start, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield Import((*base, alias.name), node.lineno)


def _area_of(path: Sequence[str]) -> str | None:
    return AREAS.get(".".join(path[1:3]))


def problems(module: Sequence[str], source: str) -> list[str]:
    """What in a module's imports goes against the direction."""
    part = _area_of(module) or (module[1] if module[1] != "__init__" else PACKAGE)
    if part not in PARTS:
        return [f"{'.'.join(module)}: {part!r} has no place in the table of parts"]
    found = [(imported, _objection(part, module, imported)) for imported in imports_of(module, source)]
    return [
        f"{'.'.join(module)}:{imported.line}: {part} imports {'.'.join(imported.path)}, but {why}"
        for imported, why in found
        if why is not None
    ]


def _objection(part: str, module: Sequence[str], imported: Import) -> str | None:
    if imported.is_ours:
        if imported.part not in (part, "_utils", *PARTS[part]):
            return f"may only import {', '.join(PARTS[part]) or 'nothing of ours'}"
        passed_in_by = PASSED_IN_BY.get(imported.part)
        if passed_in_by is not None and part != imported.part and ".".join(module[1:]) != passed_in_by:
            return f"only {passed_in_by} passes it in"
        return _between_backends(module, imported)
    root = imported.path[0]
    if part in STDLIB_ONLY and root not in sys.stdlib_module_names:
        return "has only the standard library"
    if part == "model" and root in IMPURE:
        return "is pure"
    if part not in LIMITED.get(root, (part,)):
        return f"{root} is for {', '.join(sorted(LIMITED[root]))}"
    return None


def _between_backends(module: Sequence[str], imported: Import) -> str | None:
    if module[1:2] != ["stores"] or imported.part != "stores":
        return None
    own, other = {*module[2:3]} & BACKENDS, {*imported.path[2:3]} & BACKENDS
    return "a store knows no other store" if own and other and own != other else None


def test_every_import_follows_the_direction() -> None:
    modules = {path: [PACKAGE, *path.relative_to(SOURCE).with_suffix("").parts] for path in SOURCE.rglob("*.py")}
    assert [problem for path, module in modules.items() for problem in problems(module, path.read_text())] == []


MAPPED = sorted({path.parent.name for path in SOURCE.glob("*/*.py")} - {"cli", "testing"})
"""Rooms whose modules ARCHITECTURE.md lists one by one."""


def mapped(page: str) -> dict[str, set[str]]:
    """The words under each room in the map of a page; those of the runtime have a map of their own."""
    rooms: dict[str, set[str]] = {}
    room = ""
    for line in page.partition("```text")[2].partition("```")[0].splitlines():
        named = re.match(r"([\w/]+)/ ", line)
        room = named[1] if named else "runtime" if line.startswith("### The runtime") else room
        rooms.setdefault(room, set()).update(re.findall(r"\w+", line))
    return rooms


@pytest.mark.parametrize("room", MAPPED)
def test_the_map_in_the_architecture_names_every_module_of_a_room(room: str) -> None:
    page = (Path(__file__).parent.parent / "ARCHITECTURE.md").read_text()
    there = {path.stem for path in (SOURCE / room).iterdir() if path.suffix == ".py" or path.is_dir()}
    assert there - mapped(page)[room] - {"__init__", "__pycache__"} == set()


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("model.machine", "def later():\n    import mcp_types"),
        ("model.machine", "import time"),
        ("stores.sqlite.store", "from mcp_tasks.stores.memory import MemoryStore"),
        ("engines.local", "from mcp_tasks import stores"),
        ("runtime.run", "from mcp_tasks import Tasks"),
        ("protocol.methods", "from mcp.server import ServerRequestContext"),
        ("server.tool_runner", "from mcp_tasks.server.sdk import caller_of"),
        ("newcomer", "import os"),
        ("server.tasks", "from mcp_tasks.legacy.server import LegacyEra"),
    ],
)
def test_an_import_against_the_direction_is_found(module: str, line: str) -> None:
    assert problems([PACKAGE, *module.split(".")], line)


def test_the_first_hour_names_are_sorted_and_there() -> None:
    names = mcp_tasks.__all__
    assert list(names) == sorted(names, key=lambda name: (not name.isupper(), name))
    assert [name for name in names if not hasattr(mcp_tasks, name)] == []
    assert set(names) <= set(dir(mcp_tasks))


_WITHOUT_SDK = """
import importlib, importlib.abc, pathlib, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        # In `sys.argv[2]`: what is not installed.
        if name.partition(".")[0] in sys.argv[2].split(","):
            raise ImportError(f"{name} is not installed")
        return None

sys.meta_path.insert(0, Blocker())
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
    parts = path.relative_to(sys.argv[1]).with_suffix("").parts
    if any(parts[: named.count("/") + 1] == tuple(named.split("/")) for named in sys.argv[3].split(",")):
        importlib.import_module(".".join(("mcp_tasks", *parts)).removesuffix(".__init__"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "parts"),
    [
        ("mcp,starlette", "errors,model,stores,engines,runtime,protocol"),
        ("mcp,mcp_types", "errors,model,stores,engines,runtime"),
        ("mcp,mcp_types,pydantic", "errors,model,stores,engines"),
        # What only the extra of the command line brings.
        ("click,rich", "errors,model,protocol,client,cli/doctor"),
    ],
    ids=["up to the protocol", "up to the runtime", "below the runtime", "doctor"],
)
def test_what_needs_no_sdk_or_extra_is_imported_with_none_installed(missing: str, parts: str) -> None:
    done = run([sys.executable, "-c", _WITHOUT_SDK, str(SOURCE), missing, parts])
    assert done.returncode == 0, done.stderr
