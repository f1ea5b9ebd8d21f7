"""What words complete to, asked in the way in which shells ask."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from harness.processes import run
from mcp_tasks.cli.app import COMMANDS
from mcp_tasks.client import Ledger
from tests.cli.running import ROOT, Cli, until


def complete(cli: Cli, *words: str, cwd: Path = ROOT) -> dict[str, str]:
    """What the last word may become, each with the help that is shown beside it."""
    asked = {
        "_MCP_TASKS_COMPLETE": "zsh_complete",
        "COMP_WORDS": shlex.join(["mcp-tasks", *words]),
        "COMP_CWORD": str(len(words)),
    }
    cli.environment |= asked
    done = cli(cwd=cwd)
    for name in asked:
        del cli.environment[name]
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    return dict(zip(lines[1::3], lines[2::3], strict=True))


def completed(cli: Cli, *words: str) -> dict[str, str]:
    """The same as soon as there is something: a server may take too long to answer while the machine is busy."""
    return until(lambda: complete(cli, *words), bool)


def test_commands_complete_to_those_of_the_table_and_options_to_their_own(cli: Cli) -> None:
    assert complete(cli, "wa") == {name: about for name, (_, about) in COMMANDS.items() if name in ("wait", "watch")}
    assert list(complete(cli, "")) == list(COMMANDS)
    assert list(complete(cli, "--v")) == ["--version"]


def test_ids_complete_to_tasks_of_the_ledger(cli: Cli, fixture_url: str) -> None:
    assert complete(cli, "wait", "") == {}
    assert not cli.ledger.exists()
    first, second = (cli.start(fixture_url, "confirm_delete", f"filename={name}") for name in "ab")
    found = complete(cli, "wait", "")
    assert [word for word in (first, second) if any(word.startswith(name) for name in found)] == [first, second]
    assert set(found.values()) == {"confirm_delete working"}
    assert list(complete(cli, "show", first[:-1])) == [first]
    assert len(complete(cli, "cancel", first, "")) == 1
    assert complete(cli, "forget", "nothing-like-it") == {}
    cli("cancel", first)
    assert len(complete(cli, "answer", "")) == 1, "what has ended asks nothing"
    assert len(complete(cli, "show", "")) == 2


def test_servers_complete_to_names_and_tools_to_those_of_the_server(cli: Cli, fixture_url: str, tmp_path: Path) -> None:
    cli("servers", "add", "farm", fixture_url)
    assert complete(cli, "call", "f") == {"farm": fixture_url}
    assert complete(cli, "ls", "--server", "") == {"farm": fixture_url}
    cli.start("farm", "confirm_delete", "filename=x")
    for words in (("call", "farm", "conf"), ("doctor", fixture_url, "--tool", "conf")):
        assert list(completed(cli, *words)) == ["confirm_delete"]


def test_a_server_is_asked_for_its_tools_once_it_was_called(
    cli: Cli, recorder: tuple[str, list[str | None]], tmp_path: Path
) -> None:
    url, came = recorder
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"given": {"url": url}}}))
    cli("servers", "add", "farm", url)
    cli.environment["MCP_TASKS_TOKEN"] = "geheim-1"
    ways = [("farm",), (url,), ("--config", str(tmp_path / "mcp.json"), "given")]
    for way in ways:
        assert complete(cli, "call", *way, "") == {}
        assert complete(cli, "doctor", *way, "--tool", "") == {}
    assert came == []
    assert not cli.ledger.exists()
    with Ledger(cli.ledger) as ledger:
        ledger.called("http://127.0.0.1:9/mcp")
        ledger.add("task_of_a_program", server=url, tool="render")
    assert complete(cli, "call", "farm", "") == {}
    assert came == []
    with Ledger(cli.ledger) as ledger:
        ledger.called(url)
    for way in ways:
        completed_once = complete(cli, "call", *way, "")
        assert completed_once == {}, "this server refuses everybody"
        assert set(came) == {"Bearer geheim-1"}
        came.clear()


def test_nothing_is_started_for_a_completion_that_nobody_has_chosen(cli: Cli, tmp_path: Path) -> None:
    project, started = tmp_path / "project", tmp_path / "started"
    project.mkdir()
    servers = {"evil": {"command": "touch", "args": [str(started)]}}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    assert complete(cli, "call", "", cwd=project) == {}
    assert complete(cli, "call", "evil", "", cwd=project) == {}
    given = ("--config", str(project / ".mcp.json"))
    assert complete(cli, "call", *given, "") == {"evil": f"touch {started}"}
    assert complete(cli, "call", *given, "evil", "") == {}
    assert complete(cli, "call", f"touch {started}", "", cwd=project) == {}
    assert complete(cli, "call", "http://127.0.0.1:9/mcp", "") == {}
    assert complete(cli, "call", "no-such-name", "") == {}
    assert not started.exists()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_the_script_completes_in_bash(cli: Cli, tmp_path: Path) -> None:
    for shell, words in (("zsh", "#compdef mcp-tasks"), ("fish", "complete --no-files")):
        assert words in cli("completion", shell).stdout
    assert cli("completion", "sh").returncode == 2
    script = cli("completion", "bash").stdout
    typed = "COMP_WORDS=(mcp-tasks comp); COMP_CWORD=1; _mcp_tasks_completion mcp-tasks; echo ${COMPREPLY[@]}"
    # The command that the script runs is this checkout's.
    ours = tmp_path / "mcp-tasks"
    ours.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m mcp_tasks "$@"\n')
    ours.chmod(0o755)
    environment = {
        **cli.environment,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    done = run(["bash", "-c", f"{script}\n{typed}"], env=environment)
    assert (done.stdout.strip(), done.stderr) == ("completion", "")
