"""Servers that mean no good, and output that goes anywhere: no terminal obeys, nothing leaks, results are printed."""

import json
import shlex
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from harness.ports import closed_port, listening, mcp_url, port_of
from harness.processes import run
from mcp_tasks.cli.prompt import how_to_answer
from mcp_tasks.cli.questions import Link, Question
from mcp_tasks.cli.terminal import command_line, one_line
from mcp_tasks.client import Ledger
from tests.cli import hostile_server
from tests.cli.hostile_server import EVIL
from tests.cli.running import Cli, Done
from tests.cli.terminal import on_terminal

OBEYED = frozenset("\x1b\x07\x9b\u202e\u2066")
SCRIPT = hostile_server.__file__


def hostile(*arguments: str) -> str:
    return shlex.join([sys.executable, "-I", "-S", SCRIPT, *arguments])


def said(done: Done) -> str:
    return done.stdout + done.stderr


# Servers


def test_schemas_neither_hang_the_command_nor_have_it_fetch_anything(
    cli: Cli, recorder: tuple[str, list[str | None]]
) -> None:
    url, asked = recorder
    words = [f"text={'a' * 40}", "deep=x", "wide=x", "self=x", "remote=x"]
    listed, called, misfit, broken = cli.together(
        ["tools", hostile(url)],
        ["call", hostile(url), "bomb", *words],
        ["call", hostile(url), "bomb", f"text={'a' * 40}!"],
        ["call", hostile(url), "broken", "x=1"],
    )
    assert (listed.returncode, called.returncode) == (0, 0), listed.stderr + called.stderr
    assert json.loads(called.stdout)["deep"] == "x"
    assert misfit.returncode == 2
    assert "does not match" in misfit.stderr
    assert broken.returncode == 3, broken.stderr
    assert asked == []


def test_nothing_that_a_server_says_is_obeyed_by_a_terminal(cli: Cli) -> None:
    tools, listing, failed, unknown, malformed = cli.together(
        ["tools", hostile()],
        ["tools", hostile(), "-o", "json"],
        ["call", hostile(), "fail"],
        ["call", hostile(), "no-such-tool"],
        ["tools", hostile("http://127.0.0.1:9", "malformed")],
    )
    for done in (tools, listing, failed, unknown, malformed):
        assert not OBEYED & set(said(done)), said(done)
    assert (failed.returncode, malformed.returncode) == (3, 3), malformed.stderr
    # On one line with what it is about: it cannot pass for a word of ours.
    [line] = [line for line in failed.stderr.splitlines() if "rm -rf" in line]
    assert line.startswith("The call failed:")
    assert any(tool["name"].endswith(EVIL) for tool in json.loads(listing.stdout)["tools"])


def test_the_token_is_not_handed_to_a_stdio_server(cli: Cli, tmp_path: Path) -> None:
    cli.environment |= {"MCP_TASKS_TOKEN": "geheim-1", "MCP_TASKS_TOKEN_FILE": str(tmp_path), "MCP_TASKS_OTHER": "y"}
    done = cli("call", hostile(), "environment")
    held = json.loads(done.stdout)
    assert held["MCP_TASKS_OTHER"] == "y"
    assert not any("TOKEN" in name for name in held)


def test_a_token_comes_from_a_file_a_line_of_stdin_or_the_command_line(
    cli: Cli, recorder: tuple[str, list[str | None]], tmp_path: Path
) -> None:
    url, asked = recorder
    file = tmp_path / "token"
    file.write_text("of-a-file\n")
    file.chmod(0o640)
    readable = cli("tools", url, "--token-file", str(file))
    file.chmod(0o600)
    kept = cli("tools", url, "--token-file", str(file))
    typed = cli("tools", url, "--token", "-", stdin="of-stdin\nrest")
    given = cli("tools", url, "--token", "of-the-line")
    assert set(asked) >= {"Bearer of-a-file", "Bearer of-stdin", "Bearer of-the-line"}
    assert "chmod 600" in readable.stderr
    assert "warning" not in kept.stderr + typed.stderr
    assert "everybody on this machine can read it" in given.stderr
    assert "of-the-line" not in said(given)


def test_a_token_over_plain_http_is_warned_of(cli: Cli) -> None:
    cli.environment["MCP_TASKS_TOKEN"] = "geheim-1"
    far, near, none = cli.together(
        ["tools", "http://far.invalid/mcp", "-vv"], ["tools", "http://127.0.0.1:9/mcp"], ["tools", "https://a.invalid/"]
    )
    assert "far.invalid over plain http" in far.stderr
    assert "plain http" not in near.stderr + none.stderr
    assert "geheim-1" not in said(far) + said(near) + said(none)


# Text


@pytest.mark.parametrize("name", ["$(reboot)", "`reboot`", "a;b", "a\nrm -rf ~", "-rf", "--server=x", "a'b", "a b"])
def test_a_command_that_is_copied_has_a_servers_words_as_words(name: str) -> None:
    words = shlex.split(command_line("wait", name, options=" --era legacy"))
    assert words[:2] == ["mcp-tasks", "wait"]
    assert one_line(name) in words
    assert words.index("--era") < (words.index("--") if name.startswith("-") else len(words))
    schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    params = {"message": "?", "requestedSchema": schema}
    question = Question(key=name, method="elicitation/create", params=params, tool="t")
    for line in how_to_answer(name, [question, replace(question, key="other")], " --era legacy"):
        assert shlex.split(line)[:2] == ["mcp-tasks", "answer"]
        assert "\n" not in line
    assert f"{one_line(name)}=..." in shlex.split(how_to_answer("task_x", [question], "")[0])


