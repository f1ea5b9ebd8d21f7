"""The ledger's commands, and tasks by the beginning of their ids."""

from __future__ import annotations

import json
import stat
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from mcp_tasks.cli.terminal import Exit, problem_of
from mcp_tasks.client import Ledger, user_ledger
from mcp_tasks.client.ledger import short_id, short_ids
from mcp_tasks.client.servers import by_server
from mcp_tasks.errors import CredentialsForOne, MissingExtra, TasksError
from tests.cli.running import Cli

A, B = "http://a/mcp", "http://b/mcp"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    book = Ledger(tmp_path / "ledger.db", keep_results=True)
    for task_id, server in (("task_abcdefghij", A), ("task_abXYZ", A), ("task_zzz", B), ("786512e2-9e0d", B)):
        book.add(task_id, server=server, tool="render")
    book.add("task_zzz", server=A, tool="paint")
    return book


@pytest.mark.parametrize(
    ("start", "server", "found"),
    [
        ("task_abc", None, "task_abcdefghij"),
        ("abc", None, "task_abcdefghij"),
        ("786", None, "786512e2-9e0d"),
        ("task_zzz", A, "task_zzz"),
        ("task_abXYZ", None, "task_abXYZ"),
        ("never-seen", "http://c/mcp", "never-seen"),
    ],
)
def test_a_task_is_found_by_a_start_that_only_it_has(
    ledger: Ledger, start: str, server: str | None, found: str
) -> None:
    assert [entry.task_id for entry in ledger.find_all([start], server=server)] == [found]


@pytest.mark.parametrize(
    ("start", "code"), [("task_ab", Exit.USAGE), ("task_zzz", Exit.USAGE), ("nope", Exit.UNKNOWN_TASK), ("", 8)]
)
def test_a_start_that_is_not_clear_is_refused(ledger: Ledger, start: str, code: int) -> None:
    with pytest.raises(TasksError) as problem:
        ledger.find_all([start])
    shown = problem_of(problem.value)
    assert shown is not None
    assert shown.code == code


def test_short_ids_tell_tasks_apart(ledger: Ledger) -> None:
    ledger.add("task_abcdefghZZ", server=A, tool="render")
    short = short_ids(entry.task_id for entry in ledger.entries())
    assert short["786512e2-9e0d"] == "786512e2"
    assert short["task_abXYZ"] == "task_abXYZ"
    assert short["task_abcdefghij"] == "task_abcdefghij"
    assert short_id("task_abcdefghij") == "task_abcdefgh"


def test_an_error_that_calls_something_by_a_name_is_said_whole() -> None:
    assert problem_of(MissingExtra("Encryption", "encryption")).message == (
        "Encryption needs an optional dependency: pip install 'mcp-tasks[encryption]'"
    )


def test_a_token_is_not_shown_to_two_servers(ledger: Ledger) -> None:
    assert len(by_server(ledger.entries())) == 2
    with pytest.raises(CredentialsForOne, match="several servers"):
        by_server(ledger.entries(), {"Authorization": "Bearer x"})


def test_the_ledger_is_for_its_owner_only(tmp_path: Path) -> None:
    with user_ledger(tmp_path / "deep" / "ledger.db") as ledger:
        assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_a_list_that_could_not_be_refreshed_is_printed_and_ends_with_why(cli: Cli, fixture_url: str) -> None:
    with closing(Ledger(cli.ledger, keep_results=True)) as ledger:
        ledger.add("task_gone", server=fixture_url, tool="render")
        assert (cli("ls", "--refresh").returncode, "task_gone" in cli("ls").stdout) == (0, True)
        ledger.add("task_away", server="http://127.0.0.1:9/mcp", tool="render")
    done = cli("ls", "--refresh", "--json")
    assert done.returncode == Exit.UNREACHABLE
    assert "1 task could not be refreshed: http://127.0.0.1:9/mcp refuses the connection" in done.stderr
    assert {entry["taskId"] for entry in json.loads(done.stdout)} == {"task_gone", "task_away"}


def test_tasks_are_listed_filtered_refreshed_forgotten_and_pruned(cli: Cli, fixture_url: str) -> None:
    quick = cli.start(fixture_url, "slow_compute", "seconds=0.1", "label=x")
    waiting = cli.start(fixture_url, "confirm_delete", "filename=x")
    before, after = cli("ls"), cli("ls", "--refresh")
    assert "Active (2)" in before.stdout
    assert "Active (1)" in after.stdout
    assert "Ended (1)" in after.stdout
    active, found, nothing = cli.together(
        ("ls", "--active"), ("ls", "--search", "SLOW"), ("ls", "--server", "http://elsewhere/mcp")
    )
    assert (waiting[:13] in active.stdout, quick[:13] in active.stdout) == (True, False)
    assert (waiting[:13] in found.stdout, quick[:13] in found.stdout) == (False, True)
    assert (nothing.stdout, nothing.stderr) == ("", "No tasks.\n")
    assert cli.json("prune", "--older-than", "7d") == []
    assert cli.json("prune", "--dry-run") == [quick]
    assert cli.json("prune") == [quick]
    assert "which goes on" in cli("forget", waiting).stderr
    assert cli.json("ls") == []
    stranger = cli("show", waiting, "--server", fixture_url)
    assert (stranger.returncode, "input required" in stranger.stdout) == (0, True)
    assert cli("cancel", waiting, "--server", fixture_url).returncode == 0
    assert cli("show", "task_nothing", "--server", fixture_url).returncode == 8


