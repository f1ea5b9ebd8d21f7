"""What a person sees and does: the bar, the forms, the menu after Ctrl-C, the table, outages, narrow windows."""

import json
import os
import signal
from pathlib import Path

import pytest

from harness.serving import ServerProcess
from tests.cli.running import LIMIT, Cli, until
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


def test_a_page_is_opened_only_when_told_to_and_if_it_may_be(cli: Cli, asking_url: str, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    cli.environment["BROWSER"] = f"sh -c 'echo $0 >> {opened}' %s"
    for url, wrong, words, answer in (
        ("https://a.example/link?id=7", ("delay it", "cance", "operate", ""), "Decline", "decline"),
        ("https://a.example/v", (), "v", "accept"),
        ("https://a.example/o", (), "o", "accept"),
        # What is not https, or no page at all.
        ("http://a.example/", ("o",), "d", "decline"),
        ("file:///etc/passwd", ("open",), "d", "decline"),
    ):
        with on_terminal(cli, "call", asking_url, "link_account", f"url={url}") as terminal:
            terminal.expect(url)
            terminal.expect("Host:")
            for typed in wrong:
                terminal.expect("[d]ecline")
                terminal.enter(typed)
                terminal.expect("Type one of the letters, or the whole word.")
            terminal.expect("[d]ecline")
            assert ("[o]pen" in terminal.text) is url.startswith("https")
            terminal.enter(words)
            terminal.expect(f"link: {answer}")
            assert terminal.wait() == 0
    assert opened.read_text() == "https://a.example/o\n"


def test_ctrl_c_is_heard_while_a_server_takes_its_time_to_cancel(cli: Cli, tmp_path: Path) -> None:
    with (
        ServerProcess("tests.cli.asking_server", "--port", "{port}", "--db", tmp_path / "tasks.db") as server,
        on_terminal(cli, "call", server.url, "slow", "seconds=60") as terminal,
    ):
        terminal.expect(" of 600")
        terminal.type(CTRL_C)
        terminal.expect(MENU)
        os.kill(server.pid, signal.SIGSTOP)
        terminal.enter("c")
        terminal.expect("slow")
        terminal.type(CTRL_C)
        terminal.expect(MENU)
        terminal.enter("d")
        terminal.expect("mcp-tasks wait task_")
        assert terminal.wait() == 130


def test_the_menu_after_ctrl_c_waits_on_or_cancels_and_takes_exact_keys(cli: Cli, asking_url: str) -> None:
    with on_terminal(cli, "call", asking_url, "slow", "seconds=60") as terminal:
        terminal.expect(" of 600")
        terminal.type(CTRL_C)
        for typed in ("continue", "wa", "C ancel"):
            terminal.expect("[w]ait on")
            terminal.enter(typed)
            terminal.expect("Type c, d or w, or the whole word.")
        terminal.enter("w")
        terminal.expect(" of 600")
        terminal.type(CTRL_C)
        terminal.expect(MENU)
        terminal.enter("Cancel")
        terminal.expect("cancelled")
        assert terminal.wait() == 4
    assert "Traceback" not in terminal.text


def test_ctrl_c_twice_detaches_and_says_how_to_come_back(cli: Cli, fixture_url: str) -> None:
    with on_terminal(cli, "call", fixture_url, "confirm_delete", "filename=b") as terminal:
        # At a question it leads to the same menu.
        terminal.expect("(yes or no): ")
        terminal.type(CTRL_C)
        terminal.expect(MENU)
        terminal.enter("w")
        terminal.expect("(yes or no): ")
        terminal.type(CTRL_C)
        terminal.expect(MENU)
        terminal.type(CTRL_C)
        terminal.expect("mcp-tasks wait task_")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.text
    [entry] = cli.json("ls", "--refresh")
    assert entry["status"] == "input_required"
    with on_terminal(cli, "answer", entry["taskId"], "--wait") as terminal:
        terminal.expect("Delete b?")
        terminal.expect("(yes or no): ")
        terminal.enter("yes")
        terminal.expect("deleted b")
        assert terminal.wait() == 0


@pytest.mark.parametrize(("command", "code"), [("wait", 4), ("answer", 2)])
def test_a_question_that_somebody_else_settles_is_not_asked_on(
    cli: Cli, fixture_url: str, command: str, code: int
) -> None:
    task_id = cli.start(fixture_url, "confirm_delete", "filename=c")
    with on_terminal(cli, command, task_id) as terminal:
        terminal.expect("(yes or no): ")
        if command == "wait":
            assert cli("cancel", task_id).returncode == 0
            terminal.expect("\nThe question was withdrawn")
        else:
            assert cli("answer", task_id, "confirm=no").returncode == 0
            terminal.enter("yes")
            terminal.expect("the task no longer asks this")
        assert terminal.wait() == code
    assert terminal.text.count("○ cancelled") == (1 if command == "wait" else 0)


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


def test_what_ends_or_is_logged_while_somebody_types_is_said_after_the_answer_and_the_form_stays(
    cli: Cli, fixture_url: str
) -> None:
    asks = cli.start(fixture_url, "confirm_delete", "filename=x")
    ends = [cli.start(fixture_url, "park", "seconds=600") for _ in range(2)]
    with on_terminal(cli, "wait", "-vv", asks, *ends) as terminal:
        terminal.expect(f"confirm_delete ({asks[:13]}) asks")
        terminal.expect("(yes or no): ")
        form = terminal.screen
        for task_id in ends:
            assert cli("cancel", task_id).returncode == 0
        terminal.enter("yes")
        terminal.expect("deleted x")
        assert terminal.wait() == 4
    assert form.endswith("(yes or no):")
    screen = terminal.screen
    assert screen.startswith(f"{form} yes\n")
    after = screen.removeprefix(form)
    assert "of 'park' is cancelled" in after
    assert all(f"○ cancelled  park  {task_id[:13]}" in after for task_id in ends)


def test_several_tasks_are_watched_in_one_table_and_ctrl_c_leaves_it_behind(cli: Cli, asking_url: str) -> None:
    started = cli.together(
        ("call", "--detach", asking_url, "slow", "seconds=30"), ("call", "--detach", asking_url, "link_account")
    )
    with on_terminal(cli, "watch") as terminal:
        terminal.expect("progress")
        for done in started:
            terminal.expect(done.stdout.strip()[:13])
        terminal.expect("● working")
        terminal.expect("? input required")
        terminal.expect(" of 300")
        terminal.type(CTRL_C)
        assert terminal.wait() == 0
    assert "Traceback" not in terminal.text
    assert terminal.screen.count("progress") == 1
    assert "─" in terminal.screen, "what is not done is drawn otherwise than what is: there may be no colours"


# A server that goes away and comes back while somebody waits


def test_bars_lines_and_json_say_that_a_server_is_away_and_back(cli: Cli, tmp_path: Path) -> None:
    with ServerProcess("tests.cli.asking_server", "--port", "{port}", "--db", tmp_path / "tasks.db") as server:
        # A task that has nothing to say: no progress draws its line anew.
        task_id = cli.start(server.url, "link_account")
        said, changes = tmp_path / "said", tmp_path / "changes"
        with said.open("w") as err, changes.open("w") as out, Path(os.devnull).open("r+") as nothing:
            lines, watch = (
                cli.begin(
                    ["watch", task_id, *words],
                    [nothing.fileno(), files.fileno() if words else nothing.fileno(), err.fileno()],
                )
                for words, files in (([], nothing), (["--json"], out))
            )
        with (
            on_terminal(cli, "call", server.url, "slow", "seconds=50") as bars,
            on_terminal(cli, "watch", task_id) as table,
        ):
            bars.expect(" of 500")
            table.expect("input required")
            until(said.read_text, lambda text: "input" in text)
            until(changes.read_text, lambda text: "input_required" in text)
            server.kill()
            for terminal in (bars, table):
                terminal.expect("server out of reach for 0:0")
                terminal.expect("trying again")
            until(said.read_text, lambda text: "server out of reach for 0:0" in text.splitlines()[-1])
            until(changes.read_text, lambda text: "outOfReachSince" in text)
            server.start()
            for terminal in (bars, table):
                terminal.expect("server is back after 0:")
                terminal.expect_screen(lambda screen: "out of reach" not in screen)
            until(said.read_text, lambda text: "server is back after 0:" in text)
            back = until(changes.read_text, lambda text: "outOfReachSeconds" in text)
            assert any(json.loads(line).get("outOfReachSeconds", 0) > 0 for line in back.splitlines() if line)
            table.type(CTRL_C)
            assert table.wait() == 0
        for command in (lines, watch):
            command.send_signal(signal.SIGINT)
            command.wait(LIMIT)


# Sixty columns: nothing is cut off that tells things apart, and no line is wider


def shown(cli: Cli, *arguments: str) -> str:
    with on_terminal(cli, *arguments, columns=60) as terminal:
        code = terminal.wait()
    assert code == 0, terminal.text
    # What is said beside a table is wrapped by the terminal.
    lines = [line.rstrip() for line in terminal.text.splitlines() if not line.startswith("The server speaks")]
    assert max(len(line) for line in lines) <= 60, terminal.text
    return terminal.text


def test_a_narrow_terminal_shows_what_tells_things_apart(cli: Cli, asking_url: str, asking_store: Path) -> None:
    tasks = [cli.start(asking_url, "slow", f"seconds={seconds}") for seconds in (41, 42)]
    assert cli("call", asking_url, "fails").returncode == 1
    listed = shown(cli, "ls")
    for task_id, seconds in zip(tasks, (41, 42), strict=True):
        assert task_id[:13] in listed
        assert f"slow seconds={seconds}" in listed
    assert "✘ tool error" in listed
    one = shown(cli, "show", tasks[0])
    assert "seconds=41" in one
    assert "● working" in one
    tools = shown(cli, "tools", asking_url)
    assert "link_account" in tools
    assert "Take some time, and say how far it is." in tools
    url = f"sqlite:///{asking_store}"
    assert tasks[0][:13] in shown(cli, "ls", "--store", url)
    assert "working" in shown(cli, "workers", "--store", url)
    with on_terminal(cli, "watch", *tasks, columns=60) as terminal:
        for task_id in tasks:
            terminal.expect(task_id[:13])
        terminal.expect("● working")
        terminal.expect("of 4")
        terminal.type(CTRL_C)
        assert terminal.wait() == 0
    with on_terminal(cli, "call", asking_url, "survey", columns=60) as terminal:
        # Hints are wrapped below where they begin.
        terminal.expect("\n  instead of an answer; /help for more.")
        terminal.expect("characters): ")
        terminal.enter("/help")
        terminal.expect("\n  these words")
        terminal.enter("/later")
        terminal.wait()
    assert cli("cancel", *tasks).returncode == 0
