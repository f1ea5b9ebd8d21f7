"""Layouts on a terminal of 60 columns: nothing is cut off that tells things apart, and no line is wider."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Cli
from tests.cli.terminal import CTRL_C, on_terminal

COLUMNS = 60


@pytest.fixture
def tasks(cli: Cli, asking_url: str) -> list[str]:
    """Two tasks of one tool, and one that failed."""
    started = [cli.start(asking_url, "slow", f"seconds={seconds}") for seconds in (41, 42)]
    assert cli("call", asking_url, "fails").returncode == 1
    return started


def shown(cli: Cli, *arguments: str) -> str:
    with on_terminal(cli, *arguments, columns=COLUMNS) as terminal:
        code = terminal.wait()
    assert code == 0, terminal.text
    # What is said beside a table is wrapped by the terminal.
    lines = [line.rstrip() for line in terminal.text.splitlines() if not line.startswith("The server speaks")]
    assert max(len(line) for line in lines) <= COLUMNS, terminal.text
    return terminal.text


def test_tasks_are_told_apart(cli: Cli, asking_url: str, tasks: list[str]) -> None:
    listed = shown(cli, "ls")
    for task_id, seconds in zip(tasks, (41, 42), strict=True):
        assert task_id[:13] in listed
        assert f"slow seconds={seconds}" in listed
    assert "✘ tool error" in listed
    one = shown(cli, "show", tasks[0])
    assert "seconds=41" in one
    assert "● working" in one
    tools = shown(cli, "tools", asking_url)
    assert "look_around" in tools
    assert "Take some time, and say how far it is." in tools
    with on_terminal(cli, "watch", columns=COLUMNS) as terminal:
        for task_id in tasks:
            terminal.expect(task_id[:13])
        terminal.expect("● working")
        terminal.expect("of 4")
        terminal.type(CTRL_C)
        assert terminal.wait() == 0
    with on_terminal(cli, "wait", *tasks, columns=COLUMNS) as terminal:
        terminal.expect("slow")
        terminal.expect("%")
        terminal.expect("step")
        terminal.type(CTRL_C)
        terminal.expect("again detaches")
        terminal.enter("cancel")
        assert terminal.wait() == 4


def test_what_operators_see(cli: Cli, asking_store: Path, tasks: list[str]) -> None:
    url = f"sqlite:///{asking_store}"
    assert tasks[0][:13] in shown(cli, "ls", "--store", url)
    assert "working" in shown(cli, "workers", "--store", url)
    assert "Nothing waits." in shown(cli, "backlog", url, "--namespace", "asking")
    assert cli("cancel", *tasks).returncode == 0


def test_hints_of_a_form_are_wrapped_below_where_they_begin(cli: Cli, asking_url: str) -> None:
    with on_terminal(cli, "call", asking_url, "survey", columns=COLUMNS) as terminal:
        terminal.expect("\n  instead of an answer; /help for more.")
        terminal.expect("characters): ")
        terminal.enter("/help")
        terminal.expect("\n  these words")
        terminal.enter("/later")
        terminal.wait()
