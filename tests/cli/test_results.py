"""What becomes of results: files that are saved, tools that say that they failed, calls that made no task."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tests.cli.asking_server import PIXEL
from tests.cli.running import Cli
from tests.cli.terminal import CTRL_C, on_terminal


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
    [shown] = [cli.json("show", task["taskId"], "--save", str(folder))]
    assert str(folder / "pictures-3.png") in shown["saved"]
    assert (folder / "pictures-1.png").read_bytes() == data
    assert not (tmp_path / "elsewhere").exists()
    [waited] = [cli.json("wait", task["taskId"], "--save", str(folder))]
    assert str(folder / "pictures-4.png") in waited["saved"]


def test_a_folder_that_cannot_be_written_to_is_said_before_anything_is_called(
    cli: Cli, asking_url: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = cli("call", asking_url, "pictures", "--save", str(tmp_path / "file" / "below"))
    assert done.returncode == 2
    assert "--save" in done.stderr
    assert cli.json("ls") == []


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


def test_the_menu_after_ctrl_c_takes_exact_keys(cli: Cli, asking_url: str) -> None:
    with on_terminal(cli, "call", asking_url, "slow", "seconds=60") as terminal:
        terminal.expect(" of 600")
        terminal.type(CTRL_C)
        for typed in ("continue", "delay", "wa", "C ancel"):
            terminal.expect("[w]ait on")
            terminal.enter(typed)
            terminal.expect("Type c, d or w, or the whole word.")
        terminal.expect("[w]ait on")
        terminal.enter("Detach")
        terminal.expect("The task goes on")
        assert terminal.wait() == 130
    [entry] = cli.json("ls", "--refresh")
    assert entry["status"] == "working"
    assert cli("cancel", entry["taskId"]).returncode == 0


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
