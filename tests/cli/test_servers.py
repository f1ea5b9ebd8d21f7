"""Servers by name: calls, tasks that are come back to, and what a file may not do."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks.client import Ledger
from tests.cli.running import ROOT, Cli, stdio_command

SECRET = "s3cret-of-ann"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def write(folder: Path, servers: dict[str, Any]) -> str:
    path = folder / ".mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return str(path)


def keep(cli: Cli, servers: dict[str, Any]) -> None:
    """Make these the servers of the user's own file."""
    path = cli.ledger.parent / ".config/mcp-tasks/servers.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))


def test_a_server_gets_a_name_is_called_by_it_and_loses_it(cli: Cli, fixture_url: str, project: Path) -> None:
    assert "servers add NAME SERVER" in cli("servers", cwd=project).stderr
    added = cli("servers", "add", "farm", fixture_url)
    assert (added.returncode, "~/.config/mcp-tasks/servers.json" in added.stderr) == (0, True)
    config = write(project, {"other": {"command": "python", "args": ["server.py"]}, "broken": {}})
    listed = cli("servers", "--config", config).stdout
    for words in (("farm", fixture_url), ("other", "python server.py", "~/project/.mcp.json"), ("broken", "cannot be")):
        assert any(all(word in line for word in words) for line in listed.splitlines()), listed
    assert [server["name"] for server in cli.json("servers")] == ["farm"]
    task_id = cli.start("farm", "confirm_delete", "filename=x")
    # The ledger has the address, which stays true whatever the name will mean.
    [entry] = cli.json("ls", "--server", "farm")
    assert (entry["taskId"], entry["server"]) == (task_id, fixture_url)
    assert cli.json("show", task_id, "--server", "farm")["taskId"] == task_id
    near = cli("tools", "fram")
    assert (near.returncode, "Did you mean farm?" in near.stderr) == (2, True)
    assert "mcp-tasks servers add NAME SERVER" in near.stderr
    assert "--config FILE" in near.stderr
    assert cli("servers", "remove", "farm").returncode == 0
    again = cli("servers", "remove", "farm")
    assert (again.returncode, "no server 'farm' is kept" in again.stderr) == (2, True)


