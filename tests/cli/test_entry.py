"""The command as it is installed: its entry point, help, output and completion; `doctor`, `key` and `encrypt`."""

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest

from harness.processes import run
from mcp_tasks.cli.app import COMMANDS
from mcp_tasks.cli.terminal import Exit
from mcp_tasks.client import Ledger
from mcp_tasks.encryption import Keyring, new_key
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request
from tests.cli import hostile_server
from tests.cli.running import LIMIT, ROOT, Cli, Done, stdio_command, until

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


def test_wrong_usage_is_said_in_words(cli: Cli) -> None:
    unknown, nothing, scheme, empty, header, age = cli.together(
        ("wat",),
        ("wait",),
        ("tools", "ftp://example.com"),
        ("tools", " "),
        ("tools", "http://localhost:9", "--header", "nonsense"),
        ("prune", "--older-than", "soon"),
    )
    assert {done.returncode for done in (unknown, nothing, scheme, empty, header, age)} == {2}
    assert "No such command 'wat'; did you mean wait?" in unknown.stderr
    assert "begins with http:// or https://" in scheme.stderr
    assert "a header is written NAME:VALUE" in header.stderr
    assert "7d" in age.stderr


def test_a_reader_that_has_seen_enough_is_no_error(cli: Cli, asking_url: str) -> None:
    for arguments in (["--help"], ["watch", cli.start(asking_url, "survey"), "--json"]):
        reading, writing = os.pipe()
        os.close(reading)
        with open(os.devnull, "r+b") as nothing:
            started = cli.begin(arguments, [nothing.fileno(), writing, nothing.fileno()])
        os.close(writing)
        assert started.wait(LIMIT) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is full is a device of Linux")
@pytest.mark.parametrize("command", [("--help",), ("ls", "--json"), ("ls",)])
def test_output_that_has_no_room_is_said_in_words(cli: Cli, command: tuple[str, ...]) -> None:
    with closing(Ledger(cli.ledger)) as ledger:
        ledger.add("task_1", server="http://127.0.0.1:9/mcp", tool="render")
    with open("/dev/full", "wb") as full, tempfile.TemporaryFile() as said:
        started = cli.begin(command, [0, full.fileno(), said.fileno()])
        assert started.wait(LIMIT) == Exit.OUTPUT
        said.seek(0)
        assert said.read() == b"error: what there is to print cannot be written: No space left on device\n"


def test_verbose_says_what_happens_and_quiet_does_not(cli: Cli, fixture_url: str) -> None:
    quiet, verbose = cli.together(("tools", fixture_url), ("tools", fixture_url, "-vv"))
    assert len(quiet.stderr.splitlines()) == 1
    assert "server/discover" in verbose.stderr


def test_a_duration_is_written_in_one_way_everywhere_and_anything_else_refused(cli: Cli) -> None:
    done = cli("prune", "--older-than", "1h30m", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    refused = cli("wait", "task_x", "--timeout", "10x")
    assert refused.returncode == 2
    assert "'10x' is not a duration; write 90 or 90s, 10m, 1h30m" in refused.stderr


def test_json_prints_json_and_an_object_after_it_is_sent_to_args(cli: Cli, asking_url: str) -> None:
    given = '{"text": "t"}'
    new = cli("call", asking_url, "echo", "--args", given, "--json")
    assert json.loads(new.stdout)["status"] == "completed"
    mixed_up = cli("call", asking_url, "echo", "--json", given)
    assert (mixed_up.returncode, mixed_up.stdout) == (2, "")
    assert "take a JSON object with --args" in mixed_up.stderr


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
    server = f"{sys.executable} {hostile_server.__file__}"
    said, listed = cli.together(("doctor", server), ("doctor", server, "-o", "json"))
    assert (said.returncode, listed.returncode) == (6, 6), said.stderr
    assert "Nothing was checked of its tasks: the server speaks only 2025-11-25" in said.stdout
    assert json.loads(listed.stdout)["unexamined"]


def said(done: Done) -> str:
    return " ".join(done.stderr.split())


def test_a_store_is_encrypted_and_only_its_key_opens_it(cli: Cli, tmp_path: Path) -> None:
    async def fill() -> None:
        store = SqliteStore(tmp_path / "tasks.db")
        await store.open()
        await store.create(make_record(namespace="demo"), make_request(arguments={"a": "secret"}))
        await store.close()

    asyncio.run(fill())
    url = f"sqlite:///{tmp_path}/tasks.db"
    key = cli("key").stdout.strip()
    assert Keyring(key)
    unset = cli("encrypt", "--store", url)
    assert (unset.returncode, "MCP_TASKS_KEYS is not set" in said(unset)) == (2, True), unset
    cli.environment["MCP_TASKS_KEYS"] = key
    # A plain one stays plain until it is encrypted.
    assert cli("workers", "--store", url).returncode == 0
    audit = tmp_path / "audit.jsonl"
    done = cli.json("encrypt", "--store", url, "--as", "ops", "--audit", str(audit))
    assert done == {"changed": 2, "plain": 2, "kept": 0, "unreadable": 0}
    [entry] = [json.loads(line) for line in audit.read_text().splitlines()]
    assert (entry["event"], entry["actor"], entry["principal"], entry["count"]) == ("reencrypted", "operator", "ops", 2)
    assert b"secret" not in (tmp_path / "tasks.db").read_bytes()
    assert cli.json("workers", "--store", url) == []
    assert cli.json("backlog", url, "--namespace", "demo")
    cli.environment["MCP_TASKS_KEYS"] = new_key()
    wrong = cli("encrypt", "--store", url)
    assert (wrong.returncode, "it needs the key" in said(wrong)) == (10, True), wrong
    del cli.environment["MCP_TASKS_KEYS"]
    refused = cli("backlog", url, "--namespace", "demo")
    assert (refused.returncode, "there is no key" in said(refused)) == (10, True), refused


# What words complete to, asked in the way in which shells ask


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
