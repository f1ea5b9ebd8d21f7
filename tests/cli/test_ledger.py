"""The ledger's commands, tasks by the beginning of their ids, and what becomes of results."""

import base64
import json
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

from mcp_tasks.cli.terminal import Exit
from mcp_tasks.client import Ledger
from tests.cli.asking_server import PIXEL
from tests.cli.running import Cli
from tests.cli.terminal import on_terminal

A, B = "http://a/mcp", "http://b/mcp"


def test_a_task_is_found_by_a_start_that_only_it_has_and_any_other_is_refused(cli: Cli) -> None:
    with closing(Ledger(cli.ledger, keep_results=True)) as ledger:
        for task_id, server in (("task_abcdefghij", A), ("task_abXYZ", A), ("task_zzz", B), ("786512e2-9e0d", B)):
            ledger.add(task_id, server=server, tool="render")
        ledger.add("task_zzz", server=A, tool="paint")
        for start, server, found in (
            ("task_abc", None, "task_abcdefghij"),
            ("abc", None, "task_abcdefghij"),
            ("786", None, "786512e2-9e0d"),
            ("task_zzz", A, "task_zzz"),
            ("task_abXYZ", None, "task_abXYZ"),
        ):
            assert [entry.task_id for entry in ledger.find_all([start], server=server)] == [found]
    refused = cli.together(*(["show", start, "--offline"] for start in ("task_ab", "task_zzz", "nope", "")))
    assert [done.returncode for done in refused] == [Exit.USAGE, Exit.USAGE, Exit.UNKNOWN_TASK, Exit.UNKNOWN_TASK]
    # As much of each id as tells it from the others.
    assert {"786512e2", "task_abXYZ", "task_abcdefgh"} <= set(cli("ls").stdout.split())


def test_a_list_that_could_not_be_refreshed_is_printed_and_ends_with_why(cli: Cli, fixture_url: str) -> None:
    with closing(Ledger(cli.ledger, keep_results=True)) as ledger:
        ledger.add("task_gone", server=fixture_url, tool="render")
        assert (cli("ls", "--refresh").returncode, "task_gone" in cli("ls").stdout) == (0, True)
        ledger.add("task_away", server="http://127.0.0.1:9/mcp", tool="render")
    waited = cli("wait", "task_away")
    assert waited.returncode == Exit.UNREACHABLE
    assert waited.stderr.endswith("Come back with:\n  mcp-tasks wait task_away\n")
    done = cli("ls", "--refresh", "--json")
    assert done.returncode == Exit.UNREACHABLE
    assert "1 task could not be refreshed: http://127.0.0.1:9/mcp refuses the connection" in done.stderr
    assert {entry["taskId"] for entry in json.loads(done.stdout)} == {"task_gone", "task_away"}
    # A token is not shown to two servers.
    refused = cli("ls", "--refresh", "--token", "x")
    assert refused.returncode == Exit.USAGE
    assert all(url in refused.stderr for url in ("of several servers", "http://127.0.0.1:9/mcp", fixture_url))


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
    exclusive = cli("ls", "--active", "--ended")
    assert (exclusive.returncode, "exclude each other" in exclusive.stderr) == (2, True)
    began = cli.json("show", waiting, "--server", fixture_url)
    assert began["startedAt"] == began["createdAt"].replace("Z", "+00:00"), "as its server says"
    stranger = cli("show", waiting, "--server", fixture_url)
    assert (stranger.returncode, "input required" in stranger.stdout) == (0, True)
    assert cli("cancel", waiting, "--server", fixture_url).returncode == 0
    assert cli("show", "task_nothing", "--server", fixture_url).returncode == 8


def test_a_task_is_shown_with_the_time_at_which_it_expires(cli: Cli, fixture_url: str) -> None:
    task_id = cli.start(fixture_url, "noop")
    assert cli("wait", task_id).returncode == 0
    text, shown = cli("show", task_id).stdout, cli.json("show", task_id)
    kept = datetime.fromisoformat(shown["expiresAt"]) - datetime.fromisoformat(shown["createdAt"])
    assert timedelta(0) < kept < timedelta(days=2)
    assert "ttlMs" not in shown
    local = datetime.fromisoformat(shown["expiresAt"]).astimezone()
    assert f"expires       {local:%Y-%m-%d %H:%M:%S}" in text
    # Its result is kept here, and shown without its server.
    offline, again = cli.together(("show", task_id, "--offline"), ("wait", task_id, "-o", "json"))
    assert offline.stdout.endswith("result\nok\n")
    assert '"status": "completed"' in again.stdout


def test_tools_are_listed_with_what_is_known(cli: Cli, fixture_url: str) -> None:
    modern, legacy, listed, old = cli.together(
        *(
            ("tools", fixture_url, *more)
            for more in ((), ("--era", "legacy"), ("--json",), ("--era", "legacy", "--json"))
        )
    )
    assert "the server decides" in modern.stdout
    assert "seconds: number, required" in modern.stdout
    assert "2026-07-28 with tasks" in modern.stderr
    assert "2025-11-25" in legacy.stderr
    assert json.loads(listed.stdout)["tasks"] is True
    found = json.loads(old.stdout)
    assert (found["protocolVersion"], found["tasks"]) == ("2025-11-25", True)
    by_name = {tool["name"]: tool["task"] for tool in found["tools"]}
    assert by_name["greet"] == "never"
    assert by_name["failing_job"] != by_name["slow_compute"] != "never"


