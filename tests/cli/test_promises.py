"""What must hold whatever a server sends and wherever output goes: results are printed, terminals obey nobody else."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from harness.ports import closed_port, listening, mcp_url, port_of
from harness.processes import run
from tests.cli.running import Cli, serving
from tests.cli.terminal import on_terminal

NO_READER = "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); os.execv(sys.executable, sys.argv[1:])"
"""Runs a command with a pipe for its stdout that nobody reads."""


@pytest.fixture(scope="module")
def tricky_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with serving("tests.cli.tricky_server", tmp_path_factory.mktemp("tricky")) as url:
        yield url


def test_a_file_that_cannot_be_saved_keeps_nobody_from_the_rest_of_a_result(
    cli: Cli, tricky_url: str, tmp_path: Path
) -> None:
    done = cli("call", tricky_url, "files", "--save", str(tmp_path / "out"))
    assert done.returncode == 3
    assert "precious" in done.stdout
    assert "is not base64" in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["files-1.wav"]
    assert "not base64" in cli.json("call", tricky_url, "files", "--save", str(tmp_path / "out"), code=3)["problem"]


def test_a_folder_that_cannot_be_made_is_said_before_the_call(cli: Cli, tricky_url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = cli("call", tricky_url, "files", "--save", str(tmp_path / "file" / "out"))
    assert done.returncode == 2
    assert "is not a folder" in done.stderr
    assert cli.json("ls") == []


def test_a_form_obeys_nothing_that_is_in_its_schema(cli: Cli, tricky_url: str) -> None:
    with on_terminal(cli, "call", tricky_url, "tricky") as terminal:
        terminal.expect("optional")
        terminal.enter("")
        terminal.expect("optional")
        terminal.enter("")
        terminal.expect("Send it?")
        assert b"\x1b]0;" not in terminal.raw
        assert "\nerror: run" not in terminal.text
        terminal.enter("y")
        assert terminal.wait() == 0


def test_leaving_a_question_open_is_no_error(cli: Cli, tricky_url: str) -> None:
    task = cli.start(tricky_url, "tricky")
    with on_terminal(cli, "answer", task) as terminal:
        terminal.expect("optional")
        terminal.enter("/later")
        terminal.expect("The question is left open. Answer it with:")
        terminal.expect("mcp-tasks answer")
        assert terminal.wait() == 0
        assert "error: nothing" not in terminal.text


@pytest.mark.parametrize(("command", "words"), [("call", ["files"]), ("doctor", [])])
def test_the_password_of_a_url_is_in_no_log(cli: Cli, tricky_url: str, command: str, words: list[str]) -> None:
    done = cli(command, tricky_url.replace("//", "//ann:pa55word9@"), *words, "-vv")
    assert done.returncode == 0
    assert "pa55word9" not in done.stderr + done.stdout


@pytest.mark.parametrize("command", ["tools", "doctor"])
def test_the_password_of_a_url_is_in_no_error(cli: Cli, command: str) -> None:
    with closed_port() as closed:
        done = cli(command, mcp_url(closed).replace("//", "//ann:pa55word9@"))
    assert done.returncode == 6
    assert "http://127.0.0.1:" in done.stderr
    assert "pa55word9" not in done.stderr


def test_a_time_limit_holds_for_a_server_that_never_answers(cli: Cli) -> None:
    with listening() as silent:
        url = mcp_url(port_of(silent))
        done = cli("call", url, "anything", "--timeout", "0.5")
    assert done.returncode == 5
    assert f"{url} did not answer within 0.5 s" in done.stderr


def test_a_file_that_is_no_ledger_is_not_written_over(cli: Cli, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("milk")
    done = cli("ls", "--ledger", str(notes))
    assert done.returncode == 9
    assert "is not a SQLite database" in done.stderr
    assert notes.read_text() == "milk"


@pytest.mark.parametrize("content", [[7, {"type": "resource", "resource": 7}], 7, {"type": "text"}])
def test_a_result_of_any_shape_is_printed(cli: Cli, content: object, tmp_path: Path) -> None:
    cli("ls")
    with closing(sqlite3.connect(cli.ledger)) as db, db:
        db.execute(
            "INSERT INTO tasks VALUES ('http://127.0.0.1:9/mcp', '', 'task_odd', 1, 'odd', ?1, 'completed', NULL, ?2,"
            " NULL, ?1, NULL, NULL)",
            ("2026-01-01T00:00:00+00:00", json.dumps({"content": content})),
        )
    assert cli("wait", "task_odd", "--save", str(tmp_path / "out")).returncode == 0
    assert cli("show", "task_odd", "--offline").returncode == 0


def test_arguments_that_are_no_json_are_named_as_they_were_given(cli: Cli, tricky_url: str) -> None:
    assert "error: --args is not valid JSON" in cli("call", tricky_url, "files", "--args", "{").stderr
    assert "error: what stdin has is not valid JSON" in cli("call", tricky_url, "files", "-", stdin="{").stderr


def test_the_end_of_watching_is_said(cli: Cli, tricky_url: str) -> None:
    cli.start(tricky_url, "tricky")
    done = cli("watch", "--timeout", "0.3")
    assert done.returncode == 5
    assert "Not all had ended within 0.3 s." in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full is a device of Linux")
def test_a_log_that_has_no_room_keeps_nobody_from_the_result(cli: Cli, asking_url: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Path("/dev/full").open("wb") as full, out.open("wb") as result, Path(os.devnull).open("rb") as nothing:
        files = [nothing.fileno(), result.fileno(), full.fileno()]
        assert cli.begin(["call", asking_url, "slow", "seconds=0.3"], files, terminal=False).wait() == 0
    assert out.read_text() == "slow done\n"


@pytest.mark.parametrize("era", ["auto", "modern", "legacy"])
def test_a_server_that_is_not_there_is_said_not_to_be_in_any_era(cli: Cli, era: str) -> None:
    with closed_port() as port:
        done = cli("tools", mcp_url(port), "--era", era)
    assert done.returncode == 6
    assert "refuses the connection" in done.stderr


@pytest.mark.parametrize(("number", "words", "code"), [(1, ["ls", "--json"], 0), (0, ["wait", "task_nope"], 8)])
def test_a_closed_stream_is_no_bug(cli: Cli, number: int, words: list[str], code: int) -> None:
    command = [sys.executable, "-c", f"import os, sys; os.close({number}); os.execv(sys.executable, sys.argv[1:])"]
    done = run([*command, sys.executable, "-m", "mcp_tasks", *words, "--ledger", str(cli.ledger)])
    assert (done.returncode, done.stderr.partition(":")[0]) == (code, "error" if code else "")


def test_a_reader_of_changes_who_has_seen_enough_is_no_problem_of_a_task(cli: Cli, tricky_url: str) -> None:
    task_id = cli.start(tricky_url, "tricky")
    watch = [sys.executable, "-m", "mcp_tasks", "watch", task_id, "--json", "--ledger", str(cli.ledger)]
    done = run([sys.executable, "-c", NO_READER, *watch])
    assert (done.returncode, done.stderr) == (0, "")


def test_a_clock_at_the_beginning_of_the_calendar_is_shown(cli: Cli) -> None:
    cli("ls")
    with closing(sqlite3.connect(cli.ledger)) as db, db:
        db.execute(
            "INSERT INTO tasks VALUES ('http://127.0.0.1:9/mcp', '', 'task_old', 1, 'old', '0001-01-01T00:00:00+12:00',"
            " 'working', NULL, NULL, NULL, NULL, NULL, NULL)"
        )
    done = cli("show", "task_old", "--offline")
    assert (done.returncode, done.stderr) == (0, "")
    assert "0001-01-01" in done.stdout


def test_what_is_no_url_and_no_header_is_refused_in_words(cli: Cli, tricky_url: str) -> None:
    assert cli("tools", "http://[::1").returncode in (2, 6)
    done = cli("tools", tricky_url, "-H", "X-Name: \u00e9")
    assert done.returncode == 2
    assert "'X-Name' has characters that no header has" in done.stderr