def test_active_and_ended_exclude_each_other(cli: Cli) -> None:
    done = cli("ls", "--active", "--ended")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--active and --ended exclude each other" in done.stderr


def test_a_result_that_is_kept_is_shown_without_its_server(cli: Cli, asking_url: str) -> None:
    task_id = cli.start(asking_url, "look_around")
    assert cli("wait", task_id).stdout == "nothing to see\n"
    offline, again = cli.together(("show", task_id, "--offline"), ("wait", task_id, "-o", "json"))
    assert "nothing to see" in offline.stdout
    assert '"status": "completed"' in again.stdout


def test_a_task_is_shown_with_the_time_at_which_it_expires(cli: Cli, fixture_url: str) -> None:
    task_id = cli.start(fixture_url, "noop")
    assert cli("wait", task_id).returncode == 0
    text, shown = cli("show", task_id).stdout, cli.json("show", task_id)
    kept = datetime.fromisoformat(shown["expiresAt"]) - datetime.fromisoformat(shown["createdAt"])
    assert timedelta(0) < kept < timedelta(days=2)
    assert "ttlMs" not in shown
    local = datetime.fromisoformat(shown["expiresAt"]).astimezone()
    assert f"expires       {local:%Y-%m-%d %H:%M:%S}" in text


def test_why_a_task_cannot_be_watched_is_in_the_json(cli: Cli, fixture_url: str) -> None:
    with closing(Ledger(cli.ledger, keep_results=True)) as ledger:
        ledger.add("task_gone", server=fixture_url, tool="render")
    done = cli("watch", "task_gone", "--json")
    assert done.returncode == Exit.UNKNOWN_TASK
    [said] = [json.loads(line) for line in done.stdout.splitlines()]
    assert (said["taskId"], said["status"]) == ("task_gone", "unknown")
    assert said["problem"].startswith("the server does not know this task")


def test_a_task_that_the_ledger_does_not_have_began_when_its_server_says(cli: Cli, fixture_url: str) -> None:
    task_id = cli.start(fixture_url, "confirm_delete", "filename=x")
    cli("forget", task_id)
    shown = cli.json("show", task_id, "--server", fixture_url)
    assert shown["startedAt"] == shown["createdAt"].replace("Z", "+00:00")


def test_what_would_be_pruned_is_named(cli: Cli) -> None:
    with closing(Ledger(cli.ledger, keep_results=True)) as ledger:
        ledger.add("task_gone", server="http://127.0.0.1:9/mcp", tool="render")
        ledger.lost("task_gone", server="http://127.0.0.1:9/mcp")
    assert cli("prune", "--dry-run").stderr == "Would remove 1 task:\n  task_gone  render  unknown\n"
    assert cli("prune").stderr == "Removed 1 task.\n"
    assert cli("prune", "--dry-run").stderr == "Would remove 0 tasks.\n"


def test_how_to_come_back_is_said_where_a_server_is_gone(cli: Cli) -> None:
    with closing(Ledger(cli.ledger, keep_results=True)) as ledger:
        ledger.add("task_gone", server="http://127.0.0.1:9/mcp", tool="render")
    done = cli("wait", "task_gone")
    assert done.returncode == Exit.UNREACHABLE
    assert done.stderr.endswith("Come back with:\n  mcp-tasks wait task_gone\n")


def test_several_tasks_are_watched_without_a_terminal(cli: Cli, fixture_url: str) -> None:
    first = cli.start(fixture_url, "slow_compute", "seconds=0.5", "label=x")
    second = cli.start(fixture_url, "noop")
    lines, objects = cli.together(("watch", first, second), ("watch", first, "-o", "json"))
    assert lines.returncode == objects.returncode == 0
    assert f"{first[:13]}  completed" in lines.stderr
    assert f"{second[:13]}  completed" in lines.stderr
    assert '"status": "completed"' in objects.stdout.splitlines()[-1]
    assert "Nothing to watch" in cli("watch").stderr


def test_tools_are_listed_with_what_is_known(cli: Cli, fixture_url: str) -> None:
    modern, legacy, listed = cli.together(
        ("tools", fixture_url), ("tools", fixture_url, "--era", "legacy"), ("tools", fixture_url, "-o", "json")
    )
    assert "the server decides" in modern.stdout
    assert "seconds: number, required" in modern.stdout
    assert "2026-07-28 with tasks" in modern.stderr
    assert "2025-11-25" in legacy.stderr
    assert '"tasks": true' in listed.stdout
