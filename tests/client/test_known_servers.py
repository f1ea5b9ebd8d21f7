"""Servers by name: which file a name is of, what is in the place of variables, and what is kept."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks.client.known_servers import KnownServer, KnownServers
from mcp_tasks.client.servers import ServerAddress
from mcp_tasks.errors import InvalidServerFile, UnknownServer
from mcp_tasks.files import alone

URL = "https://farm.example/mcp"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return folder


@pytest.fixture
def project(home: Path) -> Path:
    folder = home / "work/project"
    folder.mkdir(parents=True)
    return folder


def write(path: Path, servers: dict[str, Any], key: str = "mcpServers") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({key: servers}))


def named(config: Path, name: str) -> KnownServer:
    known = KnownServers(config).get(name)
    assert known is not None
    return known


def test_names_are_those_of_the_file_that_is_given_and_of_the_users_own(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, given = home / ".config/mcp-tasks/servers.json", project / ".mcp.json"
    others = ["mcp.json", ".cursor/mcp.json", ".vscode/mcp.json"]
    not_read = [given, *(project / name for name in others), home / ".cursor/mcp.json", home / ".mcp.json"]
    for number, path in enumerate([own, *not_read, home / ".config/Claude/claude_desktop_config.json"]):
        write(path, {"farm": {"url": URL}, f"only-{number}": {"url": URL}})
    monkeypatch.chdir(project)
    assert [(server.name, server.source) for server in KnownServers()] == [("farm", own), ("only-0", own)]
    assert [(server.name, server.source) for server in KnownServers(given)] == [
        ("farm", given),
        ("only-1", given),
        ("only-0", own),
    ]
    own.unlink()
    assert list(KnownServers()) == []


@pytest.mark.parametrize("name", [".mcp.json", ".vscode/mcp.json"])
def test_a_command_is_run_in_the_folder_of_its_project(project: Path, name: str) -> None:
    here = {"command": "python", "args": ["server.py", "--n", 3]}
    write(project / name, {"here": here, "below": {**here, "cwd": "${workspaceFolder}/tools"}}, "servers")
    assert named(project / name, "here").address == ServerAddress(
        argv=("python", "server.py", "--n", "3"), folder=str(project)
    )
    assert named(project / name, "below").address.folder == str(project / "tools")


def test_variables_are_looked_up_and_one_that_is_not_set_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    monkeypatch.delenv("NOT_SET", raising=False)
    headers = {"Authorization": "Bearer ${TOKEN}", "X-Zone": "${env:NOT_SET:-eu}", "X-Kind": "${TOKEN:-no}"}
    write(
        project / ".mcp.json",
        {
            "farm": {"type": "http", "url": f"{URL}?key=${{TOKEN}}", "headers": headers},
            "local": {"command": "farm", "args": ["--key", "${env:TOKEN}"], "env": {"A": "${TOKEN}", "N": 1}},
            "bad": {"url": URL, "headers": {"X": "${NOT_SET}"}},
        },
    )
    farm, local, bad = (named(project / ".mcp.json", name) for name in ("farm", "local", "bad"))
    assert farm.headers == {"Authorization": "Bearer s3cret", "X-Zone": "eu", "X-Kind": "s3cret"}
    assert farm.address.url == f"{URL}?key=s3cret"
    assert local.environment == {"A": "s3cret", "N": "1"}
    assert local.address.argv == ("farm", "--key", "s3cret")
    with pytest.raises(InvalidServerFile, match="NOT_SET") as problem:
        _ = bad.headers
    assert str(project / ".mcp.json") in problem.value.hint


def test_a_variable_in_a_host_is_written_as_it_is(project: Path) -> None:
    write(project / ".mcp.json", {"farm": {"url": "https://Farm.${NOPE}.Example/mcp"}})
    farm = named(project / ".mcp.json", "farm")
    assert farm.spec == "https://farm.${NOPE}.example/mcp"
    assert KnownServers(project / ".mcp.json").at(ServerAddress.parse(farm.spec)) == farm


def test_no_value_of_a_variable_is_in_what_a_ledger_keeps_and_the_server_is_found_by_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    write(
        project / ".mcp.json",
        {
            "farm": {"url": f"{URL}?key=${{TOKEN}}"},
            "local": {"command": "farm", "args": ["--key", "${TOKEN}"]},
            "plain": {"command": "farm"},
        },
    )
    known = KnownServers(project / ".mcp.json")
    for server in known:
        address = server.address
        assert "s3cret" not in address.spec + address.label + repr(server)
        back = ServerAddress.parse(address.spec)
        assert known.at(back) is server
    assert "s3cret" in named(project / ".mcp.json", "farm").secrets
    assert known.at(ServerAddress(url="https://other.example/mcp")) is None


def test_a_name_is_neither_a_url_nor_a_command_of_several_words(project: Path) -> None:
    write(
        project / ".mcp.json", {URL: {"command": "evil"}, "python server.py": {"command": "evil"}, "sh": {"url": URL}}
    )
    known = KnownServers(project / ".mcp.json")
    assert known.resolve(URL) == ServerAddress(url=URL)
    command = known.resolve("python server.py")
    assert isinstance(command, ServerAddress)
    assert command.argv == ("python", "server.py")
    assert known.resolve("sh") is known.get("sh")


def test_a_name_that_is_spelled_wrong_is_answered_with_those_that_are_near(project: Path) -> None:
    write(project / ".mcp.json", {"Farm": {"url": URL}, "other": {"url": URL}})
    with pytest.raises(UnknownServer) as problem:
        KnownServers(project / ".mcp.json").resolve("frm")
    assert problem.value.hint == "Did you mean Farm?"
    with pytest.raises(UnknownServer, match="no server and no command is called 'xyzzy-server'") as unknown:
        KnownServers(project / ".mcp.json").resolve("xyzzy-server")
    assert unknown.value.hint == ""


@pytest.mark.parametrize("text", ["sh", "localhost", "xyzzy-server --flag", "./xyzzy-server"])
def test_what_may_be_a_command_or_an_address_is_not_taken_for_a_name(text: str) -> None:
    found = KnownServers().resolve(text)
    assert isinstance(found, ServerAddress)
    assert found.argv == tuple(text.split())


def test_comments_and_commas_too_many_are_read_over(project: Path) -> None:
    (project / ".mcp.json").write_text(
        '{// of ours\n"mcpServers": {"farm": {"url": "http://a//b", /* no */ "headers": {"X": "a, ]"},},}}'
    )
    assert named(project / ".mcp.json", "farm").address.url == "http://a//b"
    assert named(project / ".mcp.json", "farm").headers == {"X": "a, ]"}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({}, "neither a url nor a command"),
        ({"url": 3}, "no text"),
        ({"url": "ftp://x"}, "http"),
        ({"url": "farm"}, "a url that is none"),
        ({"url": URL, "type": "sse"}, "SSE"),
        ({"command": "x", "args": "y"}, "no list"),
    ],
)
def test_a_server_that_cannot_be_used_is_listed_and_says_why(project: Path, entry: dict[str, Any], says: str) -> None:
    write(project / ".mcp.json", {"farm": entry})
    with pytest.raises(InvalidServerFile, match=says):
        _ = named(project / ".mcp.json", "farm").address


def test_a_file_that_cannot_be_trusted_or_read_is_said(project: Path, home: Path) -> None:
    config, own = project / ".mcp.json", home / ".config/mcp-tasks/servers.json"
    with pytest.raises(InvalidServerFile, match="No such file"):
        KnownServers(config)
    config.write_text("{nonsense")
    with pytest.raises(InvalidServerFile, match="cannot be read"):
        KnownServers(config)
    write(config, {"farm": {"command": "evil"}})
    config.chmod(0o666)
    with pytest.raises(InvalidServerFile, match="everybody can write"):
        KnownServers(config)
    # Without the user's own file, a URL is still one.
    write(own, {"farm": {"command": "evil"}})
    own.chmod(0o666)
    known = KnownServers()
    assert list(known) == []
    assert "everybody can write" in known.problem
    assert known.resolve(URL) == ServerAddress(url=URL)
    with pytest.raises(UnknownServer) as problem:
        known.resolve("farm")
    assert "everybody can write" in problem.value.hint


# What is kept


def test_servers_are_kept_in_a_private_file_and_removed(home: Path) -> None:
    servers = KnownServers()
    servers.add("farm", ServerAddress(url=URL), headers={"Authorization": "Bearer ${TOKEN}"})
    servers.add("local", ServerAddress(argv=("python", "server.py"), folder="/srv"), environment={"A": "b"})
    assert servers.kept_in == home / ".config/mcp-tasks/servers.json"
    assert stat.S_IMODE(servers.kept_in.stat().st_mode) == 0o600
    assert sorted(os.listdir(servers.kept_in.parent)) == ["servers.json", "servers.json.lock"]
    again = KnownServers()
    local = again.get("local")
    assert local is not None
    assert (local.address, local.environment) == (
        ServerAddress(argv=("python", "server.py"), folder="/srv"),
        {"A": "b"},
    )
    again.remove("farm")
    assert [server.name for server in KnownServers()] == ["local"]


@pytest.mark.parametrize(
    ("server", "headers", "environment"),
    [
        (URL, {"Authorization": "Bearer abc"}, {}),
        (URL, {"X-Api-Key": "abc"}, {}),
        ("https://ann:abc@farm.example/mcp", {}, {}),
        (f"{URL}?api_key=abc", {}, {}),
        ("farm --token=abc", {}, {}),
        ("farm", {}, {"FARM_PASSWORD": "abc"}),
    ],
)
def test_credentials_are_not_kept(server: str, headers: dict[str, str], environment: dict[str, str]) -> None:
    servers = KnownServers()
    with pytest.raises(InvalidServerFile, match="would be kept") as problem:
        servers.add("farm", ServerAddress.parse(server), headers=headers, environment=environment)
    assert "abc" not in str(problem.value)
    assert not servers.kept_in.exists()


def test_nothing_is_lost_of_what_is_kept(project: Path) -> None:
    write(project / ".mcp.json", {"theirs": {"url": URL}})
    servers = KnownServers(project / ".mcp.json")
    servers.add("farm", ServerAddress(url=URL))
    with pytest.raises(InvalidServerFile, match="already"):
        servers.add("farm", ServerAddress(url="http://b/mcp"))
    with pytest.raises(UnknownServer, match="name"):
        servers.add("two words", ServerAddress(url=URL))
    with pytest.raises(UnknownServer, match="is kept in"):
        servers.remove("theirs")
    servers.kept_in.write_text("{nonsense")
    with pytest.raises(InvalidServerFile, match="cannot be read"):
        servers.add("other", ServerAddress(url=URL))
    assert servers.kept_in.read_text() == "{nonsense"


def test_who_adds_a_server_waits_for_whoever_is_changing_the_file() -> None:
    servers = KnownServers()
    servers.add("first", ServerAddress.parse(URL))
    adding = threading.Thread(target=lambda: KnownServers().add("second", ServerAddress.parse(URL)))
    with alone(servers.kept_in):
        adding.start()
        adding.join(0.5)
        assert adding.is_alive()
        assert "second" not in json.loads(servers.kept_in.read_text())["mcpServers"]
    adding.join(30)
    assert {known.name for known in KnownServers()} == {"first", "second"}