def test_files_of_other_programs_and_of_the_folder_are_not_read_unless_one_is_given(
    cli: Cli, project: Path, recorder: tuple[str, list[str | None]]
) -> None:
    url, came = recorder
    deep = project / "src"
    deep.mkdir()
    home = cli.ledger.parent
    text = json.dumps({"mcpServers": {"farm": {"url": url, "headers": {"Authorization": "Bearer ${FARM_TOKEN}"}}}})
    files = [project / name for name in (".mcp.json", "mcp.json", ".cursor/mcp.json", ".vscode/mcp.json")]
    files += [home / ".mcp.json", home / ".cursor/mcp.json", home / ".config/Claude/claude_desktop_config.json"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    cli.environment |= {"FARM_TOKEN": SECRET, "MCP_TASKS_TOKEN": SECRET}
    assert json.loads(cli("servers", "--json", cwd=project).stdout) == []
    for folder in (project, deep):
        unknown = cli("tools", "farm", cwd=folder)
        assert (unknown.returncode, "no server and no command is called 'farm'" in unknown.stderr) == (2, True)
        assert "mcp-tasks servers add NAME SERVER" in unknown.stderr
    assert came == []
    given = cli.together(*(("tools", "farm", "--config", str(file)) for file in files[:3]))
    assert [done.returncode for done in given] == [6, 6, 6]
    assert len(came) >= len(given)
    assert cli("tools", "farm", "--config", "no-such-file").returncode == 2
    files[0].write_text('{"name": "project"}')
    other = cli("tools", "farm", "--config", str(files[0]))
    assert (other.returncode, "mcpServers" in other.stderr) == (2, True)
    files[0].write_text("{nonsense")
    broken = cli("tools", "farm", "--config", str(files[0]))
    assert (broken.returncode, f"the servers in {files[0]} cannot be read" in broken.stderr) == (2, True)


def test_a_header_with_a_variable_that_is_not_set_is_named(cli: Cli) -> None:
    kept = cli("servers", "add", "farm", "http://a/mcp", "-H", "Authorization: Bearer ${FARM_TOKEN}")
    assert kept.returncode == 0
    # Which keeps its tasks from being looked at, as a server does that is not there.
    with Ledger(cli.ledger) as ledger:
        ledger.add("task_of_farm", server="http://a/mcp", tool="render")
    for command, code in ((("tools", "farm"), 2), (("ls", "--refresh"), 6)):
        done = cli(*command)
        assert (done.returncode, "FARM_TOKEN, which is not set" in done.stderr) == (code, True)


def test_headers_go_to_a_named_server_and_again_when_somebody_comes_back(
    cli: Cli, project: Path, recorder: tuple[str, list[str | None]]
) -> None:
    url, came = recorder
    config = write(project, {"farm": {"url": url, "headers": {"Authorization": "Bearer ${FARM_TOKEN}"}}})
    cli.environment["FARM_TOKEN"] = SECRET
    said = cli("tools", "farm", "--config", config).stderr
    assert set(came) == {f"Bearer {SECRET}"}
    came.clear()
    with Ledger(cli.ledger) as ledger:
        ledger.add("task_of_farm", server=url, tool="render")
    shown = cli("show", "task_of_farm", "--config", config)
    assert set(came) == {f"Bearer {SECRET}"}
    assert "farm in ~/project/.mcp.json" in shown.stderr
    came.clear()
    # What is said on the command line goes before what is in a file; and the file is said each time.
    cli("tools", "--config", config, "farm", "--header", "authorization: Basic mine")
    assert set(came) == {"Basic mine"}
    came.clear()
    cli("show", "task_of_farm", cwd=project)
    assert set(came) == {None}
    assert SECRET not in said + shown.stdout + shown.stderr


def test_a_command_of_a_file_is_started_by_its_name_and_with_its_environment_again(
    cli: Cli, project: Path, tmp_path: Path
) -> None:
    log = tmp_path / "started"
    script = f'echo "$WHO $0" >> {shlex.quote(str(log))}; cd {shlex.quote(str(ROOT))}; exec {stdio_command(tmp_path)}'
    farm = {"command": "sh", "args": ["-c", script, "${FARM_KEY}"], "env": {"WHO": "${FARM_TOKEN}"}}
    config = write(project, {"farm": farm})
    cli.environment |= {"FARM_TOKEN": SECRET, "FARM_KEY": "k3y-of-ann"}
    called = cli("call", "--detach", "--config", config, "farm", "slow", "seconds=0.1")
    assert called.returncode == 0, called.stderr
    assert "farm in ~/project/.mcp.json" in called.stderr
    waited = cli("wait", called.stdout.strip(), "--config", config)
    assert waited.returncode == 0, waited.stderr
    assert log.read_text().splitlines() == [f"{SECRET} k3y-of-ann"] * 2
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.db*"))
    for text in (kept.decode(errors="replace"), called.stderr, waited.stdout + waited.stderr):
        assert SECRET not in text
        assert "k3y-of-ann" not in text


def test_an_address_that_is_typed_takes_nothing_of_a_file(
    cli: Cli, project: Path, tmp_path: Path, recorder: tuple[str, list[str | None]]
) -> None:
    url, came = recorder
    log = tmp_path / "started"
    command = ["sh", "-c", f'echo "${{EVIL:-none}}" >> {shlex.quote(str(log))}; exec {stdio_command(tmp_path)}']
    servers = {
        "farm": {"url": url, "headers": {"Authorization": "Bearer ${FARM_TOKEN}"}},
        "unset": {"url": url, "headers": {"X-Key": "${NEVER_SET}"}},
        "evil": {"command": command[0], "args": command[1:], "cwd": str(project), "env": {"EVIL": "yes"}},
    }
    config = write(project, servers)
    cli.environment["FARM_TOKEN"] = SECRET
    assert "Sending" not in cli("tools", url, "--config", config, cwd=project).stderr
    assert set(came) == {None}
    typed = cli("tools", shlex.join(command), "--config", config, cwd=project)
    assert "evil" not in typed.stderr
    assert log.read_text().splitlines() == ["none"]


# The token of the environment


def test_the_token_of_the_environment_goes_only_to_servers_that_the_user_named_or_typed(
    cli: Cli, recorder: tuple[str, list[str | None]], tmp_path: Path
) -> None:
    url, came = recorder
    with Ledger(cli.ledger) as ledger:
        ledger.add("task_of_a_program", server=url, tool="render")
    cli.environment["MCP_TASKS_TOKEN"] = SECRET

    def sent(*arguments: str) -> tuple[set[str | None], str]:
        came.clear()
        done = cli(*arguments)
        return set(came), done.stderr

    assert sent("tools", url)[0] == {f"Bearer {SECRET}"}
    credentials, said = sent("show", "task_of_a_program")
    assert credentials == {None}
    assert f"MCP_TASKS_TOKEN is not sent to {url}" in said
    assert "--server" in said
    assert sent("ls", "--refresh")[0] == {None}
    assert sent("show", "task_of_a_program", "--server", url)[0] == {f"Bearer {SECRET}"}
    assert sent("show", "task_of_a_program", "--token", "mine")[0] == {"Bearer mine"}
    del cli.environment["MCP_TASKS_TOKEN"]
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "token").chmod(0o600)
    cli.environment["MCP_TASKS_TOKEN_FILE"] = str(tmp_path / "token")
    assert sent("tools", url)[0] == {f"Bearer {SECRET}"}
    assert sent("wait", "task_of_a_program")[0] == {None}
    # Once the user has called the server, by its address or by a name, so can who comes back to a task of that call.
    for name in ("", "farm"):
        with Ledger(cli.ledger) as ledger:
            ledger.called(url, name=name)
            ledger.add(f"of_a_call_{name}", server=url, tool="render")
        assert sent("show", f"of_a_call_{name}")[0] == {f"Bearer {SECRET}"}
    assert sent("show", "task_of_a_program")[0] == {None}