# Links


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "http://127.0.0.1.example.com/",
        "http://localhost.example.com/",
        "https://bank.example@evil.example/",
        "http://127.0.0.1:80@evil.example/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "vscode://x",
        "mailto:a@b.c",
        "https:///nohost",
        "https://[::1",
        "https://a:99999/",
        "https://\ud800/",
        "https://a.example/\u202e",
        "https://a.example/\x1b]0;x",
        "https://a.example\\@evil.example/",
        " https://a.example/",
        "-https://a.example/",
        "",
    ],
)
def test_a_page_that_may_not_be_opened_says_why(url: str) -> None:
    assert Link.to(url).refusal
    params = {"mode": "url", "url": url, "message": "?"}
    question = Question(key="q", method="elicitation/create", params=params, tool="t")
    assert any(line.strip().startswith("!") for line in question.describe())
    assert not any(OBEYED & set(line) for line in question.describe())


# Fields


def test_a_file_that_cannot_be_saved_keeps_nobody_from_the_rest_of_a_result(
    cli: Cli, asking_url: str, tmp_path: Path
) -> None:
    done = cli("call", asking_url, "files", "--save", str(tmp_path / "out"))
    assert done.returncode == 3
    assert "precious" in done.stdout
    assert "is not base64" in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["files-1.wav"]
    assert "not base64" in cli.json("call", asking_url, "files", "--save", str(tmp_path / "out"), code=3)["problem"]


def test_a_folder_that_cannot_be_made_is_said_before_the_call(cli: Cli, asking_url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = cli("call", asking_url, "files", "--save", str(tmp_path / "file" / "out"))
    assert done.returncode == 2
    assert "is not a folder" in done.stderr
    assert cli.json("ls") == []


def test_a_form_obeys_nothing_that_is_in_its_schema(cli: Cli, asking_url: str) -> None:
    with on_terminal(cli, "call", asking_url, "tricky") as terminal:
        terminal.expect("optional")
        terminal.enter("")
        terminal.expect("optional")
        terminal.enter("")
        terminal.expect("Send it?")
        assert b"\x1b]0;" not in terminal.raw
        assert "\nerror: run" not in terminal.text
        terminal.enter("y")
        assert terminal.wait() == 0


def test_the_password_of_a_url_is_in_no_log_and_no_error(cli: Cli, asking_url: str) -> None:
    with closed_port() as closed:
        there, away = (url.replace("//", "//ann:pa55word9@") for url in (asking_url, mcp_url(closed)))
        commands = [["call", there, "files", "-vv"], ["doctor", there, "-vv"], ["tools", away], ["doctor", away]]
        seen = cli.together(*commands)
    assert [done.returncode for done in seen] == [0, 0, 6, 6]
    assert not [done for done in seen if "pa55word9" in said(done)]
    assert all("http://127.0.0.1:" in done.stderr for done in seen[2:])


def test_a_time_limit_holds_for_a_server_that_never_answers(cli: Cli) -> None:
    with listening() as silent:
        url = mcp_url(port_of(silent))
        done = cli("call", url, "anything", "--timeout", "0.5")
    assert done.returncode == 5
    assert f"{url} did not answer within 0.5 s" in done.stderr


@pytest.mark.parametrize("content", [[7, {"type": "resource", "resource": 7}], 7, {"type": "text"}])
def test_a_result_of_any_shape_is_printed(cli: Cli, content: object, tmp_path: Path) -> None:
    with closing(Ledger(cli.ledger, keep_results=True)) as ledger:
        ledger.add("task_odd", server="http://127.0.0.1:9/mcp", tool="odd")
    with closing(sqlite3.connect(cli.ledger)) as db, db:
        db.execute("UPDATE tasks SET status = 'completed', result = ?", (json.dumps({"content": content}),))
    assert cli("wait", "task_odd", "--save", str(tmp_path / "out")).returncode == 0
    assert cli("show", "task_odd", "--offline").returncode == 0


@pytest.mark.parametrize(("number", "words", "code"), [(1, ["ls", "--json"], 0), (0, ["wait", "task_nope"], 8)])
def test_a_closed_stream_is_no_bug(cli: Cli, number: int, words: list[str], code: int) -> None:
    command = [sys.executable, "-c", f"import os, sys; os.close({number}); os.execv(sys.executable, sys.argv[1:])"]
    done = run([*command, sys.executable, "-m", "mcp_tasks", *words, "--ledger", str(cli.ledger)])
    assert (done.returncode, done.stderr.partition(":")[0]) == (code, "error" if code else "")


def test_the_end_of_watching_is_said(cli: Cli, asking_url: str) -> None:
    cli.start(asking_url, "tricky")
    done = cli("watch", "--timeout", "0.3")
    assert done.returncode == 5
    assert "Not all had ended within 0.3 s." in done.stderr


def test_a_clock_at_the_beginning_of_the_calendar_is_shown(cli: Cli) -> None:
    with closing(Ledger(cli.ledger)) as ledger:
        ledger.add("task_old", server="http://127.0.0.1:9/mcp", tool="old")
    with closing(sqlite3.connect(cli.ledger)) as db, db:
        db.execute("UPDATE tasks SET started = '0001-01-01T00:00:00+12:00'")
    done = cli("show", "task_old", "--offline")
    assert (done.returncode, done.stderr) == (0, "")
    assert "0001-01-01" in done.stdout
