"""Mutation testing: change the source in small ways, and see whether a test fails.

    python -m tools.mutation draw --seed 1 --seed 2 --count 200 [--also OTHER_TREE] FILE    choose the mutations
    python -m tools.mutation plant FILE       write all of them into the source of this tree, switched off
    python -m tools.mutation map [PYTEST ...] run the tests once, and note which of them reach which mutation
    python -m tools.mutation run FILE         switch them on, one at a time; writes FILE.here with the results
    python -m tools.mutation compare BEFORE AFTER

Use a worktree of its own, with a `.venv` of its own: `plant` changes the source there. To compare two suites, draw once
and copy FILE to both trees. `--also` draws from functions that are the same in another tree, so the sources may differ.

`plant` replaces an expression by `(new if _mutant(17) else old)`. `_mutant` notes that the running test reached number
17, also in processes that the test starts, and says whether 17 is switched on. The tests that reach a mutation run
fastest first, as many as take a minute together when nothing is mutated. The mutation is killed if one fails within
four minutes.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

SOURCE = Path("src/mcp_tasks")
FOLDER = Path(".cache/mutation").absolute()
SECONDS = 60
"""How long the chosen tests of a mutation take together without it."""

LIMIT = 240
"""How long they may take with it: on a machine that is up to four times as busy, the same tests run."""

FIRST = 40
"""So many of the tests run first: they kill most mutations, and collecting more takes seconds."""

HEAVY = (
    "mcp.server",
    "mcp.client",
    "uvicorn",
    "hypothesis",
    "httpx2",
    "anyio",
    "psycopg_pool",
    "redis.asyncio",
    "xdist",
)
"""Modules that the runs share. None of ours: a mutation may be in a function that runs while a module is imported."""

IMPORTED = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")

HOOK = """
import builtins, mmap, os
seen, state, on = set(), None, int(os.environ.get("MUTATION_ON", "-1"))

def attach(path):
    global state
    with open(path, "r+b") as file:
        state = mmap.mmap(file.fileno(), 16)

def mutant(number):
    if state is not None:
        key = (state[:16], number)
        if key not in seen:
            seen.add(key)
            with open(os.environ["MUTATION_REACHED"], "ab", 0) as file:
                file.write(b"%s %d\\n" % key)
    return number == on

builtins._mutant = mutant
if "MUTATION_STATE" in os.environ:
    attach(os.environ["MUTATION_STATE"])
"""
"""Each Python process of the environment imports it. The state is the test that runs, shared by all its processes."""


# ---- What may be mutated

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
    ast.And: ast.Or,
    ast.Add: ast.Sub,
    ast.Mult: ast.FloorDiv,
}
_SWAPS.update({new: old for old, new in _SWAPS.items()})
_QUIET = ("log", "_log", "logger", "_logger", "warnings", "echo")
_NOT_CODE = ("annotation", "returns", "decorator_list", "type_params", "pattern")


def functions(tree: Path) -> dict[str, tuple[Path, str, ast.AST]]:
    """The functions and methods of a tree by what they say; those that are there twice are left out."""
    found: dict[str, list[tuple[Path, str, ast.AST]]] = {}
    for path in sorted((tree / SOURCE).rglob("*.py")):
        # The suites for stores and engines are tests themselves.
        if "testing" in path.parts:
            continue
        for name, function in _functions(ast.parse(path.read_text(encoding="utf-8"))):
            said = f"{name} {ast.dump(function)}"
            found.setdefault(hashlib.sha256(said.encode()).hexdigest(), []).append((path, name, function))
    return {key: places[0] for key, places in found.items() if len(places) == 1}


def _functions(within: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(within):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield outer + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{outer}{node.name}.")


def mutations(function: Any) -> list[tuple[Any, ast.AST]]:
    """The nodes of a function, each with what may come in its place; in the same order for the same code."""
    return [(node, changed) for part in function.body for node in _nodes(part) for changed in _changes(node)]


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one, without type hints, docstrings, formatted texts, messages and patterns."""
    if _is_quiet(node):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in _NOT_CODE:
            for child in cast("list[Any]", value) if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child)


def _is_quiet(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        node = node.value
    if isinstance(node, ast.Call):
        called = node.func
        while isinstance(called, ast.Attribute):
            called = called.value
        return isinstance(called, ast.Name) and called.id in _QUIET
    return isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[operation]) if type(operation) in _SWAPS:
            changed = copy.copy(node)
            changed.ops = [_SWAPS[type(operation)]()]  # pyright: ignore[reportAttributeAccessIssue]
            yield changed
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign() if type(node.op) in _SWAPS:
            changed = copy.copy(node)
            changed.op = _SWAPS[type(node.op)]()  # pyright: ignore[reportAttributeAccessIssue]
            yield changed
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.IfExp():
            yield ast.IfExp(test=node.test, body=node.orelse, orelse=node.body)
        case ast.Constant(value=bool()):
            yield ast.Constant(value=not node.value)
        case ast.Constant(value=int() as number):
            yield ast.Constant(value=number + 1)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(value=ast.Constant(value=None))
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case _:
            pass


# ---- Draw and plant


