"""`doctor` on a terminal and in scripts: what it prints, and how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.cli.running import Cli, stdio_command
from tests.cli.terminal import on_terminal


def test_our_server_has_no_fault(cli: Cli, fixture_url: str) -> None:
    by_hand, by_itself = cli.together(
        ("doctor", fixture_url, "--tool", "slow_compute", "seconds=1", "label=x", "-o", "json"), ("doctor", fixture_url)
    )
    assert by_hand.returncode == 0, by_hand.stdout
    found = json.loads(by_hand.stdout)
    assert {finding["verdict"] for finding in found["findings"]} == {"pass"}
    areas = {finding["area"] for finding in found["findings"]}
    assert areas >= {"negotiation", "errors", "creation", "undeclared client", "headers", "push", "cancel", "outcome"}
    assert by_itself.returncode == 0
    assert "no tool is marked readOnlyHint" in by_itself.stdout


def test_a_harmless_tool_is_found_and_stdio_is_examined_too(cli: Cli, tmp_path: Path) -> None:
    done = cli("doctor", stdio_command(tmp_path), "-o", "json")
    assert done.returncode == 0, done.stdout
    findings = json.loads(done.stdout)["findings"]
    # The first that is marked so and needs no arguments; those before it are not.
    assert {finding["probe"] for finding in findings if finding["probe"].startswith("call ")} == {"call fails"}
    assert [finding["area"] for finding in findings if finding["verdict"] != "pass"] == ["headers"]


def test_a_server_that_cannot_be_examined_says_why(cli: Cli, fixture_url: str) -> None:
    refused, command, tool, words, era = cli.together(
        ("doctor", "http://127.0.0.1:9/mcp"),
        ("doctor", "no-such-command --stdio"),
        ("doctor", fixture_url, "--tool", "nothing"),
        ("doctor", fixture_url, "seconds=1"),
        ("doctor", fixture_url, "--era", "legacy"),
    )
    assert [done.returncode for done in (refused, command, tool, words, era)] == [6, 6, 2, 2, 2]
    assert "nothing of 2025-11-25" in era.stderr


def test_a_server_that_speaks_only_2025_11_25_is_not_called_well(cli: Cli) -> None:
    server = f"{sys.executable} -m tests.cli.old_server"
    said, listed = cli.together(("doctor", server), ("doctor", server, "-o", "json"))
    assert (said.returncode, listed.returncode) == (6, 6), said.stderr
    assert "Nothing was checked of its tasks: the server speaks only 2025-11-25" in said.stdout
    assert json.loads(listed.stdout)["unexamined"]


def test_it_can_be_read_on_a_narrow_terminal(cli: Cli, fixture_url: str) -> None:
    # Test runners set it, and it would be believed more than the terminal.
    cli.environment.pop("COLUMNS", None)
    with on_terminal(cli, "doctor", fixture_url, "--tool", "noop", columns=60) as terminal:
        assert terminal.wait() == 0
        # After the line on which it says that it is at work.
        _, *lines = terminal.text.splitlines()
    assert max(map(len, lines)) <= 60
    assert "  ✔ extension" in [line.rstrip() for line in lines]