def test_files_of_a_result_are_saved_under_names_of_our_own(cli: Cli, asking_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    done = cli("call", asking_url, "pictures", "--save", str(folder))
    assert done.returncode == 0, done.stderr
    names = {path.name: path.read_bytes() for path in folder.iterdir()}
    data = base64.b64decode(PIXEL)
    assert names == {
        "pictures-1.png": data,
        "pictures-1.wav": data,
        "pictures-1.bin": data,
        "pictures-1.html": b"<p>hello</p>",
    }
    assert f"saved as {folder / 'pictures-1.png'}" in done.stdout
    # What is text is printed as it is, so that its file is named beside it; no file is named twice.
    assert done.stderr.splitlines()[-1] == f"Saved {folder / 'pictures-1.html'}"
    assert [(done.stdout + done.stderr).count(str(folder / name)) for name in names] == [1, 1, 1, 1]
    (folder / "pictures-2.png").symlink_to(tmp_path / "elsewhere")
    [task] = cli.json("ls")
    shown = cli.json("show", task["taskId"], "--save", str(folder))
    assert str(folder / "pictures-3.png") in shown["saved"]
    assert (folder / "pictures-1.png").read_bytes() == data
    assert not (tmp_path / "elsewhere").exists()
    assert str(folder / "pictures-4.png") in cli.json("wait", task["taskId"], "--save", str(folder))["saved"]


def test_a_completed_task_that_is_an_error_is_never_shown_as_well(cli: Cli, asking_url: str) -> None:
    with on_terminal(cli, "call", asking_url, "fails") as terminal:
        terminal.expect("✘ completed with an error  fails")
        terminal.expect("The tool failed:")
        terminal.expect("out of paper")
        assert terminal.wait() == 1
    assert "✔" not in terminal.text
    [entry] = cli.json("ls")
    assert (entry["status"], entry["isError"]) == ("completed", True)
    for command, mark in ((("ls",), "✘ tool error"), (("show", entry["taskId"]), "✘ completed with an error")):
        shown = cli(*command).stdout
        assert mark in shown
        assert "✔" not in shown
    waited = cli("wait", entry["taskId"])
    assert (waited.returncode, waited.stdout) == (1, "")
    assert "The tool failed:" in waited.stderr
    with on_terminal(cli, "watch", entry["taskId"]) as terminal:
        terminal.expect("✘ tool error")
        assert terminal.wait() == 0
    changes = [json.loads(line) for line in cli("watch", entry["taskId"], "--json").stdout.splitlines()]
    assert changes[-1]["isError"] is True
    assert "completed with an error" in cli("watch", entry["taskId"]).stderr


def test_detaching_from_a_call_that_made_no_task_warns(cli: Cli, asking_url: str) -> None:
    done = cli("call", "--detach", asking_url, "echo", "text=t")
    assert done.returncode == 0
    assert json.loads(done.stdout)["text"] == "t"
    assert "warning: the call was answered directly, so there is no task to come back to" in done.stderr
    assert cli.json("ls") == []
    assert "warning" not in cli("call", "--detach", asking_url, "slow", "seconds=0").stderr


def test_leaving_a_question_for_later_is_no_error(cli: Cli, fixture_url: str) -> None:
    task_id = cli.start(fixture_url, "confirm_delete", "filename=later")
    for command in (("wait", task_id), ("answer", task_id), ("answer", task_id, "--wait")):
        with on_terminal(cli, *command) as terminal:
            terminal.expect("(yes or no): ")
            terminal.enter("/later")
            terminal.expect(f"mcp-tasks answer {task_id[:13]}")
            assert terminal.wait() == 0
        assert "error" not in terminal.text
    with on_terminal(cli, "call", fixture_url, "test_tool_with_task") as terminal:
        terminal.expect("Name (text): ")
        terminal.enter("/later")
        terminal.expect("The question was left open, so the call is given up.")
        assert terminal.wait() == 7
    assert "error" not in terminal.text
    assert cli("cancel", task_id).returncode == 0


def test_a_line_per_request_over_stdio_and_in_the_older_era(cli: Cli, asking_url: str, stdio: str) -> None:
    newer, older, piped = cli.together(
        ("call", asking_url, "slow", "seconds=0.3", "-v"),
        ("call", "--era", "legacy", asking_url, "slow", "seconds=0.3", "-v"),
        ("call", stdio, "echo", "text=t", "-v"),
    )
    for done, methods in (
        (newer, ["server/discover", "tools/list", "tools/call slow", "subscriptions/listen"]),
        (older, ["initialize", "tools/list", "tools/call slow", "tasks/get task_", "tasks/result task_"]),
        (piped, ["server/discover", "tools/list", "tools/call echo"]),
    ):
        assert done.returncode == 0, done.stderr
        for method in methods:
            assert f"→ {method}" in done.stderr, done.stderr
        assert "httpx" not in done.stderr
