"""What an author can say of a tool, and what it means for its runs."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp_types import ToolAnnotations

from mcp_tasks import Fallback, Tasks
from mcp_tasks.errors import InvalidDuration, InvalidOption
from mcp_tasks.runtime import Settings, ToolPolicy
from mcp_tasks.server.options import Recover, TaskOptions, Unset

REPEATABLE = ToolAnnotations(idempotent_hint=True)
READ_ONLY = ToolAnnotations(read_only_hint=True)
DESTRUCTIVE = ToolAnnotations(destructive_hint=True, idempotent_hint=False)


def test_a_tool_is_optional_and_keeps_to_the_defaults_unless_said_otherwise() -> None:
    options = TaskOptions()
    assert options.mode == "optional"
    assert isinstance(options.ttl, Unset)
    assert options.policy(None) == ToolPolicy(rerun=False)


@pytest.mark.parametrize(
    ("recover", "annotations", "may"),
    [
        (None, REPEATABLE, True),
        (None, READ_ONLY, True),
        (None, None, False),
        (None, ToolAnnotations(), False),
        (None, DESTRUCTIVE, False),
        (None, ToolAnnotations(read_only_hint=False), False),
        ("rerun", DESTRUCTIVE, True),
        ("fail", REPEATABLE, False),
    ],
)
def test_a_tool_may_run_again_if_its_author_says_so_or_else_its_annotations(
    recover: Recover | None, annotations: ToolAnnotations | None, may: bool
) -> None:
    assert TaskOptions(recover=recover).policy(annotations).rerun is may


@pytest.mark.parametrize(
    "mistake",
    [
        {"mode": "always"},
        {"mode": None},
        {"recover": "retry"},
        {"ttl": timedelta(0)},
        {"max_runtime": timedelta(seconds=-1)},
        {"poll_interval": timedelta(0)},
    ],
    ids=str,
)
def test_a_mistake_is_named_where_it_is_made(mistake: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(mistake))):
        TaskOptions(**mistake)


@pytest.mark.parametrize("setting", [field.name for field in fields(Settings) if not field.name.startswith("max_")])
def test_a_setting_that_is_a_bare_number_is_refused_with_what_to_write(setting: str) -> None:
    with pytest.raises(InvalidDuration, match=rf"{setting}=timedelta\(seconds=15\)"):
        Settings(**{setting: 15})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("settings", "drains_for"),
    [
        (None, 25),
        (Settings(lease_duration=timedelta(seconds=30)), 25),
        (Settings(drain_timeout=timedelta(seconds=5)), 5),
        (Settings(drain_timeout=timedelta(0)), 0),
    ],
)
def test_a_worker_drains_for_as_long_as_is_usual_unless_that_itself_was_said(
    settings: Settings | None, drains_for: int
) -> None:
    tasks = Tasks("memory://", settings=settings)
    server = MCPServer("farm", **tasks.wiring())
    assert tasks.worker(server, usual_drain=timedelta(seconds=25)).drain == timedelta(seconds=drains_for)
    assert tasks.worker(server, drain=timedelta(seconds=1)).drain == timedelta(seconds=1)
    assert Settings().drains_for == timedelta(seconds=5)


@pytest.mark.parametrize("queue", ["a,b", "gpu ", "\tgpu", ",", " ", "", 3])
def test_a_queue_that_no_worker_could_be_told_to_serve_is_refused(queue: Any) -> None:
    with pytest.raises(InvalidOption, match=r"queue must be a (name without commas|non-empty string)"):
        TaskOptions(queue=queue)
    with pytest.raises(InvalidOption, match=r"a queue must be a (name without commas|non-empty string)"):
        Tasks("memory://", queues=[queue])


@pytest.mark.parametrize("number", [-1, 1.5, True, "many"])
def test_a_number_of_waiting_runs_that_is_none_is_refused(number: object) -> None:
    with pytest.raises(InvalidOption, match="waiting_runs"):
        Settings(max_waiting_runs=number)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("ways", ["sometimes", True, timedelta(seconds=20), Fallback, {"wait": 20}])
def test_what_is_no_fallback_is_refused_with_what_to_write(ways: Any) -> None:
    with pytest.raises(InvalidOption, match=r"fallback must be 'auto', 'inline' or a Fallback, got .*Fallback\(wait="):
        TaskOptions(fallback=ways)


def test_a_tool_may_say_nothing_of_its_fallback_and_a_server_may_not_say_none() -> None:
    assert TaskOptions(fallback=None).ways(TaskOptions()) == Fallback()
    with pytest.raises(InvalidOption, match="fallback must be 'auto', 'inline' or a Fallback, got None"):
        Tasks("memory://", fallback=None)  # pyright: ignore[reportArgumentType]
