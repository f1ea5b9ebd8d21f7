"""`call` without a terminal: results, arguments, exit codes, detaching."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.cli.running import Cli, stdio_command


def test_the_result_is_on_stdout_and_the_progress_on_stderr(cli: Cli, fixture_url: str) -> None:
    done = cli("call", fixture_url, "slow_compute", "seconds=4", "label=sums")
    assert (done.returncode, done.stdout) == (0, "sums: done after 4 s\n")
    # Long enough for a command that waits for a core to look in between.
    assert re.search(r"working  sums: \d s of 4 s \(\d+%\)", done.stderr)
    assert "completed" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    [entry] = cli.json("ls")
    assert (entry["tool"], entry["status"], entry["server"]) == ("slow_compute", "completed", fixture_url)
    assert entry["result"]["content"][0]["text"] == "sums: done after 4 s"


def test_values_are_typed_by_the_schema(cli: Cli, asking_url: str) -> None:
    words = ("text=7", "times=3", "loud=yes", "tags=a", "tags=b", 'options={"x": 1}')
    typed, given, raw = cli.together(
        ("call", asking_url, "echo", *words),
        ("call", asking_url, "echo", "--args", '{"text": "t", "times": 2}', "times=5", "-o", "json"),
        ("call", asking_url, "echo", "text=t", 'tags:=["x"]'),
    )
    expected = {"text": "7", "times": 3, "loud": True, "tags": ["a", "b"], "options": {"x": 1}}
    assert json.loads(typed.stdout) == expected
    outcome = json.loads(given.stdout)
    assert (outcome["status"], "taskId" in outcome) == ("completed", False)
    assert json.loads(outcome["result"]["content"][0]["text"])["times"] == 5
    assert json.loads(raw.stdout)["tags"] == ["x"]


def test_arguments_come_from_stdin(cli: Cli, asking_url: str) -> None:
    done = cli("call", asking_url, "echo", "-", stdin='{"text": "piped"}')
    assert json.loads(done.stdout)["text"] == "piped"


def test_exit_codes_tell_how_a_call_ended(cli: Cli, fixture_url: str) -> None:
    tool_error, rpc_error, unknown_tool, missing, unknown, wrong, asked_first = cli.together(
        ("call", fixture_url, "failing_job"),
        ("call", fixture_url, "protocol_error_job", "-o", "json"),
        ("call", fixture_url, "slow_compte"),
        ("call", fixture_url, "greet"),
        ("call", fixture_url, "greet", "nmae=Ann"),
        ("call", fixture_url, "slow_compute", "seconds=soon", "label=x"),
        ("call", fixture_url, "test_tool_with_task"),
    )
    assert tool_error.returncode == 1
    assert "the job failed, as it always does" in tool_error.stderr
    assert tool_error.stdout == ""
    assert rpc_error.returncode == 3
    assert json.loads(rpc_error.stdout)["error"]["code"] == -32603
    assert unknown_tool.returncode == 2
    assert "Did you mean slow_compute" in unknown_tool.stderr
    assert missing.returncode == 2
    assert "missing: name" in missing.stderr
    assert unknown.returncode == 2
    assert "unknown: nmae; did you mean name?" in unknown.stderr
    assert wrong.returncode == 2
    assert "seconds: expected number, got 'soon'" in wrong.stderr
    assert asked_first.returncode == 7
    assert "What is your name?" in asked_first.stderr


def test_a_call_that_takes_too_long_goes_on_and_can_be_cancelled(cli: Cli, fixture_url: str) -> None:
    # Long enough for a busy machine to have seen the task by then.
    done = cli("call", "--timeout", "3", "-o", "json", fixture_url, "park", "seconds=60")
    assert done.returncode == 5, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["status"] == "working"
    assert cli.json("cancel", outcome["taskId"]) == [{"taskId": outcome["taskId"], "status": "cancelled"}]
    assert cli("wait", outcome["taskId"]).returncode == 4


def test_a_detached_task_is_waited_for_by_the_start_of_its_id(cli: Cli, fixture_url: str, tmp_path: Path) -> None:
    first = cli.start(fixture_url, "slow_compute", "seconds=1", "label=a")
    second = cli.start(fixture_url, "protocol_error_job")
    # Options end at "--": what comes after "task_" may begin with a dash.
    done = cli("wait", "-o", "json", "--", first[:12], second[5:14], cwd=tmp_path)
    outcomes = json.loads(done.stdout)
    assert [outcome["status"] for outcome in outcomes] == ["completed", "failed"]
    assert done.returncode == 3


def test_what_is_not_saved_and_not_waited_for_is_wrong_usage(cli: Cli, fixture_url: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "out")
    detached, answered, limited = cli.together(
        ("call", "--detach", "--save", folder, fixture_url, "slow_compute", "seconds=1", "label=a"),
        ("answer", "task_x", "--save", folder),
        ("answer", "task_x", "--timeout", "3"),
    )
    assert {done.returncode for done in (detached, answered, limited)} == {2}
    assert "give --save to `wait`" in detached.stderr
    assert "give --wait as well" in answered.stderr
    assert "give --wait as well" in limited.stderr
    assert cli.json("ls") == []


def test_a_wait_for_what_was_answered_ends_in_time(cli: Cli, fixture_url: str) -> None:
    task_id = cli.start(fixture_url, "multi_input")
    assert cli("wait", task_id).returncode == 7
    done = cli("answer", task_id, "name=Ann", "--wait", "--timeout", "20")
    # It asks something else, which nobody is there for.
    assert done.returncode == 7, done.stderr
    assert "Are you sure?" in done.stderr


def test_a_server_that_nobody_knows_is_said_to_have_no_name(cli: Cli) -> None:
    done = cli("call", "nope-server", "tool")
    assert done.returncode == 2
    assert "no server and no command is called 'nope-server'" in done.stderr
    for way in ("`mcp-tasks servers` lists", "`mcp-tasks servers add NAME SERVER`", "--config FILE"):
        assert way in done.stderr


def test_a_question_without_a_terminal_ends_with_how_to_answer_it(cli: Cli, fixture_url: str) -> None:
    asked = cli("call", fixture_url, "confirm_delete", "filename=notes.txt")
    assert asked.returncode == 7
    [entry] = cli.json("ls", "--status", "input_required")
    short = entry["taskId"][:13]
    assert "Delete notes.txt?" in asked.stderr
    assert f"mcp-tasks answer {short} confirm=..." in asked.stderr
    assert f"mcp-tasks wait {short}" in asked.stderr
    shown, wrong, unknown = cli.together(
        ("show", short), ("answer", short, "confirm=perhaps"), ("answer", short, "confrim=yes")
    )
    assert f"mcp-tasks answer {short} confirm=..." in shown.stdout
    assert (wrong.returncode, "confirm: expected yes or no, got 'perhaps'" in wrong.stderr) == (2, True)
    assert (unknown.returncode, "did you mean confirm?" in unknown.stderr) == (2, True)
    answered = cli("answer", short, "confirm=yes", "--wait")
    assert (answered.returncode, answered.stdout) == (0, "deleted notes.txt\n")


def test_one_of_several_questions_is_answered_by_its_field_or_its_key(cli: Cli, fixture_url: str) -> None:
    task_id = cli.start(fixture_url, "multi_input")
    assert cli("wait", task_id).returncode == 7
    keys = {request["params"]["message"]: key for key, request in cli.json("show", task_id)["inputRequests"].items()}
    unclear, wrong = cli.together(
        ("answer", task_id, "--args", '{"name": "Ann"}'), ("answer", task_id, "--question", "other", "name=Ann")
    )
    assert (unclear.returncode, "choose one with --question" in unclear.stderr) == (2, True)
    assert (wrong.returncode, "no open question 'other'" in wrong.stderr) == (2, True)
    # Only one of them has a field of that name.
    assert cli.json("answer", task_id, "name=Ann")["answered"] == [keys["What is your name?"]]
    done = cli("answer", task_id, "--question", keys["Are you sure?"], "--decline", "--wait")
    assert done.stdout == "name: accept, confirmation: decline\n"


def test_ctrl_c_without_a_terminal_detaches_at_once(cli: Cli, fixture_url: str) -> None:
    reading, writing = os.pipe()
    with open(os.devnull, "r+b") as nothing, open(reading) as said:
        arguments = ["call", fixture_url, "slow_compute", "seconds=60", "label=long"]
        started = cli.begin(arguments, [nothing.fileno(), nothing.fileno(), writing], terminal=False)
        os.close(writing)
        assert said.readline().startswith("working")
        started.send(signal.SIGINT)
        assert "mcp-tasks wait task_" in said.read()
        assert started.wait() == 130
    [entry] = cli.json("ls", "--refresh")
    assert entry["status"] == "working"
    assert cli("cancel", entry["taskId"]).returncode == 0


def test_a_stdio_task_goes_on_when_somebody_comes_back_from_another_folder(cli: Cli, tmp_path: Path) -> None:
    server = stdio_command(tmp_path)
    started = cli("call", "--detach", server, "slow", "seconds=1")
    assert started.returncode == 0, started.stderr
    assert "Its stdio server ends with this command" in started.stderr
    done = cli("wait", started.stdout.strip(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "slow done\n"), done.stderr


def test_a_server_that_cannot_be_used_says_why(cli: Cli, fixture_url: str) -> None:
    with _refusing(401) as closed, _refusing(200) as page:
        refused, nowhere, not_mcp, no_command, address, quitter, token = cli.together(
            ("call", "http://127.0.0.1:9/mcp", "x"),
            ("call", fixture_url.removesuffix("mcp") + "nothing", "x"),
            ("call", page, "x"),
            ("tools", "no-such-command --flag"),
            ("tools", "localhost:8000/mcp"),
            ("tools", "sh -c 'echo broken >&2; exit 3'"),
            ("tools", closed),
        )
    assert {done.returncode for done in (refused, nowhere, not_mcp, no_command, address, quitter, token)} == {6}
    assert "refuses the connection" in refused.stderr
    assert "HTTP 404" in nowhere.stderr
    assert "is not an MCP server: it answers HTTP 200 with text/html" in not_mcp.stderr
    assert "command not found: no-such-command" in no_command.stderr
    assert "write http://localhost:8000/mcp" in address.stderr
    assert "broken" in quitter.stderr
    assert "requires credentials: HTTP 401" in token.stderr
    assert "--token" in token.stderr


def test_headers_and_the_token_are_sent_and_not_kept(cli: Cli) -> None:
    with _refusing(401) as url:
        cli.environment["MCP_TASKS_TOKEN"] = "secret-1"
        cli("tools", url, "--header", "X-Tenant: blue")
        assert ("Bearer secret-1", "blue") in _Refuser.seen
    assert not cli.ledger.exists() or b"secret-1" not in cli.ledger.read_bytes()


class _Refuser(BaseHTTPRequestHandler):
    seen: list[tuple[str | None, str | None]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        _Refuser.seen.append((self.headers.get("authorization"), self.headers.get("x-tenant")))
        self.rfile.read(int(self.headers.get("content-length") or 0))
        status: int = self.server.status  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        self.send_response(status)  # pyright: ignore[reportUnknownArgumentType]
        self.send_header("content-type", "text/html")
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"no")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Quietly."""


@contextmanager
def _refusing(status: int) -> Generator[str]:
    with HTTPServer(("127.0.0.1", 0), _Refuser) as server:
        server.status = status  # pyright: ignore[reportAttributeAccessIssue]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp"
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_refuses_the_arguments_is_answered_with_what_the_tool_takes(
    cli: Cli, asking_url: str, fixture_url: str
) -> None:
    # What comes with --args is not looked at here.
    wrong = ("call", asking_url, "slow", "--args", '{"seconds": "abc"}')
    refused, failed = cli.together(wrong, ("call", fixture_url, "failing_job"))
    assert (refused.returncode, failed.returncode) == (1, 1)
    before, _, after = refused.stderr.partition("It takes:")
    assert "validation error" in before
    assert after.splitlines() == ["", "  seconds  number, required", "Write it like this: seconds=1.5"]
    assert "It takes" not in failed.stderr
