"""How tests and source are written: what is not covered says why, and nothing new waits by the clock."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import mcp_tasks

SOURCE = Path(mcp_tasks.__file__).parent
TESTS = Path(__file__).parent

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


@pytest.mark.parametrize(
    ("line", "is_fine"),
    [
        ("x = 1  # pragma: no cover", False),
        ("x = 1  # pragma: no cover - later", False),
        ("x = 1  # pragma: no branch - an empty container is never large", True),
        ("x = 1", True),
    ],
)
def test_a_reason_is_more_than_a_word(line: str, is_fine: bool) -> None:
    assert (unexplained(line) == []) is is_fine


SLEEPS = frozenset({"anyio.sleep", "asyncio.sleep", "time.sleep"})


def sleeps(source: str) -> Iterator[int]:
    """The lines on which a test itself sleeps for a fixed time, not in a loop that looks, and without a reason.

    What a tool of a test does inside (a function in a function) is its work. `# sleep: ...` on the line gives a reason.
    """
    lines = source.splitlines()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name.startswith("test_"):
            yield from (line for line in _sleeps_in(function.body) if "# sleep: " not in lines[line - 1])


def _sleeps_in(nodes: list[ast.stmt] | list[ast.AST]) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.While):
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SLEEPS and _is_positive(node.args):
            yield node.lineno
        yield from _sleeps_in(list(ast.iter_child_nodes(node)))


def _is_positive(arguments: list[ast.expr]) -> bool:
    return bool(arguments) and not (isinstance(arguments[0], ast.Constant) and arguments[0].value == 0)


LEFT: dict[str, int] = {
    "backends/test_docket_engine.py": 3,
    "backends/test_postgres_broken.py": 3,
    "backends/test_procrastinate_carrier.py": 2,
    "backends/test_sqlite_upgrade.py": 1,
    "chaos/test_early_start.py": 1,
    "client/test_crashes.py": 1,
    "client/test_hostile.py": 1,
    "client/test_hub.py": 1,
    "client/test_legacy.py": 1,
    "client/test_legacy_crashes.py": 1,
    "client/test_legacy_transports.py": 1,
    "client/test_network.py": 1,
    "everything/test_list_changes.py": 1,
    "fallback/test_asked_first.py": 1,
    "fallback/test_asking.py": 3,
    "fallback/test_companion_calls.py": 2,
    "fallback/test_companions.py": 1,
    "fallback/test_deploys.py": 1,
    "fallback/test_in_memory.py": 1,
    "fallback/test_joining.py": 2,
    "fallback/test_killed.py": 2,
    "fallback/test_leaving.py": 5,
    "fallback/test_older_calls.py": 1,
    "fallback/test_unchanged.py": 2,
    "fleet/test_recovery.py": 1,
    "hosted/test_hostile.py": 1,
    "hosted/test_wire.py": 2,
    "legacy/test_methods.py": 1,
    "legacy/test_pushes.py": 7,
    "legacy/test_questions.py": 7,
    "legacy/test_questions_elsewhere.py": 3,
    "legacy/test_sessions.py": 1,
    "promises/test_tester.py": 1,
    "promises/test_waiting.py": 1,
    "trust/test_encrypting.py": 2,
    "trust/test_limits.py": 4,
    "unit/adapters/asgi/test_listening.py": 1,
    "unit/client/test_wire.py": 1,
    "unit/runtime/test_alarms.py": 3,
    "unit/runtime/test_deliveries.py": 2,
    "unit/runtime/test_launching.py": 1,
    "unit/runtime/test_lease_lost.py": 10,
    "unit/runtime/test_lookout.py": 5,
    "unit/runtime/test_narration.py": 1,
    "unit/runtime/test_observing.py": 1,
    "unit/runtime/test_parking.py": 6,
    "unit/runtime/test_progress.py": 5,
    "unit/runtime/test_queue_sweep.py": 5,
    "unit/runtime/test_queue_sweep_in_a_file.py": 1,
    "unit/runtime/test_rest.py": 3,
    "unit/runtime/test_run.py": 5,
    "unit/runtime/test_time_limit.py": 7,
    "unit/runtime/test_uncancelled.py": 1,
    "unit/tools/test_creation.py": 1,
    "unit/tools/test_open_calls.py": 1,
}
"""Files that still sleep, and how often. To be made shorter, never longer."""


def test_no_test_waits_by_the_clock() -> None:
    found = Counter(
        {
            path.relative_to(TESTS).as_posix(): count
            for path in sorted(TESTS.rglob("test_*.py"))
            if (count := len(list(sleeps(path.read_text(encoding="utf-8")))))
        }
    )
    more = {name: count for name, count in found.items() if count > LEFT.get(name, 0)}
    assert more == {}, "await what is waited for, or say why it cannot be in a comment on the line: # sleep: ..."


def test_the_list_of_those_that_still_sleep_is_no_longer_than_it_must_be() -> None:
    stale = {
        name: most
        for name, most in LEFT.items()
        if not (TESTS / name).is_file() or len(list(sleeps((TESTS / name).read_text(encoding="utf-8")))) < most
    }
    assert stale == {}, "fewer sleeps than the list says: write the new number, or take the file out"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("await anyio.sleep(0.1)", 1),
        ("await anyio.sleep(LONG)", 1),
        ("await anyio.sleep(0)", 0),
        ("await anyio.sleep(0.1)  # sleep: nothing must happen in this time", 0),
        ("while not done: await anyio.sleep(0.1)", 0),
        ("async def tool(): await anyio.sleep(0.1)", 0),
    ],
)
def test_a_sleep_of_a_test_is_found(body: str, found: int) -> None:
    assert len(list(sleeps(f"async def test_x():\n    {body}\n"))) == found
