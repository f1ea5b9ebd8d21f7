"""What a person sees and does: the bar, the forms, the menu after Ctrl-C, the table."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.serving import ServerProcess
from tests.cli.running import Cli
from tests.cli.terminal import CTRL_C, on_terminal

MENU = "Ctrl-C again detaches"


def test_a_bar_shows_how_far_it_is(cli: Cli, asking_url: str) -> None:
    with on_terminal(cli, "call", asking_url, "slow", "seconds=2") as terminal:
        terminal.expect("slow ━")
        terminal.expect("%")
        terminal.expect(" of 20")
        terminal.expect("✔ completed")
        terminal.expect("slow done")
        assert terminal.wait() == 0


def test_a_form_is_made_from_the_schema(cli: Cli, asking_url: str) -> None:
    with on_terminal(cli, "call", asking_url, "survey") as terminal:
        terminal.expect("survey asks")
        terminal.expect("Tell us about yourself")
        for prompt, typed in (
            ("name (text of at least 2 characters): ", "A"),
            ("too short", ""),
            ("this must be answered", "Ann"),
            ("email (text (email), optional): ", "nobody"),
            ("expected an e-mail address", ""),
            ("age (whole number from 1 to 120): ", "ten"),
            ("expected whole number from 1 to 120, got 'ten'", "33"),
            ("weight (number, optional) [70.5]: ", ""),
            ("subscribe (yes or no, optional) [yes]: ", "no"),
            ("2. green  (Green tea)", "/back"),
            ("subscribe (yes or no, optional) [no]: ", ""),
            ("colour (a number or a name): ", "2"),
            ("size (a number or a name, optional): ", "large"),
            ("days (numbers or names, with commas): ", "1, Tuesday"),
            ("Send it? [Y]es, [n]o (edit): ", ""),
        ):
            terminal.expect(prompt)
            terminal.enter(typed)
        terminal.expect("completed")
        assert terminal.wait() == 0
    answer = json.loads("".join(terminal.text.rpartition('{"action"')[1:]))
    assert answer["content"] == {
        "name": "Ann",
        "age": 33,
        "weight": 70.5,
        "subscribe": False,
        "colour": "green",
        "size": "l",
        "days": ["mon", "tue"],
    }


def test_a_question_can_be_declined_and_one_on_the_call_itself_answered(cli: Cli, fixture_url: str) -> None:
    with on_terminal(cli, "call", fixture_url, "confirm_delete", "filename=a") as terminal:
        terminal.expect("(yes or no): ")
        terminal.enter("/decline")
        terminal.expect("kept a")
        assert terminal.wait() == 0
    with on_terminal(cli, "call", fixture_url, "test_tool_with_task") as terminal:
        terminal.expect("What is your name?")
        terminal.expect("Name (text): ")
        terminal.enter("Ann")
        terminal.expect("Hello, Ann!")
        assert terminal.wait() == 0


def test_a_page_is_shown_and_not_opened_without_consent(cli: Cli, asking_url: str) -> None:
    with on_terminal(cli, "call", asking_url, "link_account") as terminal:
        terminal.expect("https://accounts.example.com/link?id=7")
        terminal.expect("Host: accounts.example.com")
        for typed in ("delay it", "cance", "operate", ""):
            terminal.expect("[d]ecline")
            terminal.enter(typed)
            terminal.expect("Type one of the letters, or the whole word.")
        terminal.expect("[d]ecline")
        terminal.enter("Decline")
        terminal.expect("link: decline")
        assert terminal.wait() == 0


def test_ctrl_c_offers_to_wait_on_or_to_cancel(cli: Cli, asking_url: str) -> None:
    with on_terminal(cli, "call", asking_url, "slow", "seconds=60") as terminal:
        terminal.expect(" of 600")
        terminal.type(CTRL_C)
        terminal.expect(MENU)
        terminal.enter("w")
        terminal.expect(" of 600")
        terminal.type(CTRL_C)
        terminal.expect(MENU)
        terminal.enter("c")
        terminal.expect("cancelled")
        assert terminal.wait() == 4
    assert "Traceback" not in terminal.text


def test_ctrl_c_twice_detaches_and_says_how_to_come_back(cli: Cli, asking_url: str) -> None:
    with on_terminal(cli, "call", asking_url, "slow", "seconds=3") as terminal:
        terminal.expect(" of 30")
        terminal.type(CTRL_C)
        terminal.expect(MENU)
        terminal.type(CTRL_C)
        terminal.expect("mcp-tasks wait task_")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.text
    [entry] = cli.json("ls")
    done = cli("wait", entry["taskId"])
    assert (done.returncode, done.stdout) == (0, "slow done\n")


def test_ctrl_c_at_a_question_leads_to_the_same_menu(cli: Cli, fixture_url: str) -> None:
    with on_terminal(cli, "call", fixture_url, "confirm_delete", "filename=b") as terminal:
        terminal.expect("(yes or no): ")
        terminal.type(CTRL_C)
        terminal.expect(MENU)
        terminal.enter("w")
        terminal.expect("(yes or no): ")
        terminal.type(CTRL_C)
        terminal.expect(MENU)
        terminal.enter("d")
        terminal.expect("mcp-tasks wait task_")
        assert terminal.wait() == 130


def test_what_is_cancelled_with_others_asks_nothing_more(cli: Cli, fixture_url: str) -> None:
    asking = [cli.start(fixture_url, "confirm_delete", f"filename={name}") for name in ("a", "b")]
    with on_terminal(cli, "wait", *asking) as terminal:
        terminal.expect("(yes or no): ")
        terminal.type(CTRL_C)
        terminal.expect("[c]ancel all")
        terminal.enter("c")
        assert terminal.wait() == 4
    assert terminal.text.count("(yes or no): ") == 1
    assert terminal.text.count("○ cancelled") == 2


@pytest.mark.parametrize(("call", "shown"), [(("slow", "seconds=60"), " of 600"), (("survey",), "/help for more")])
def test_ctrl_c_is_heard_while_a_server_takes_its_time_to_cancel(
    cli: Cli, tmp_path: Path, call: tuple[str, ...], shown: str
) -> None:
    with (
        ServerProcess("tests.cli.asking_server", "--port", "{port}", "--db", tmp_path / "tasks.db") as server,
        on_terminal(cli, "call", server.url, *call) as terminal,
    ):
        terminal.expect(shown)
        terminal.type(CTRL_C)
        terminal.expect(MENU)
        os.kill(server.pid, signal.SIGSTOP)
        terminal.enter("c")
        terminal.expect(call[0])
        terminal.type(CTRL_C)
        terminal.expect(MENU)
        terminal.enter("d")
        terminal.expect("mcp-tasks wait task_")
        assert terminal.wait() == 130


def test_a_question_that_is_no_longer_asked_goes_away(cli: Cli, fixture_url: str) -> None:
    task_id = cli.start(fixture_url, "confirm_delete", "filename=c")
    with on_terminal(cli, "wait", task_id) as terminal:
        terminal.expect("(yes or no): ")
        assert cli("cancel", task_id).returncode == 0
        terminal.expect("\nThe question was withdrawn")
        assert terminal.wait() == 4
    assert terminal.text.count("○ cancelled") == 1


def _answered_late(cli: Cli, asking: str, *options: str, ends: Sequence[str]) -> tuple[str, str]:
    """What is on the terminal when others have ended while a question waits to be answered, and what is in the end."""
    with on_terminal(cli, "wait", *options, asking, *ends) as terminal:
        terminal.expect(f"confirm_delete ({asking[:13]}) asks")
        terminal.expect("(yes or no): ")
        for task_id in ends:
            cli("wait", task_id)
        before = terminal.screen
        terminal.enter("yes")
        terminal.expect("deleted x")
        assert terminal.wait() == 0
    assert before.endswith("(yes or no):")
    return f"{before} yes\n", terminal.screen


def test_a_task_that_ends_while_somebody_types_is_said_after_the_answer_and_the_form_stays(
    cli: Cli, fixture_url: str, asking_url: str
) -> None:
    asks = cli.start(fixture_url, "confirm_delete", "filename=x")
    # Long enough for the form to come first, on a slow machine, too.
    ends = [cli.start(asking_url, "slow", f"seconds={seconds}") for seconds in (3, 3.5)]
    form, screen = _answered_late(cli, asks, ends=ends)
    assert "completed" not in form
    assert screen.startswith(form)
    assert all(f"✔ completed  slow  {task_id[:13]}" in screen.removeprefix(form) for task_id in ends)


def test_what_is_logged_while_somebody_types_comes_after_the_answer(
    cli: Cli, fixture_url: str, asking_url: str
) -> None:
    asks = cli.start(fixture_url, "confirm_delete", "filename=x")
    form, screen = _answered_late(cli, asks, "-vv", ends=[cli.start(asking_url, "slow", "seconds=3")])
    assert screen.startswith(form)
    assert "of 'slow' is completed" in screen.removeprefix(form)


def test_ctrl_c_leaves_one_table_behind(cli: Cli, asking_url: str) -> None:
    cli.start(asking_url, "slow", "seconds=30")
    with on_terminal(cli, "watch") as terminal:
        terminal.expect(" of 300")
        terminal.type(CTRL_C)
        assert terminal.wait() == 0
    assert terminal.screen.count("progress") == 1
    assert "─" in terminal.screen, "what is not done is drawn otherwise than what is: there may be no colours"


def test_several_tasks_are_watched_in_one_table(cli: Cli, asking_url: str) -> None:
    started = cli.together(
        ("call", "--detach", asking_url, "slow", "seconds=30"), ("call", "--detach", asking_url, "link_account")
    )
    with on_terminal(cli, "watch") as terminal:
        terminal.expect("progress")
        for done in started:
            terminal.expect(done.stdout.strip()[:13])
        terminal.expect("● working")
        terminal.expect("? input required")
        terminal.type(CTRL_C)
        assert terminal.wait() == 0
    assert "Traceback" not in terminal.text


def test_an_answer_that_somebody_else_gave_first_is_not_said_to_be_given(cli: Cli, fixture_url: str) -> None:
    task_id = cli.start(fixture_url, "confirm_delete", "filename=x")
    with on_terminal(cli, "answer", task_id) as terminal:
        terminal.expect("(yes or no): ")
        assert cli("answer", task_id, "confirm=no").returncode == 0
        terminal.enter("yes")
        terminal.expect("the task no longer asks this")
        assert terminal.wait() == 2


def test_an_answer_is_asked_for_at_the_prompt(cli: Cli, fixture_url: str) -> None:
    task_id = cli.start(fixture_url, "confirm_delete", "filename=d")
    with on_terminal(cli, "answer", task_id, "--wait") as terminal:
        terminal.expect("Delete d?")
        terminal.expect("(yes or no): ")
        terminal.enter("yes")
        terminal.expect("deleted d")
        assert terminal.wait() == 0
