"""`call` and `wait` without a terminal: results, arguments, exit codes, detaching; in both versions."""

import json
import os
import re
import signal
from contextlib import closing
from pathlib import Path

import pytest

from mcp_tasks.client import Ledger
from mcp_tasks.client.ledger import short_id
from tests.cli.running import LIMIT, Cli, stdio_command, until


def test_the_result_is_on_stdout_and_the_progress_on_stderr(cli: Cli, fixture_url: str) -> None:
    done = cli("call", fixture_url, "slow_compute", "seconds=2", "label=sums")
    assert (done.returncode, done.stdout) == (0, "sums: done after 2 s\n")
    assert re.search(r"working  sums: \d s of 2 s \(\d+%\)", done.stderr)
    assert "completed" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    [entry] = cli.json("ls")
    assert (entry["tool"], entry["status"], entry["server"]) == ("slow_compute", "completed", fixture_url)
    assert entry["result"]["content"][0]["text"] == "sums: done after 2 s"


def test_values_are_typed_by_the_schema(cli: Cli, asking_url: str) -> None:
    words = ("text=7", "times=3", "loud=yes", "tags=a", "tags=b", 'options={"x": 1}')
    piped = cli("call", asking_url, "echo", "-", stdin='{"text": "piped"}')
    assert json.loads(piped.stdout)["text"] == "piped"
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
    for done, code, says in (
        (tool_error, 1, "the job failed, as it always does"),
        (unknown_tool, 2, "Did you mean slow_compute"),
        (missing, 2, "missing: name"),
        (unknown, 2, "unknown: nmae; did you mean name?"),
        (wrong, 2, "seconds: expected number, got 'soon'"),
        (asked_first, 7, "What is your name?"),
    ):
        assert (done.returncode, says in done.stderr) == (code, True), done.stderr
    assert tool_error.stdout == ""
    assert (rpc_error.returncode, json.loads(rpc_error.stdout)["error"]["code"]) == (3, -32603)


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


