"""The command against a server of 2025-11-25: the same words for the other protocol."""

from __future__ import annotations

import re
from pathlib import Path

from mcp_tasks.client.ledger import short_id
from tests.cli.running import Cli, stdio_command
from tests.cli.terminal import on_terminal

OLD = ("--era", "legacy")


def start(cli: Cli, url: str, *call: str) -> str:
    """Start a task and leave it; gives its id."""
    done = cli("call", *OLD, "--detach", url, *call)
    assert done.returncode == 0, done.stderr
    assert f"mcp-tasks wait {short_id(done.stdout.strip())} --era legacy" in done.stderr
    return done.stdout.strip()


def test_a_call_becomes_a_task_and_shows_its_progress(cli: Cli, fixture_url: str) -> None:
    done = cli("call", *OLD, fixture_url, "slow_compute", "seconds=2", "label=old")
    assert (done.returncode, done.stdout) == (0, "old: done after 2 s\n"), done.stderr
    # Which of them is seen depends on when the client looks.
    assert re.search(r"^working  old: [012] s of 2 s \(\d+%\)$", done.stderr, re.MULTILINE), done.stderr


def test_a_call_of_a_tool_that_is_no_task_is_a_plain_one(cli: Cli, fixture_url: str) -> None:
    done = cli("call", *OLD, fixture_url, "greet", "name=Ada")
    assert (done.returncode, done.stdout) == (0, "Hello, Ada!\n"), done.stderr


def test_a_tool_that_fails_and_a_call_that_fails_are_told_apart(cli: Cli, fixture_url: str) -> None:
    tool, call = cli.together(
        ("call", *OLD, fixture_url, "failing_job"), ("call", *OLD, fixture_url, "protocol_error_job")
    )
    assert (tool.returncode, call.returncode) == (1, 3), (tool.stderr, call.stderr)
    assert "the job failed, as it always does" in tool.stderr
    assert "The call failed:" in call.stderr


def test_a_task_is_started_listed_shown_and_waited_for(cli: Cli, fixture_url: str) -> None:
    task_id = start(cli, fixture_url, "slow_compute", "seconds=1", "label=x")
    [entry] = cli.json("ls", *OLD)
    assert (entry["taskId"], entry["status"]) == (task_id, "working")
    assert cli.json("show", task_id, *OLD)["status"] in ("working", "completed")
    done = cli("wait", task_id, *OLD)
    assert (done.returncode, done.stdout) == (0, "x: done after 1 s\n"), done.stderr


def test_a_task_is_cancelled(cli: Cli, fixture_url: str) -> None:
    task_id = start(cli, fixture_url, "slow_compute", "seconds=60", "label=x")
    done = cli("cancel", task_id, *OLD)
    assert done.returncode == 0, done.stderr
    assert cli("wait", task_id, *OLD, "--server", fixture_url).returncode == 4


def test_with_nobody_to_ask_a_question_ends_the_wait_and_is_answered_by_another_command(
    cli: Cli, fixture_url: str
) -> None:
    task_id = start(cli, fixture_url, "confirm_delete", "filename=a.txt")
    waited = cli("wait", task_id, *OLD)
    assert waited.returncode == 7, waited.stderr
    name = f"mcp-tasks answer {short_id(task_id)}"
    assert f"{name} --era legacy" in waited.stderr
    assert f"{name} KEY=VALUE --era legacy" in waited.stderr
    silent = cli("answer", task_id, *OLD)
    assert (silent.returncode, "no terminal" in silent.stderr) == (7, True)
    assert f"{name} KEY=VALUE --era legacy" in silent.stderr
    answered = cli("answer", task_id, "confirm=yes", "--wait", *OLD)
    assert (answered.returncode, answered.stdout) == (0, "deleted a.txt\n"), answered.stderr


def test_a_task_that_the_server_does_not_know_may_be_one_of_another_session(cli: Cli, fixture_url: str) -> None:
    old, new = cli.together(
        ("wait", "nobodys-task", *OLD, "--server", fixture_url), ("wait", "nobodys-task", "--server", fixture_url)
    )
    assert (old.returncode, new.returncode) == (8, 8), old.stderr
    assert "only for the session that made it" in old.stderr
    assert "session" not in new.stderr


def test_a_question_is_asked_on_the_terminal(cli: Cli, fixture_url: str) -> None:
    with on_terminal(cli, "call", *OLD, fixture_url, "confirm_delete", "filename=a.txt") as terminal:
        terminal.expect("Delete a.txt?")
        terminal.type("yes\n")
        terminal.expect("deleted a.txt")


def test_tools_are_listed_with_how_they_may_be_called(cli: Cli, fixture_url: str) -> None:
    listed = cli.json("tools", fixture_url, *OLD)
    assert (listed["protocolVersion"], listed["tasks"]) == ("2025-11-25", True)
    by_name = {tool["name"]: tool["task"] for tool in listed["tools"]}
    assert by_name["greet"] == "never"
    assert by_name["failing_job"] != by_name["slow_compute"] != "never"


def test_a_stdio_server_is_spoken_to_as_well(cli: Cli, tmp_path: Path) -> None:
    done = cli("call", *OLD, stdio_command(tmp_path), "slow", "seconds=0.2")
    assert (done.returncode, done.stdout) == (0, "slow done\n"), done.stderr