def draw(seeds: list[int], count: int, also: Path | None, into: Path) -> None:
    """Choose mutations that do not overlap, for each seed as many."""
    here = functions(Path())
    shared = sorted(here.keys() & functions(also).keys() if also else here)
    every = [(key, number) for key in shared for number in range(len(mutations(here[key][2])))]
    drawn: list[dict[str, Any]] = []
    taken: dict[Path, list[tuple[Any, Any]]] = {}
    for seed in seeds:
        random.Random(seed).shuffle(every)
        left = count
        for key, number in every:
            path, name, function = here[key]
            node, changed = mutations(function)[number]
            place = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
            if left and all(place[1] <= start or end <= place[0] for start, end in taken.setdefault(path, [])):
                left -= 1
                taken[path].append(place)
                drawn.append(
                    {"seed": seed, "function": key, "place": number, "file": path.as_posix(), "line": node.lineno}
                    | {"name": name, "old": ast.unparse(node), "new": ast.unparse(changed)}
                )
    into.write_text(json.dumps(drawn, indent=1), encoding="utf-8")
    print(f"{len(drawn)} of {len(every)} mutations, in functions that say {len(shared)} of {len(here)}")


def plant(file: Path) -> None:
    """Write the mutations of a file into the source, and the hook into the environment."""
    here = functions(Path())
    edits: dict[Path, list[tuple[int, int, str]]] = {}
    entries: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    for number, entry in enumerate(entries):
        path, _, function = here[entry["function"]]
        data = path.read_bytes()
        starts = [0]
        for line in data.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        node: Any
        node, changed = mutations(function)[int(entry["place"])]
        start = starts[int(node.lineno) - 1] + int(node.col_offset)
        end = starts[int(node.end_lineno) - 1] + int(node.end_col_offset)
        text = _switched(number, node, data[start:end].decode(), ast.unparse(changed))
        edits.setdefault(path, []).append((start, end, text))
    for path, places in edits.items():
        data = path.read_bytes()
        for start, end, text in sorted(places, reverse=True):
            data = data[:start] + text.encode() + data[end:]
        path.write_bytes(data)
        compile(data, path, "exec")
    site = next(Path(sys.prefix).glob("lib/*/site-packages"))
    (site / "mutation_hook.py").write_text(HOOK, encoding="utf-8")
    (site / "mutation_hook.pth").write_text("import mutation_hook\n", encoding="utf-8")


def _switched(number: int, node: Any, old: str, new: str) -> str:
    match node:
        case ast.Return():
            return f"return (None if _mutant({number}) else ({old.removeprefix('return').strip()}))"
        case ast.Expr():
            return f"None if _mutant({number}) else ({old})"
        case ast.stmt():
            return f"if _mutant({number}): {new}\n{' ' * node.col_offset}else: {old}"
        case _:
            return f"(({new}) if _mutant({number}) else ({old}))"


# ---- Which tests reach which mutation


