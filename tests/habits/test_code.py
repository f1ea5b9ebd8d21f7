"""How tests and source are written: what is not covered says why, and nothing waits by the clock without a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import mcp_tasks

SOURCE = Path(mcp_tasks.__file__).parent
TESTS = Path(__file__).parents[1]

_EXCLUDED = re.compile(r"# pragma: no (?:cover|branch)(?P<why>.*)")
_LEAST_WORDS = 4


def unexplained(source: str) -> list[int]:
    """The lines that are kept out of the coverage without saying why."""
    found = ((number, _EXCLUDED.search(line)) for number, line in enumerate(source.splitlines(), 1))
    return [number for number, match in found if match and not _is_reason(match["why"])]


def _is_reason(text: str) -> bool:
    return text.startswith(" - ") and len(text.split()) > _LEAST_WORDS


def test_what_is_not_to_be_covered_says_why() -> None:
    bare = {str(path): lines for path in sorted(SOURCE.rglob("*.py")) if (lines := unexplained(path.read_text()))}
    assert bare == {}


SLEEPS = frozenset({"anyio.sleep", "asyncio.sleep", "time.sleep"})


def sleeps(source: str) -> list[int]:
    """The lines that sleep for a fixed time, not in a loop that looks, and without a reason: `# sleep: ...`."""
    lines = source.splitlines()
    return [line for line in _sleeps_in(ast.parse(source)) if "# sleep: " not in lines[line - 1]]


def _sleeps_in(node: ast.AST) -> Iterator[int]:
    if isinstance(node, ast.While):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func) in SLEEPS and _is_positive(node.args):
        yield node.lineno
    for inner in ast.iter_child_nodes(node):
        yield from _sleeps_in(inner)


def _is_positive(arguments: list[ast.expr]) -> bool:
    return bool(arguments) and not (isinstance(arguments[0], ast.Constant) and arguments[0].value == 0)


def test_no_test_waits_by_the_clock() -> None:
    """Servers and stores for tests have modules of their own: what those sleep is their work."""
    files = {path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    found = {name: lines for name, text in files.items() if (lines := sleeps(text))}
    assert found == {}, "await what is waited for, or say why it cannot be in a comment on the line: # sleep: ..."