def test_who_comes_back_to_a_task_sends_what_the_call_sent(cli: Cli, recorder: tuple[str, list[str | None]]) -> None:
    url, came = recorder
    with Ledger(cli.ledger) as ledger:
        for name in ("farm", ""):
            ledger.called(url, name=name)
            ledger.add(f"of_{name or 'url'}", server=url, tool="render")
    keep(cli, {"other": {"url": url, "headers": {"Authorization": "Bearer of-another"}}})
    assert "headers of other" in cli("show", "of_farm").stderr
    assert set(came) == {"Bearer of-another"}
    came.clear()
    farm = {"url": url, "headers": {"Authorization": "Bearer ${FARM_TOKEN}"}}
    keep(cli, {"other": {"url": url, "headers": {"Authorization": "Bearer of-another"}}, "farm": farm})
    cli.environment |= {"FARM_TOKEN": SECRET, "MCP_TASKS_TOKEN": "of-the-environment"}
    cli("show", "of_farm")
    assert set(came) == {f"Bearer {SECRET}"}, "the file says more about this server than the environment"
    came.clear()
    cli("show", "of_url")
    assert set(came) == {"Bearer of-the-environment"}
    came.clear()
    # An address that is typed now is an answer: nothing is looked for under the name of the call.
    assert "farm" not in cli("show", "of_farm", "--server", url).stderr
    assert set(came) == {"Bearer of-the-environment"}
    keep(cli, {})
    assert "'farm' is not the name of this server any more" in cli("show", "of_farm").stderr
