"""Mutation testing: change the source in a small way, and see whether a test fails.

    python -m tools.mutation map                              run the tests, and note which of them reach which line
    python -m tools.mutation sample --seed 1 --count 200 FILE draw mutations of lines that tests reach
    python -m tools.mutation run FILE                         run them here; writes FILE with the results
    python -m tools.mutation compare BEFORE AFTER             which mutations only one of the two suites kills

To compare two test suites of one source, draw a sample once and run it in a checkout of each: `map` first, in both. A
mutation is killed when a test fails within a minute. The tests that reach its line run fastest first. Tests that reach
it in a process that they start run only if no other test reaches it.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import coverage
import pytest

SOURCE = Path("src/mcp_tasks")
FOLDER = Path(".cache/mutation")
DATA = FOLDER / "coverage"
DURATIONS = FOLDER / "durations.json"
CONFIG = FOLDER / "config.ini"
SECONDS = 60
"""How long the tests of a mutation may take. What is alive then has survived."""

CONTEXT = "MCP_TASKS_MUTATION_TEST"
"""The test that runs, for the processes that it starts."""


@dataclass(frozen=True)
class Mutation:
    """A piece of a file, and what comes in its place."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str


# ---- Which tests reach which line


class _Recorder:
    """Tells coverage which test runs, also in the processes that it starts, and keeps how long each took."""

    def __init__(self) -> None:
        self._took: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        measured = coverage.Coverage.current()
        if measured is not None:
            measured.switch_context(item.nodeid)
        os.environ[CONTEXT] = "process:" + item.nodeid
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[report.nodeid] = self._took.get(report.nodeid, 0) + report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            DURATIONS.write_text(json.dumps(self._took), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Record, where pytest runs with `-p tools.mutation`."""
    config.pluginmanager.register(_Recorder())


def record(tests: list[str]) -> int:
    """Run the tests under coverage, and keep which of them reached which line."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("coverage*"):
        old.unlink()
    CONFIG.write_text(
        f"[run]\nparallel = true\nsigterm = true\ndata_file = {DATA.absolute()}\n"
        f"source = {SOURCE.absolute()}\ncontext = ${{{CONTEXT}-}}\n",
        encoding="utf-8",
    )
    # Each Python process of this environment is measured while the hook is there, the workers of xdist included.
    hook = next(Path(sys.prefix).glob("lib/*/site-packages")) / "mutation_map.pth"
    hook.write_text("import coverage; coverage.process_startup()\n", encoding="utf-8")
    try:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tools.mutation",
            "-m",
            "not interop",
            "-n",
            "3",
            "--dist",
            "loadfile",
            *tests,
        ]
        subprocess.run(command, env=os.environ | {"COVERAGE_PROCESS_START": str(CONFIG.absolute())}, check=False)
    finally:
        hook.unlink()
    return subprocess.run(
        [sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={CONFIG}"], check=False
    ).returncode


class Reach:
    """Which tests reach a line."""

    def __init__(self) -> None:
        self._data = coverage.CoverageData(str(DATA.absolute()))
        self._data.read()
        self._took: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
        self._files: dict[str, dict[int, list[str]]] = {}

    def tests(self, file: str, line: int) -> list[str]:
        """Those that reach it themselves, fastest first; if there are none, those whose processes do."""
        if file not in self._files:
            self._files[file] = self._data.contexts_by_lineno(str(Path(file).absolute()))
        contexts = {part for context in self._files[file].get(line, ()) for part in context.split("|")} - {""}
        near = {context for context in contexts if not context.startswith("process:")}
        names = near or {context.removeprefix("process:") for context in contexts}
        return sorted(names & self._took.keys(), key=lambda name: self._took[name])


# ---- What may be mutated

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
_QUIET = ("log", "_log", "logger", "_logger", "warnings", "echo")


def mutations(path: Path) -> Iterator[Mutation]:
    """All mutations of the functions of a file."""
    text = path.read_text(encoding="utf-8")
    data = text.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _nodes(ast.parse(text)):
        for changed in _changes(node):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            new = ast.unparse(changed)
            if isinstance(node, ast.expr):
                new = f"({new})"
            yield Mutation(path.as_posix(), node.lineno, start, end, data[start:end].decode(), new)


def _nodes(tree: ast.AST, *, within: bool = False) -> Iterator[Any]:
    """The nodes of function bodies, without type hints, decorators, docstrings, formatted texts and messages."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        children = cast("list[Any]", value) if isinstance(value, list) else [value]
        for node in children:
            if not isinstance(node, ast.AST) or _is_quiet(node):
                continue
            inside = within or (name == "body" and isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef))
            if inside:
                yield node
            yield from _nodes(node, within=inside)


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


# ---- Sample, run, compare


def sample(seed: int, count: int, into: Path) -> None:
    """Draw mutations of lines that tests reach, over all packages."""
    reach = Reach()
    # The suites for stores and engines, in modules of `testing` with a "_", are tests themselves.
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if not path.match("testing/_*.py")]
    every = [mutation for path in paths for mutation in mutations(path)]
    random.Random(seed).shuffle(every)
    drawn: list[Mutation] = []
    for mutation in every:
        if len(drawn) == count:
            break
        if reach.tests(mutation.file, mutation.line):
            drawn.append(mutation)
    into.write_text(json.dumps([asdict(mutation) for mutation in drawn], indent=1), encoding="utf-8")
    print(f"{len(drawn)} of {len(every)} mutations")


def run(file: Path) -> None:
    """Run the tests of each mutation, and write down what became of it. Goes on where it was stopped."""
    reach = Reach()
    entries: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    for number, entry in enumerate(entries, 1):
        if "killed" in entry:
            continue
        mutation = Mutation(**{name: entry[name] for name in Mutation.__annotations__})
        began = time.monotonic()
        entry["killed"] = _killed(mutation, reach.tests(mutation.file, mutation.line))
        entry["seconds"] = round(time.monotonic() - began, 1)
        file.write_text(json.dumps(entries, indent=1), encoding="utf-8")
        print(f"{number}/{len(entries)} {'killed' if entry['killed'] else 'ALIVE '} {_shown(entry)}", flush=True)
    print(f"{sum(bool(entry['killed']) for entry in entries)} of {len(entries)} killed")


def _shown(entry: dict[str, Any]) -> str:
    return f"{entry['file']}:{entry['line']} {entry['old']!r} -> {entry['new']!r}"


def _killed(mutation: Mutation, tests: list[str]) -> str | None:
    """What killed it."""
    path = Path(mutation.file)
    original = path.read_bytes()
    if original[mutation.start : mutation.end].decode() != mutation.old:
        raise SystemExit(f"{path}:{mutation.line} is not what the sample was drawn from")
    if not tests:
        return None
    listed = FOLDER / "tests.txt"
    listed.write_text("\n".join(tests), encoding="utf-8")
    try:
        path.write_bytes(original[: mutation.start] + mutation.new.encode() + original[mutation.end :])
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            "--tb=no",
            "-p",
            "no:cacheprovider",
            f"@{listed}",
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as process:
            try:
                said, _ = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return None
    finally:
        path.write_bytes(original)
    if process.returncode == 0:
        return None
    return next(
        (line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))), f"exit code {process.returncode}"
    )


def compare(before: Path, after: Path) -> int:
    """Name each mutation that only one of two suites killed."""
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    lost = 0
    for one, two in zip(old, new, strict=True):
        if bool(one["killed"]) != bool(two["killed"]):
            lost += bool(one["killed"])
            which = "before" if one["killed"] else "after"
            print(f"only {which}: {_shown(one)} ({one['killed'] or two['killed']})")
    print(
        *(
            f"{name} {sum(bool(entry['killed']) for entry in entries)}/{len(entries)}"
            for name, entries in (("before", old), ("after", new))
        )
    )
    return min(lost, 1)


def main() -> None:
    """Run the command of the arguments."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("map", help="note which tests reach which line").add_argument("tests", nargs="*")
    drawing = commands.add_parser("sample", help="draw mutations")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, default=200)
    drawing.add_argument("file", type=Path)
    commands.add_parser("run", help="run a sample").add_argument("file", type=Path)
    comparing = commands.add_parser("compare", help="compare two runs of one sample")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    said = parser.parse_args()
    match said.command:
        case "map":
            sys.exit(record(said.tests))
        case "sample":
            sample(said.seed, said.count, said.file)
        case "run":
            run(said.file)
        case _:
            sys.exit(compare(said.before, said.after))


if __name__ == "__main__":
    main()
