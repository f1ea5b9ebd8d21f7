"""What is known of hosts: whom a name stands for, and when its call must be answered. The page says the same."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from harness.processes import ROOT
from mcp_tasks.errors import InvalidOption
from mcp_tasks.fallback.options import HOSTS, UNKNOWN_HOST, Host, check_hosts, host_of
from mcp_tasks.model.json import JsonValue

MINUTE = timedelta(minutes=1)
SHORT, LONG, WAITS = Host(limit=MINUTE), Host(limit=5 * MINUTE), Host()


def test_a_host_is_found_by_its_name() -> None:
    assert host_of({"name": "chat", "version": "2"}, {"chat": SHORT}) is SHORT


@pytest.mark.parametrize("client_info", [None, {}, {"name": None}, {"name": 5}, {"name": ["chat"]}, {"name": ""}])
def test_whoever_gives_no_name_is_not_known(client_info: dict[str, JsonValue] | None) -> None:
    assert host_of(client_info, {"chat": SHORT}) is None


@pytest.mark.parametrize("name", ["Chat", "chat ", "chats", "cha", "*"])
def test_another_name_is_not_known(name: str) -> None:
    assert host_of({"name": name}, {"chat": SHORT}) is None


@pytest.mark.parametrize("name", ["chat", "chat-desktop", "chat - weather", "chat*"])
def test_a_name_with_an_asterisk_stands_for_all_that_begin_so(name: str) -> None:
    assert host_of({"name": name}, {"chat*": SHORT}) is SHORT


def test_the_closest_entry_counts() -> None:
    hosts = {"chat*": SHORT, "chat-desktop*": LONG, "chat-desktop": WAITS}
    assert host_of({"name": "chat-desktop"}, hosts) is WAITS
    assert host_of({"name": "chat-desktop-beta"}, hosts) is LONG
    assert host_of({"name": "chat-web"}, hosts) is SHORT


def test_a_bridge_works_for_the_host_before_it() -> None:
    assert host_of({"name": "chat (via mcp-remote 0.1.38)"}, {"chat": SHORT}) is SHORT
    assert host_of({"name": " (via mcp-remote 0.1.38)"}, {"chat": SHORT}) is None


def test_over_stdio_an_entry_of_its_own_counts() -> None:
    hosts = {"agent": Host(limit=MINUTE, stdio=LONG), "chat": SHORT}
    assert host_of({"name": "agent"}, hosts) is hosts["agent"]
    assert host_of({"name": "agent"}, hosts, over_stdio=True) is LONG
    assert host_of({"name": "chat"}, hosts, over_stdio=True) is SHORT
    assert host_of({"name": "nobody"}, hosts, over_stdio=True) is None


@pytest.mark.parametrize(("limit", "within"), [(30, 25), (60, 50), (240, 200), (300, 250)])
def test_a_call_is_answered_well_before_the_limit(limit: int, within: int) -> None:
    host = Host(limit=timedelta(seconds=limit))
    assert host.answer_within(has_progress=False) == timedelta(seconds=within)
    assert host.answer_within(has_progress=True) == timedelta(seconds=within)


def test_progress_lifts_the_limit_only_where_it_extends_it() -> None:
    host = Host(limit=MINUTE, progress_extends=True)
    assert host.answer_within(has_progress=True) is None
    assert host.answer_within(has_progress=False) == timedelta(seconds=50)


def test_a_host_that_waits_has_no_limit_and_an_unknown_one_has_a_minute() -> None:
    assert WAITS.answer_within(has_progress=False) is None
    assert UNKNOWN_HOST.answer_within(has_progress=True) == timedelta(seconds=50)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "a host's name cannot be empty"),
        ("our*chat", "can only stand at the end"),
        ("*chat", "can only stand at the end"),
        ("**", "can only stand at the end"),
        ("our-chat (via mcp-remote 0.1.38)", "write 'our-chat'"),
    ],
)
def test_a_name_that_no_host_can_have_is_refused(name: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(said)):
        check_hosts({name: SHORT})


@pytest.mark.parametrize("name", ["*", "our-chat", "our-chat*", "Our Chat"])
def test_any_other_name_is_taken(name: str) -> None:
    check_hosts({name: SHORT})


def test_what_is_no_host_is_refused() -> None:
    with pytest.raises(InvalidOption, match="limit must be a timedelta, got 60"):
        Host(limit=60)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidOption, match="stdio must be a Host"):
        Host(stdio=MINUTE)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidOption, match=r"hosts\['chat'\] must be a Host, got datetime.timedelta"):
        check_hosts({"chat": MINUTE})
    with pytest.raises(InvalidOption, match="hosts must be a mapping"):
        check_hosts(["chat"])
    check_hosts({"chat": SHORT, "agent*": WAITS})
    check_hosts(HOSTS)


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("mcp", Host()),
        ("Visual Studio Code", Host(asks_for_tasks=True)),
        ("Visual Studio Code - Insiders", Host(asks_for_tasks=True)),
        ("goose-cli", LONG),
        ("goose-desktop", LONG),
        ("spring-ai-mcp-client - weather", Host(limit=timedelta(seconds=20))),
        ("gemini-cli-mcp-client-weather", Host(limit=10 * MINUTE)),
        ("local-agent-mode-weather", SHORT),
        ("claude-ai (via mcp-remote 0.1.38)", SHORT),
        ("cursor-vscode", LONG),
        ("JetBrains-IU-copilot-intellij", Host(limit=timedelta(seconds=30))),
        ("windsurf-client", None),
    ],
)
def test_the_table_knows_the_names_that_hosts_send(name: str, host: Host | None) -> None:
    assert host_of({"name": name, "version": "1"}, HOSTS) == host


def test_the_page_has_every_entry_of_the_table_with_its_source_and_no_other() -> None:
    rows = _rows_of_the_page()
    assert rows.keys() == HOSTS.keys()
    for name, (limit, progress, tasks, source) in rows.items():
        host = HOSTS[name]
        assert limit == _limit_in_words(host), name
        assert progress == _progress_in_words(host), name
        assert tasks == ("yes" if host.asks_for_tasks else "no"), name
        assert re.search(r"https?://|`[\w.-]+/[\w.-]+`", source), f"{name} has no source"
        assert re.search(r"20\d\d-\d\d", source), f"the source of {name} has no date"


def _rows_of_the_page() -> dict[str, tuple[str, str, str, str]]:
    """Limit, progress, tasks and source, by the names in the table of hosts."""
    section = (ROOT / "docs" / "hosts.md").read_text().partition("## The hosts that are known")[2].partition("\n## ")[0]
    rows: dict[str, tuple[str, str, str, str]] = {}
    for line in section.splitlines():
        if line.startswith("|") and "`" in line:
            _, names, limit, progress, tasks, _, source = (cell.strip() for cell in line.strip("|").split("|"))
            for name in re.findall(r"`([^`]+)`", names):
                rows[name] = (limit, progress, tasks, source)
    return rows


def _limit_in_words(host: Host) -> str:
    said = "none" if host.limit is None else f"{host.limit.total_seconds():g} s"
    return said if host.stdio is None else f"{said}; over stdio {_limit_in_words(host.stdio)}"


def _progress_in_words(host: Host) -> str:
    said = "" if host.limit is None else "yes" if host.progress_extends else "no"
    return said if host.stdio is None else f"{said}; over stdio {_progress_in_words(host.stdio)}"
