"""The command as it is installed: its entry point, its help, and what it says when its extra is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import closing
from importlib import import_module
from importlib.metadata import version

import pytest

from harness.processes import run
from mcp_tasks.cli.app import COMMANDS
from mcp_tasks.cli.terminal import Exit
from mcp_tasks.client import Ledger
from tests.cli.running import Cli

STORE = "mcp_tasks.cli.commands.store"

_WITHOUT_RICH = """
import sys
sys.modules[sys.argv.pop(1)] = None
from mcp_tasks.cli import main
main()
"""


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, *arguments])


def test_it_runs_as_a_module() -> None:
    done = _python("-m", "mcp_tasks", "--version")
    assert (done.returncode, done.stdout) == (0, f"mcp-tasks, version {version('mcp-tasks')}\n")


def test_the_package_knows_its_version_and_reads_it_only_when_asked() -> None:
    done = _python("-c", "import sys, mcp_tasks; print('importlib.metadata' in sys.modules, mcp_tasks.__version__)")
    assert done.stdout == f"False {version('mcp-tasks')}\n"


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_a_missing_extra_says_what_to_install(missing: str) -> None:
    done = _python("-c", _WITHOUT_RICH, missing, "ls")
    assert done.returncode == 1
    assert "pip install 'mcp-tasks[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_said_without_a_server_does_not_wait_for_the_sdk_to_be_imported() -> None:
    """It takes most of a second, and somebody has pressed TAB."""
    look = "import sys; from mcp_tasks.cli.app import run_app; run_app(['--help']); print('mcp' in sys.modules)"
    assert _python("-c", look).stdout.endswith("\nFalse\n")


def test_every_command_explains_itself_with_examples(cli: Cli) -> None:
    overview, *helps = cli.together(("--help",), *((name, "--help") for name in COMMANDS))
    for name, done in zip(COMMANDS, helps, strict=True):
        assert done.returncode == 0
        assert f"\n  {name} " in overview.stdout
        assert f"Usage: mcp-tasks {name}" in done.stdout
        assert f"Examples:\n    mcp-tasks {name}" in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 100


def test_commands_on_tasks_of_a_store_take_the_same_and_one_thing_of_their_own() -> None:
    own = {"cancel": "reason", "delete": "force", "rerun": "yes"}
    taken: dict[str, set[str]] = {
        name: {param.name for param in getattr(import_module(STORE), f"{name}_command").params} for name in own
    }
    shared = set[str].intersection(*taken.values())
    assert {"ids", "url", "namespaces", "name", "audit", "output", "verbose"} <= shared
    assert {name: names - shared for name, names in taken.items()} == {name: {word} for name, word in own.items()}


def test_wrong_usage_is_said_in_words(cli: Cli) -> None:
    unknown, nothing, scheme, empty, header, age = cli.together(
        ("frobnicate",),
        ("wait",),
        ("tools", "ftp://example.com"),
        ("tools", " "),
        ("tools", "http://localhost:9", "--header", "nonsense"),
        ("prune", "--older-than", "soon"),
    )
    assert {done.returncode for done in (unknown, nothing, scheme, empty, header, age)} == {2}
    assert "No such command 'frobnicate'" in unknown.stderr
    assert "begins with http:// or https://" in scheme.stderr
    assert "a header is written NAME:VALUE" in header.stderr
    assert "7d" in age.stderr


def test_a_command_that_is_spelled_wrong_is_guessed(cli: Cli) -> None:
    done = cli("wat")
    assert done.returncode == 2
    assert "No such command 'wat'; did you mean wait?" in done.stderr


def test_a_ledger_that_cannot_be_used_is_said_in_words(cli: Cli) -> None:
    cli.ledger.write_text("this is no database, and long enough to be looked at as one" * 20)
    done = cli("ls")
    assert done.returncode == 9
    assert "ledger" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error(cli: Cli) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(os.devnull, "r+b") as nothing:
        started = cli.begin(["--help"], [nothing.fileno(), writing, nothing.fileno()], terminal=False)
    os.close(writing)
    assert started.wait() == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is full is a device of Linux")
@pytest.mark.parametrize("command", [("--help",), ("ls", "--json"), ("ls",)])
def test_output_that_has_no_room_is_said_in_words(cli: Cli, command: tuple[str, ...]) -> None:
    with closing(Ledger(cli.ledger)) as ledger:
        ledger.add("task_1", server="http://127.0.0.1:9/mcp", tool="render")
    with open("/dev/full", "wb") as full, tempfile.TemporaryFile() as said:
        started = cli.begin(command, [0, full.fileno(), said.fileno()], terminal=False)
        assert started.wait() == Exit.OUTPUT
        said.seek(0)
        assert said.read() == b"error: what there is to print cannot be written: No space left on device\n"


def test_verbose_says_what_happens_and_quiet_does_not(cli: Cli, fixture_url: str) -> None:
    quiet, verbose = cli.together(("tools", fixture_url), ("tools", fixture_url, "-vv"))
    assert len(quiet.stderr.splitlines()) == 1
    assert "server/discover" in verbose.stderr
