"""Whatever an author writes that cannot be meant is refused where it is written, in words that say what to write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from mcp_tasks import Tasks
from mcp_tasks.engines import LocalEngine
from mcp_tasks.errors import InvalidDuration, InvalidMark, InvalidOption, UsageError
from mcp_tasks.stores.memory import MemoryStore


async def _awaited(change: object) -> None: ...


class _Awaited:
    async def __call__(self, change: object) -> None: ...


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ({"principal": "x"}, r"principal must be a function, such as lambda caller: caller\.principal; got 'x'"),
        ({"principal": _awaited}, r"principal must be a plain function \(def\)"),
        ({"augment": True}, "augment must be a function, such as .*; got True"),
        ({"clock": 5}, "clock must be a function"),
        ({"settings": {}}, r"settings must be a Settings, got \{\}: write settings=Settings\(\.\.\.\)"),
        ({"runs_tools": "no"}, "runs_tools must be True or False, got 'no'"),
        ({"queues": "gpu"}, "queues must be a list of names, got 'gpu'"),
        ({"queues": 3}, "queues must be a list of names, got 3"),
        ({"require_name_header": 1}, "require_name_header must be True or False, got 1"),
        ({"send_input": 1}, "send_input must be True or False, got 1"),
        ({"observers": print}, r"observers must be a list of functions, got .*: write observers=\[function\]"),
        ({"observers": "x"}, "observers must be a list of functions, got 'x'"),
        ({"observers": ["x"]}, "an observer must be a function, such as .*; got 'x'"),
        ({"observers": [_awaited]}, r"an observer must be a plain function \(def\), because nothing awaits it"),
        ({"observers": [_Awaited()]}, "an observer must be a plain function"),
        ({"concurrency": "4"}, "concurrency must be a whole number of at least 1, got '4'"),
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1, got 0"),
        ({"concurrency": True}, "concurrency must be a whole number of at least 1, got True"),
        ({"namespace": 5}, "namespace must be a non-empty string, got 5"),
        ({"namespace": ""}, "namespace must be a non-empty string, got ''"),
        ({"max_lost_runs": 0}, "max_lost_runs must be a whole number of at least 1, got 0"),
    ],
    # The same in every process that collects them: no addresses of functions.
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_value_that_tasks_cannot_have_is_refused(mistake: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Tasks("memory://", **mistake)


@pytest.mark.parametrize("ms", [-1, 0, True, 1.5, "5", 10**30])
def test_a_default_ttl_in_milliseconds_is_refused_by_its_own_name(ms: Any) -> None:
    with pytest.raises(InvalidDuration, match=f"default_ttl_ms must be a positive whole number .*got {ms!r}"):
        Tasks("memory://", default_ttl_ms=ms)


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("x", "'x' names no engine; use 'local', postgresql://"),
        (3, "3 is not an engine: it lacks abilities, backlog, has_room, start, submit, drain, stop"),
        (LocalEngine, r"LocalEngine is a class, and an engine is an object of it: engine=LocalEngine\(\)"),
    ],
)
def test_what_is_not_an_engine_is_refused(engine: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Tasks("memory://", engine=engine)


def test_the_class_of_a_store_is_not_a_store() -> None:
    with pytest.raises(UsageError, match=r"Tasks\(MemoryStore\(\.\.\.\)\)"):
        Tasks(MemoryStore)  # pyright: ignore[reportArgumentType]


def _by_decorator(tasks: Tasks, **options: Any) -> None:
    tasks.task(**options)


def _by_name(tasks: Tasks, **options: Any) -> None:
    tasks.mark("render", **options)


@pytest.mark.parametrize(("way", "where"), [(_by_decorator, "@tasks.task"), (_by_name, "tasks.mark")])
def test_an_option_that_does_not_exist_is_refused_with_those_that_do(way: Callable[..., None], where: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        way(Tasks("memory://"), tll=timedelta(days=1))
    said = str(refused.value)
    assert said.startswith(f"{where} has no option 'tll'; did you mean 'ttl'? It has ")
    assert "mode, ttl, recover" in said
    with pytest.raises(InvalidOption, match=r"no option 'zzzzzz'\. It has "):
        way(Tasks("memory://"), zzzzzz=1)


@pytest.mark.parametrize("way", [_by_decorator, _by_name])
@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ({"asks_first": "yes"}, "asks_first must be True or False, got 'yes'"),
        ({"poll_interval": timedelta.max}, "poll_interval must be at most 1 day, 0:00:00"),
        ({"mode": ["optional"]}, r"mode must be 'forbidden', 'optional' or 'required', got \['optional'\]"),
    ],
    ids=str,
)
def test_a_value_that_a_mark_cannot_have_is_refused(
    way: Callable[..., None], mistake: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidOption, match=says):
        way(Tasks("memory://"), **mistake)


@pytest.mark.parametrize("name", ["", 5])
def test_a_name_that_no_tool_has_is_refused(name: Any) -> None:
    with pytest.raises(InvalidOption, match=f"name must be a non-empty string, got {name!r}"):
        Tasks("memory://").task(name=name)
    with pytest.raises(InvalidOption, match=f"tasks.mark takes must be a non-empty string, got {name!r}"):
        Tasks("memory://").mark(name)


def test_a_name_that_is_not_a_keyword_is_refused_with_how_to_write_it() -> None:
    with pytest.raises(InvalidMark, match=r"the name is a keyword: @tasks\.task\(name='render'\)"):
        Tasks("memory://").task("render")  # pyright: ignore[reportArgumentType]
