"""What commands take and how they print it: durations, JSON, a line per request, calls told apart."""

from __future__ import annotations

import json
import tomllib

import pytest

from mcp_tasks.errors import DOCS
from tests.cli.running import ROOT, Cli


@pytest.mark.parametrize("text", ["90", "90s", "1.5m", "1h30m", "2d"])
def test_a_duration_is_written_in_one_way_everywhere(cli: Cli, text: str) -> None:
    done = cli("prune", "--older-than", text, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])


def test_what_is_no_duration_is_refused_with_how_to_write_one(cli: Cli) -> None:
    done = cli("wait", "task_x", "--timeout", "10x")
    assert done.returncode == 2
    assert "'10x' is not a duration; write 90 or 90s, 10m, 1h30m" in done.stderr


def test_json_prints_json_and_an_object_after_it_is_sent_to_args(cli: Cli, asking_url: str) -> None:
    given = '{"text": "t"}'
    new = cli("call", asking_url, "echo", "--args", given, "--json")
    assert json.loads(new.stdout)["status"] == "completed"
    mixed_up = cli("call", asking_url, "echo", "--json", given)
    assert (mixed_up.returncode, mixed_up.stdout) == (2, "")
    assert "take a JSON object with --args" in mixed_up.stderr


def test_a_line_per_request_names_the_method_and_the_tool(cli: Cli, asking_url: str) -> None:
    done = cli("call", asking_url, "echo", "text=t", "-v")
    assert "tools/call echo" in done.stderr
    assert " ms" in done.stderr


def test_two_calls_of_one_tool_are_told_apart(cli: Cli, asking_url: str) -> None:
    for seconds in ("31", "32"):
        cli.start(asking_url, "slow", f"seconds={seconds}")
    listed = cli("ls").stdout
    assert "slow seconds=31" in listed
    assert "slow seconds=32" in listed


def test_help_points_to_pages_that_a_user_of_the_package_has(cli: Cli) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # The docs of each release stand beside each other, and `latest` is the newest.
    assert f"{project['urls']['Documentation']}latest/" == DOCS
    assert f"{DOCS}cli.html" in cli("--help").stdout