class _Recorder:
    """Tells all processes which test runs, and keeps how long each took."""

    def __init__(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._state = FOLDER / f"state.{os.getpid()}"
        self._state.write_bytes(b"-" * 16)
        os.environ["MUTATION_STATE"] = str(self._state)
        os.environ["MUTATION_REACHED"] = str(FOLDER / "reached.txt")
        importlib.import_module("mutation_hook").attach(self._state)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._state.open("r+b") as file:
            file.write(_short(item.nodeid))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            with (FOLDER / "durations.txt").open("a", encoding="utf-8") as file:
                file.write(json.dumps([report.nodeid, report.duration, report.outcome]) + "\n")


def _short(test: str) -> bytes:
    return hashlib.sha256(test.encode()).hexdigest()[:16].encode()


def pytest_configure(config: pytest.Config) -> None:
    """Record, where pytest runs with `-p tools.mutation`."""
    config.pluginmanager.register(_Recorder())


def reach(only: set[str] | None = None) -> dict[int, list[tuple[str, float]]]:
    """The tests that pass and reach a mutation, with their durations, fastest first."""
    took: dict[str, float] = {}
    failed: set[str] = set()
    for line in (FOLDER / "durations.txt").read_text(encoding="utf-8").splitlines():
        test, seconds, outcome = json.loads(line)
        took[test] = took.get(test, 0) + seconds
        if outcome != "passed":
            failed.add(test)
    names = {_short(test).decode(): test for test in took}
    found: dict[int, set[str]] = {}
    for line in (FOLDER / "reached.txt").read_text(encoding="utf-8").splitlines():
        key, _, number = line.partition(" ")
        if key in names and names[key] not in failed and (only is None or names[key] in only):
            found.setdefault(int(number), set()).add(names[key])
    return {
        number: sorted(((test, took[test]) for test in tests), key=lambda pair: pair[1])
        for number, tests in found.items()
    }


# ---- Run and compare


def run(file: Path, most: int, numbers: list[int], only: set[str] | None) -> int:
    """Run the next mutations that have no result yet; tells whether there are more."""
    entries: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    reached = reach(only)
    for module in HEAVY:
        with suppress(ImportError):
            importlib.import_module(module)
    results = file.with_suffix(".here")
    done: dict[str, Any] = {}
    if results.exists():
        done = {
            key: value for line in results.read_text("utf-8").splitlines() for key, value in json.loads(line).items()
        }
    left = [number for number in numbers or range(len(entries)) if str(number) not in done]
    for number in left[:most]:
        began = time.monotonic()
        killed = _killed(number, reached.get(number, []))
        result = {
            "killed": killed,
            "seconds": round(time.monotonic() - began, 1),
            "tests": len(reached.get(number, [])),
        }
        with results.open("a", encoding="utf-8") as into:
            into.write(json.dumps({number: result}) + "\n")
        print(number, "killed" if killed else "ALIVE ", _shown(entries[number]), result, flush=True)
    return int(len(left) > most)


def _shown(entry: dict[str, Any]) -> str:
    return f"{entry['file']}:{entry['line']} {entry['name']}: {entry['old']!r} -> {entry['new']!r}"


def _killed(number: int, tests: list[tuple[str, float]]) -> str | None:
    """The test that killed it."""
    chosen: list[str] = []
    total = 0.0
    for test, seconds in tests:
        if not test.isprintable():
            # Its name does not fit into one line of the file that lists the tests.
            continue
        total += seconds
        if total > SECONDS and chosen:
            break
        chosen.append(test)
    ends = time.monotonic() + LIMIT
    for part in (chosen[:FIRST], chosen[FIRST:]):
        if part and (killed := _run(number, part, ends)):
            return killed
    return None


def _run(number: int, tests: list[str], ends: float) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said.txt"
        if not (child := os.fork()):
            _be_pytest(number, tests, Path(folder), said)
        code = None
        while code is None and time.monotonic() < ends:
            time.sleep(0.05)
            pid, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if pid else None
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if code is None:
            os.waitpid(child, 0)
        if not code:
            return None
        lines = said.read_text("utf-8", "replace").splitlines()
        return next((line for line in lines if line.startswith(("FAILED", "ERROR"))), f"exit code {code}")


def _be_pytest(number: int, tests: list[str], folder: Path, said: Path) -> None:
    os.setsid()
    os.environ["MUTATION_ON"] = str(number)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "examples")
    hook = importlib.import_module("mutation_hook")
    hook.on = number  # type: ignore[attr-defined]
    listed = folder / "tests.txt"
    listed.write_text("\n".join(tests), encoding="utf-8")
    code = 70
    try:
        with said.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = pytest.main(["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", *IMPORTED, f"@{listed}"])
        sys.stdout.flush()
    finally:
        os._exit(int(code))


def compare(file: Path, before: Path, after: Path) -> None:
    """Count what each suite killed, and name each mutation that only one of the two killed."""
    entries = json.loads(file.read_text(encoding="utf-8"))
    old, new = (
        {int(key): value for line in path.read_text("utf-8").splitlines() for key, value in json.loads(line).items()}
        for path in (before, after)
    )
    both = sorted(old.keys() & new.keys())
    for seed in sorted({entry["seed"] for entry in entries}):
        mine = [number for number in both if entries[number]["seed"] == seed]
        kills = [sum(bool(results[number]["killed"]) for number in mine) for results in (old, new)]
        print(f"seed {seed}: {len(mine)} mutations, killed before {kills[0]}, after {kills[1]}")
    for number in both:
        one, two = old[number]["killed"], new[number]["killed"]
        if bool(one) != bool(two):
            print(f"only {'before' if one else 'after'}: {number} {_shown(entries[number])}\n    {one or two}")


def main() -> None:
    """Run the command of the arguments."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="choose mutations")
    drawing.add_argument("--seed", type=int, action="append", required=True)
    drawing.add_argument("--count", type=int, default=200)
    drawing.add_argument("--also", type=Path)
    drawing.add_argument("file", type=Path)
    commands.add_parser("plant", help="write them into the source").add_argument("file", type=Path)
    commands.add_parser("map", help="note which tests reach which of them").add_argument("pytest", nargs="*")
    running = commands.add_parser("run", help="switch them on, one at a time")
    running.add_argument("--most", type=int, default=10**6, help="how many before it ends")
    running.add_argument("--only", type=int, nargs="*", default=[], help="the numbers of mutations")
    running.add_argument("--tests", type=Path, help="a file with the tests that there still are, one in a line")
    running.add_argument("file", type=Path)
    comparing = commands.add_parser("compare", help="compare the results of two trees")
    for name in ("file", "before", "after"):
        comparing.add_argument(name, type=Path)
    said, more = parser.parse_known_args()
    match said.command:
        case "draw":
            draw(said.seed, said.count, said.also, said.file)
        case "plant":
            plant(said.file)
        case "map":
            tests = [*said.pytest, *more] or ["-n", "3", "--dist", "loadfile", "-m", "not interop"]
            command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.mutation", *tests]
            sys.exit(subprocess.run(command, check=False).returncode)
        case "run":
            tests = set(said.tests.read_text("utf-8").splitlines()) if said.tests else None
            sys.exit(run(said.file, said.most, said.only, tests))
        case _:
            compare(said.file, said.before, said.after)


if __name__ == "__main__":
    main()
