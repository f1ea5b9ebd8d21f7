"""Whose tasks they are, and what becomes of them when nobody waits any more."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from mcp_tasks.client import Ledger
from tests.cli.running import LIMIT, Cli
from tests.client.test_ledger_file import FIRST_FORMAT


def _status(cli: Cli, task_id: str, url: str, wanted: str) -> str:
    """The status of a task, as soon as it is the wanted one."""
    until = time.monotonic() + LIMIT
    while (status := cli.json("show", task_id, "--server", url)["status"]) != wanted and time.monotonic() < until:
        time.sleep(0.05)
    return status


# Giving up


def test_a_question_that_nobody_answers_cancels_the_task_if_that_is_the_rule(cli: Cli, fixture_url: str) -> None:
    left = cli.json("call", fixture_url, "confirm_delete", "filename=a", code=7)
    assert _status(cli, left["taskId"], fixture_url, "input_required") == "input_required"
    done = cli.json("call", "--on-abandon", "cancel", fixture_url, "confirm_delete", "filename=b", code=7)
    assert "it was cancelled" in done["problem"]
    assert _status(cli, done["taskId"], fixture_url, "cancelled") == "cancelled"
    waited = cli("wait", left["taskId"], "--on-abandon", "cancel")
    assert (waited.returncode, "it was cancelled" in waited.stderr) == (7, True)
    assert _status(cli, left["taskId"], fixture_url, "cancelled") == "cancelled"


def test_a_time_limit_cancels_the_task_if_that_is_the_rule(cli: Cli, fixture_url: str) -> None:
    # Long enough for a busy machine to have reached the server by then: until that it is the server that is late.
    done = cli("call", "--timeout", "3", "--on-abandon", "cancel", fixture_url, "park", "seconds=60")
    assert done.returncode == 5
    assert "did not end within 3 s; it was cancelled" in done.stderr
    assert "goes on" not in done.stderr
    task_id = cli.start(fixture_url, "park", "seconds=60")
    waited = cli.json("wait", task_id, "--timeout", "3", "--on-abandon", "cancel", code=5)
    assert "it was cancelled" in waited["problem"]
    assert _status(cli, task_id, fixture_url, "cancelled") == "cancelled"


def test_ctrl_c_without_a_terminal_cancels_the_task_if_that_is_the_rule(cli: Cli, fixture_url: str) -> None:
    reading, writing = os.pipe()
    with open(os.devnull, "r+b") as nothing, open(reading) as said:
        arguments = ["call", "--on-abandon", "cancel", fixture_url, "slow_compute", "seconds=60", "label=long"]
        started = cli.begin(arguments, [nothing.fileno(), nothing.fileno(), writing], terminal=False)
        os.close(writing)
        # The second line is the first word of the task, after that of the call.
        assert said.readline().startswith("working")
        assert said.readline().startswith("working")
        started.send(signal.SIGINT)
        assert "The task was cancelled." in said.read()
        assert started.wait() == 130
    [entry] = cli.json("ls")
    assert _status(cli, entry["taskId"], fixture_url, "cancelled") == "cancelled"


# Servers and users


def test_tasks_of_several_users_are_kept_apart(cli: Cli, fixture_url: str) -> None:
    for name in ("ann", "bob"):
        cli.start(fixture_url, "confirm_delete", f"filename={name}", "--identity", name)
    assert [entry["identity"] for entry in cli.json("ls")] == ["ann", "bob"]
    [anns] = cli.json("ls", "--identity", "ann")
    [bobs] = cli.json("ls", "--identity", "bob")
    assert cli("wait", anns["taskId"], "--identity", "bob").returncode == 8
    both = cli("wait", anns["taskId"], bobs["taskId"], "--token", "of-ann")
    assert (both.returncode, "identities" in both.stderr) == (2, True)
    answered = cli("answer", anns["taskId"], "confirm=yes", "--wait")
    assert (answered.returncode, answered.stdout) == (0, "deleted ann\n")


def test_a_url_with_credentials_is_kept_without_them(cli: Cli, fixture_url: str) -> None:
    task_id = cli.start(fixture_url.replace("http://", "http://me:secret@"), "noop")
    [entry] = cli.json("ls")
    assert entry["server"] == fixture_url
    assert cli("wait", task_id).returncode == 0


def test_a_task_that_its_server_does_not_know_stays_listed_until_it_is_pruned(cli: Cli, fixture_url: str) -> None:
    with closing(Ledger(cli.ledger)) as book:
        book.add("task_gone", server=fixture_url, tool="x")
    assert cli("wait", "task_gone").returncode == 8
    assert [entry["status"] for entry in cli.json("ls")] == ["unknown"]
    assert len(cli.json("ls", "--status", "unknown")) == 1
    assert "Nothing to watch" in cli("watch").stderr
    assert cli("cancel", "task_gone").returncode == 8
    assert cli("show", "task_gone").returncode == 0
    assert cli.json("prune") == ["task_gone"]
    assert cli.json("ls") == []


@pytest.mark.parametrize("command", ["wait", "answer", "cancel", "show"])
def test_what_a_server_called_itself_is_not_run_as_a_command(cli: Cli, tmp_path: Path, command: str) -> None:
    marker = tmp_path / "run"
    with closing(sqlite3.connect(cli.ledger)) as db:
        db.executescript(FIRST_FORMAT)
        db.execute("UPDATE tasks SET server = ?", (f"touch {marker}",))
        db.commit()
    done = cli(command, "t1")
    assert not marker.exists()
    assert "first release" in done.stderr
    assert done.returncode == (0 if command == "show" else 2)
    assert [entry["taskId"] for entry in cli.json("ls", "--refresh")] == ["t1"]


def test_a_name_that_a_program_gave_a_server_is_not_run_as_a_command(cli: Cli, tmp_path: Path) -> None:
    marker = tmp_path / "run"
    with closing(Ledger(cli.ledger)) as book:
        book.add("task_named", server=f"touch {marker}", tool="x")
        book.add("task_secret", server=f"with KEY#0123456789abcdef: cd {tmp_path} && touch {marker}", tool="x")
    for task_id, says in (("task_named", "--server"), ("task_secret", "environment variables")):
        done = cli("wait", task_id)
        assert (done.returncode, says in done.stderr) == (2, True)
    assert not marker.exists()


def test_a_task_store_is_not_taken_for_a_ledger(cli: Cli, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as db:
        db.executescript(f"PRAGMA application_id = {int.from_bytes(b'MCPT', 'big')}; CREATE TABLE tasks (id TEXT)")
    done = cli("ls", "--ledger", str(tmp_path / "tasks.db"))
    assert (done.returncode, "ledger.db" in done.stderr) == (9, True)
