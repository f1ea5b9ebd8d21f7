"""Servers that mean no good, and output that goes anywhere: no terminal obeys, nothing leaks, results are printed."""

from __future__ import annotations

import json
import logging
import shlex
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console
from rich.text import Text

from harness.ports import closed_port, listening, mcp_url, port_of
from harness.processes import run
from mcp_tasks.cli import options as credentials
from mcp_tasks.cli.forms import ask, how_to_answer
from mcp_tasks.cli.terminal import Keyboard, Log, clean, command_line, json_text, one_line
from mcp_tasks.client.questions import Question, link_to
from tests.cli import hostile_server
from tests.cli.hostile_server import EVIL
from tests.cli.running import Cli, Done
from tests.cli.terminal import on_terminal

OBEYED = frozenset("\x1b\x07\x9b\u202e\u2066")
SCRIPT = hostile_server.__file__


def hostile(*arguments: str) -> str:
    """The command of the server."""
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


@pytest.mark.parametrize(
    "words", [("--token", "a", "--token-file", "b"), ("--token-file", "nowhere"), ("--token", " "), ("--token", "a\nb")]
)
def test_a_token_that_cannot_be_one_is_refused_without_being_shown(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli("tools", "http://127.0.0.1:9", *words)
    assert done.returncode == 2, done.stderr
    assert "a\nb" not in done.stderr


def test_a_token_over_plain_http_is_warned_of(cli: Cli) -> None:
    cli.environment["MCP_TASKS_TOKEN"] = "geheim-1"
    far, near, none = cli.together(
        ["tools", "http://far.invalid/mcp", "-vv"], ["tools", "http://127.0.0.1:9/mcp"], ["tools", "https://a.invalid/"]
    )
    assert "far.invalid over plain http" in far.stderr
    assert "plain http" not in near.stderr + none.stderr
    assert "geheim-1" not in said(far) + said(near) + said(none)


# Text


def test_text_of_a_server_has_nothing_that_a_terminal_obeys() -> None:
    assert clean("a\x1b[31mb\x07\x9bc\x7f\u202ed\u2066\ufeff\u2028e\ud800\U000e0041") == "a[31mbcde"
    assert clean("two\nlines\tand more") == "two\nlines\tand more"
    assert clean("naïve 日本 👩\u200d💻") == "naïve 日本 👩\u200d💻"
    assert one_line(" a\n\r b\x85c\x1b ") == "a bc"


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


def test_json_is_the_same_value_and_has_nothing_that_a_terminal_obeys() -> None:
    value = {"a": f"é日本👩\u200d💻{EVIL}\x7f\ud800"}
    shown = json_text(value)
    assert json.loads(shown) == value
    assert not OBEYED & set(shown)
    assert "é日本👩\u200d💻" in shown


def test_what_is_hidden_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(credentials.SECRETS, "_texts", set[str]())
    credentials.SECRETS.hide("geheim-1")
    credentials.SECRETS.hide("")
    record = logging.LogRecord("x", logging.INFO, "", 0, "sent %s\x1b", ("geheim-1",), None)
    Log().handle(record)
    assert capsys.readouterr().err == "sent ***\n"
    assert one_line("Bearer geheim-1") == "Bearer ***"
    assert json.loads(json_text({"a": ["geheim-1", 1], "geheim-1": True})) == {"a": ["***", 1], "***": True}


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
    assert link_to(url).refusal
    params = {"mode": "url", "url": url, "message": "?"}
    question = Question(key="q", method="elicitation/create", params=params, tool="t")
    assert any(line.strip().startswith("!") for line in question.describe())
    assert not any(OBEYED & set(line) for line in question.describe())


class Typed:
    """A keyboard at which these lines are typed."""

    def __init__(self, *lines: str) -> None:
        self._lines = list(lines)

    def forget_typed(self) -> None:
        """Nothing was typed before."""

    async def line(self, prompt: Text, console: Console) -> str:
        console.print(prompt)
        return self._lines.pop(0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("url", "lines", "opened"),
    [
        ("https://a.example/", ["o"], ["https://a.example/"]),
        ("https://a.example/", ["v"], []),
        ("http://a.example/", ["o", "d"], []),
        ("file:///etc/passwd", ["open", "d"], []),
    ],
)
async def test_a_page_is_opened_only_when_told_to_and_if_it_may_be(
    url: str, lines: list[str], opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def browse(address: str) -> bool:
        asked.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    params = {"mode": "url", "url": url, "message": "Sign in"}
    question = Question(key="q", method="elicitation/create", params=params, tool="t")
    screen = StringIO()
    typed = cast("Keyboard", Typed(*lines))
    answer = await ask(question, typed, Console(file=screen, width=100))
    assert asked == opened
    assert answer == {"action": "accept" if len(lines) == 1 else "decline"}
    assert "Host:" in screen.getvalue()
    assert ("[o]pen" in screen.getvalue()) == (len(lines) == 1)


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


@pytest.mark.parametrize(("command", "words"), [("call", ["files"]), ("doctor", [])])
def test_the_password_of_a_url_is_in_no_log(cli: Cli, asking_url: str, command: str, words: list[str]) -> None:
    done = cli(command, asking_url.replace("//", "//ann:pa55word9@"), *words, "-vv")
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


@pytest.mark.parametrize(("number", "words", "code"), [(1, ["ls", "--json"], 0), (0, ["wait", "task_nope"], 8)])
def test_a_closed_stream_is_no_bug(cli: Cli, number: int, words: list[str], code: int) -> None:
    command = [sys.executable, "-c", f"import os, sys; os.close({number}); os.execv(sys.executable, sys.argv[1:])"]
    done = run([*command, sys.executable, "-m", "mcp_tasks", *words, "--ledger", str(cli.ledger)])
    assert (done.returncode, done.stderr.partition(":")[0]) == (code, "error" if code else "")


def test_what_is_no_url_and_no_header_is_refused_in_words(cli: Cli, asking_url: str) -> None:
    assert cli("tools", "http://[::1").returncode in (2, 6)
    done = cli("tools", asking_url, "-H", "X-Name: \u00e9")
    assert done.returncode == 2
    assert "'X-Name' has characters that no header has" in done.stderr


def test_the_end_of_watching_is_said(cli: Cli, asking_url: str) -> None:
    cli.start(asking_url, "tricky")
    done = cli("watch", "--timeout", "0.3")
    assert done.returncode == 5
    assert "Not all had ended within 0.3 s." in done.stderr


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