def test_a_stdio_task_goes_on_when_somebody_comes_back_from_another_folder(cli: Cli, tmp_path: Path) -> None:
    server = stdio_command(tmp_path)
    started = cli("call", "--detach", server, "slow", "seconds=1")
    assert started.returncode == 0, started.stderr
    assert "Its stdio server ends with this command" in started.stderr
    done = cli("wait", started.stdout.strip(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "slow done\n"), done.stderr


def test_a_server_that_cannot_be_used_says_why(
    cli: Cli, fixture_url: str, recorder: tuple[str, list[str | None]]
) -> None:
    url, _ = recorder
    cases = {
        ("call", "http://127.0.0.1:9/mcp", "x"): "refuses the connection",
        ("call", fixture_url.removesuffix("mcp") + "nothing", "x"): "HTTP 404",
        ("call", url.replace("/mcp", "/page"), "x"): "is not an MCP server: it answers HTTP 200 with text/html",
        ("tools", "no-such-command --flag"): "command not found: no-such-command",
        ("tools", "localhost:8000/mcp"): "write http://localhost:8000/mcp",
        ("tools", "sh -c 'echo broken >&2; exit 3'"): "broken",
        ("tools", url): "requires credentials: HTTP 401",
    }
    seen = cli.together(*cases)
    for done, says in zip(seen, cases.values(), strict=True):
        assert done.returncode == 6, done.stderr
        assert says in done.stderr
    assert "--token" in seen[-1].stderr


def test_a_server_that_refuses_the_arguments_is_answered_with_what_the_tool_takes(cli: Cli, asking_url: str) -> None:
    # What comes with --args is not looked at here.
    refused = cli("call", asking_url, "slow", "--args", '{"seconds": "abc"}')
    assert refused.returncode == 1
    before, _, after = refused.stderr.partition("It takes:")
    assert "validation error" in before
    assert after.splitlines() == ["", "  seconds  number, required", "Write it like this: seconds=1.5"]


def becomes(cli: Cli, task_id: str, url: str, status: str) -> None:
    until(lambda: cli.json("show", task_id, "--server", url)["status"], lambda found: found == status)


@pytest.mark.parametrize(("rule", "says"), [("leave", "mcp-tasks wait task_"), ("cancel", "The task was cancelled.")])
def test_ctrl_c_without_a_terminal_detaches_at_once_or_cancels_if_that_is_the_rule(
    cli: Cli, fixture_url: str, rule: str, says: str
) -> None:
    reading, writing = os.pipe()
    with open(os.devnull, "r+b") as nothing, open(reading) as said:
        arguments = ["call", "--on-abandon", rule, fixture_url, "slow_compute", "seconds=60", "label=long"]
        started = cli.begin(arguments, [nothing.fileno(), nothing.fileno(), writing])
        os.close(writing)
        # The second line is the first word of the task, after that of the call.
        assert said.readline().startswith("working")
        assert said.readline().startswith("working")
        started.send_signal(signal.SIGINT)
        assert says in said.read()
        assert started.wait(LIMIT) == 130
    [entry] = cli.json("ls")
    ended = "working" if rule == "leave" else "cancelled"
    becomes(cli, entry["taskId"], fixture_url, ended)
    cli("cancel", entry["taskId"])


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


def test_a_task_that_its_server_does_not_know_stays_listed_until_it_is_pruned(cli: Cli, fixture_url: str) -> None:
    with closing(Ledger(cli.ledger)) as book:
        book.add("task_gone", server=fixture_url, tool="x")
    assert cli("wait", "task_gone").returncode == 8
    assert [entry["status"] for entry in cli.json("ls")] == ["unknown"]
    assert len(cli.json("ls", "--status", "unknown")) == 1
    assert "Nothing to watch" in cli("watch").stderr
    watched = cli("watch", "task_gone", "--json")
    said = json.loads(watched.stdout)
    assert (watched.returncode, said["taskId"], said["status"]) == (8, "task_gone", "unknown")
    assert said["problem"].startswith("the server does not know this task")
    assert cli("cancel", "task_gone").returncode == 8
    assert cli("show", "task_gone").returncode == 0
    assert cli.json("prune") == ["task_gone"]
    assert cli.json("ls") == []


def test_the_server_of_a_task_in_the_ledger_is_not_run_as_a_command(cli: Cli, tmp_path: Path) -> None:
    marker = tmp_path / "run"
    with closing(Ledger(cli.ledger)) as book:
        book.add("task_named", server=f"touch {marker}", tool="x")
        book.add("task_secret", server=f"with KEY#0123456789abcdef: cd {tmp_path} && touch {marker}", tool="x")
    for task_id, says in (("task_named", "--server"), ("task_secret", "environment variables")):
        done = cli("wait", task_id)
        assert (done.returncode, says in done.stderr) == (2, True)
    assert not marker.exists()


OLD = ("--era", "legacy")


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


def start(cli: Cli, url: str, *call: str) -> str:
    done = cli("call", *OLD, "--detach", url, *call)
    assert done.returncode == 0, done.stderr
    assert f"mcp-tasks wait {short_id(done.stdout.strip())} --era legacy" in done.stderr
    return done.stdout.strip()


def test_calls_are_made_followed_cancelled_and_told_apart(cli: Cli, fixture_url: str, tmp_path: Path) -> None:
    tool, call, plain, followed, piped = cli.together(
        ("call", *OLD, fixture_url, "failing_job"),
        ("call", *OLD, fixture_url, "protocol_error_job"),
        ("call", *OLD, fixture_url, "greet", "name=Ada"),
        ("call", *OLD, fixture_url, "slow_compute", "seconds=1", "label=old"),
        ("call", *OLD, stdio_command(tmp_path), "slow", "seconds=0.2"),
    )
    assert [done.returncode for done in (tool, call, plain, followed, piped)] == [1, 3, 0, 0, 0], piped.stderr
    assert "the job failed, as it always does" in tool.stderr
    assert "The call failed:" in call.stderr
    assert (plain.stdout, followed.stdout, piped.stdout) == ("Hello, Ada!\n", "old: done after 1 s\n", "slow done\n")
    # Which of them is seen depends on when the client looks.
    assert re.search(r"^working  old: [01] s of 1 s \(\d+%\)$", followed.stderr, re.MULTILINE), followed.stderr
    task_id = start(cli, fixture_url, "slow_compute", "seconds=60", "label=x")
    assert {entry["taskId"]: entry["status"] for entry in cli.json("ls", *OLD)}[task_id] == "working"
    assert cli("cancel", task_id, *OLD).returncode == 0
    assert cli("wait", task_id, *OLD, "--server", fixture_url).returncode == 4
