"""Servers by name: what is in the place of variables, what is kept, credentials, and why one cannot be used."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mcp_tasks.cli.options import check_token, is_in_the_clear, read_headers, read_token, secrets_of
from mcp_tasks.cli.servers import KnownServer, KnownServers, ServerAddress, check_url
from mcp_tasks.errors import InvalidInput, InvalidOption, ServerUnreachable

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


@pytest.mark.parametrize("name", [".mcp.json", ".vscode/mcp.json"])
def test_a_command_is_run_in_the_folder_of_its_project(project: Path, name: str) -> None:
    here = {"command": "python", "args": ["server.py", "--n", 3]}
    write(project / name, {"here": here, "below": {**here, "cwd": "${workspaceFolder}/tools"}}, "servers")
    assert named(project / name, "here").address == ServerAddress(
        argv=("python", "server.py", "--n", "3"), folder=str(project)
    )
    assert named(project / name, "below").address.folder == str(project / "tools")


def test_variables_are_looked_up_and_a_missing_one_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(InvalidInput, match="NOT_SET") as problem:
        _ = bad.headers
    assert str(project / ".mcp.json") in problem.value.hint


def test_a_variable_in_a_host_is_written_as_it_is(project: Path) -> None:
    write(project / ".mcp.json", {"farm": {"url": "https://Farm.${NOPE}.Example/mcp"}})
    farm = named(project / ".mcp.json", "farm")
    assert farm.spec == "https://farm.${NOPE}.example/mcp"
    assert KnownServers(project / ".mcp.json").at(ServerAddress.parse(farm.spec)) == farm


def test_the_address_in_a_ledger_has_no_value_of_a_variable(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_name_that_is_spelled_wrong_is_answered_with_those_that_are_near(project: Path) -> None:
    write(project / ".mcp.json", {"Farm": {"url": URL}, "other": {"url": URL}})
    with pytest.raises(InvalidInput) as problem:
        KnownServers(project / ".mcp.json").resolve("frm")
    assert problem.value.hint == "Did you mean Farm?"
    with pytest.raises(InvalidInput, match="no server and no command is called 'xyzzy-server'") as unknown:
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
    with pytest.raises(InvalidInput, match=says):
        _ = named(project / ".mcp.json", "farm").address


def test_a_file_that_cannot_be_trusted_or_read_is_said(project: Path, home: Path) -> None:
    config, own = project / ".mcp.json", home / ".config/mcp-tasks/servers.json"
    with pytest.raises(InvalidInput, match="No such file"):
        KnownServers(config)
    config.write_text("{nonsense")
    with pytest.raises(InvalidInput, match="cannot be read"):
        KnownServers(config)
    write(config, {"farm": {"command": "evil"}})
    config.chmod(0o666)
    with pytest.raises(InvalidInput, match="everybody can write"):
        KnownServers(config)
    # Without the user's own file, a URL is still one.
    write(own, {"farm": {"command": "evil"}})
    own.chmod(0o666)
    known = KnownServers()
    assert list(known) == []
    assert "everybody can write" in known.problem
    assert known.resolve(URL) == ServerAddress(url=URL)
    with pytest.raises(InvalidInput) as problem:
        known.resolve("farm")
    assert "everybody can write" in problem.value.hint


# What is kept


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
    with pytest.raises(InvalidInput, match="would be kept") as problem:
        servers.add("farm", ServerAddress.parse(server), headers=headers, environment=environment)
    assert "abc" not in str(problem.value)
    assert not servers.kept_in.exists()


def test_nothing_is_lost_of_what_is_kept(project: Path) -> None:
    write(project / ".mcp.json", {"theirs": {"url": URL}})
    servers = KnownServers(project / ".mcp.json")
    servers.add("farm", ServerAddress(url=URL))
    with pytest.raises(InvalidInput, match="already"):
        servers.add("farm", ServerAddress(url="http://b/mcp"))
    with pytest.raises(InvalidInput, match="name"):
        servers.add("two words", ServerAddress(url=URL))
    with pytest.raises(InvalidInput, match="is kept in"):
        servers.remove("theirs")
    servers.kept_in.write_text("{nonsense")
    with pytest.raises(InvalidInput, match="cannot be read"):
        servers.add("other", ServerAddress(url=URL))
    assert servers.kept_in.read_text() == "{nonsense"


# Tokens and headers as people write them


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (lambda: check_token(" \n"), "is empty"),
        (lambda: check_token("two words"), "characters"),
        (lambda: check_token("caf\u00e9"), "characters"),
        (lambda: read_headers([], " "), "the token is empty"),
        (lambda: read_headers(["X-Team"]), "NAME:VALUE, with a colon"),
        (lambda: read_headers([":blue"]), "NAME:VALUE"),
        (lambda: read_headers(["X:\u00e9"]), "'X' has characters"),
        (lambda: read_token(Path("/nowhere")), "cannot be read"),
    ],
)
def test_what_is_no_token_and_no_header_is_refused_without_repeating_it(read: Any, why: str) -> None:
    with pytest.raises(InvalidOption, match=why) as raised:
        read()
    assert "two words" not in str(raised.value)


def test_headers_are_names_and_values_and_a_token_is_one_of_them() -> None:
    assert check_token(" abc.def\n") == "abc.def"
    assert read_headers(["X-Team: blue ", "X-Url:http://a"]) == {"X-Team": "blue", "X-Url": "http://a"}
    assert read_headers(["X-Team:blue"], "abc") == {"X-Team": "blue", "Authorization": "Bearer abc"}


@pytest.mark.skipif(os.name != "posix", reason="others are kept out by other means on Windows")
def test_a_token_file_that_others_may_read_is_told_and_one_that_is_large_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abc\n")
    for mode, others in ((0o600, False), (0o644, True)):
        file.chmod(mode)
        assert read_token(file) == ("abc", others)
    file.write_bytes(b"x" * 100_000)
    with pytest.raises(InvalidOption, match="too large to be a token file"):
        read_token(file)


def test_what_may_be_a_secret_is_known() -> None:
    headers = {"Authorization": "Bearer abc", "X-Team": "blue", "Mcp-Session-Id": "s1", "X-Api-Key": ""}
    assert secrets_of(headers=headers) == ["abc", "s1"]
    assert secrets_of("https://ann:x@farm.example/mcp") == [":x@"]
    assert secrets_of("https://farm.example/mcp?a:b@c", {}) == []
    in_the_clear = {"http://farm.example/mcp": True, "https://farm.example": False, "http://localhost:1": False}
    assert {url: is_in_the_clear(url) for url in in_the_clear} == in_the_clear
    assert not is_in_the_clear("http://[::1]")


# Why a URL cannot be used, as far as HTTP can tell


def no_gzip() -> httpx2.Response:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    return httpx2.Response(200, headers=headers, stream=httpx2.ByteStream(gzip.compress(b"{}")[::-1]))


BASIC = {"www-authenticate": "Basic realm=x"}


@pytest.mark.parametrize(
    ("answer", "what", "hint", "reason"),
    [
        (no_gzip(), "breaks the connection: Error", "", "connection"),
        (httpx2.ReadTimeout(""), "does not answer", "Look at the server's log.", "timeout"),
        (httpx2.ConnectTimeout(""), "does not answer", "Is the host name", "timeout"),
        (httpx2.Response(401, headers=BASIC), "", "It asks for Basic authorization: send", "credentials"),
        (httpx2.Response(401), "", "Send an Authorization header.", "credentials"),
        (httpx2.Response(403), "", "Send an Authorization header, or another.", "credentials"),
    ],
)
async def test_why_a_url_cannot_be_used_is_said(
    monkeypatch: pytest.MonkeyPatch, answer: Any, what: str, hint: str, reason: str
) -> None:
    def respond(request: httpx2.Request) -> httpx2.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(respond))

    def take(**options: object) -> httpx2.AsyncClient:
        return client

    monkeypatch.setattr("mcp_tasks.cli.servers.httpx2.AsyncClient", take)
    found = await check_url("http://farm.example/mcp")
    assert isinstance(found, ServerUnreachable)
    assert found.what.removeprefix("http://farm.example/mcp ").startswith(what)
    assert (found.hint.startswith(hint), found.reason) == (True, reason)
