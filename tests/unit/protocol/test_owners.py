"""Whose tasks a caller's are, by the author's rule and without one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types import INTERNAL_ERROR

from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.owners import MOST_NAMED, RULE_FAILED, Caller, Identity, Owners, local_user

MODERN = "2026-07-28"


def caller(principal: str | None = None, **fields: Any) -> Caller:
    return Caller(protocol_version=MODERN, principal=principal, **fields)


def test_by_default_it_is_who_was_authenticated() -> None:
    owners = Owners()
    assert (owners.of(caller("ada")), owners.has(caller("ada"))) == ("ada", True)
    assert (owners.of(caller()), owners.has(caller())) == (None, False)
    assert owners.local is None


def test_an_empty_name_is_nobodys() -> None:
    assert Owners(lambda _: "").of(caller("ada")) is None


def test_a_rule_that_raises_refuses_the_request_and_the_log_says_where_but_not_what(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def by_tenant(caller: Caller) -> str:
        raise LookupError(caller.principal)

    owners = Owners(by_tenant)
    with pytest.raises(RpcError, match=RULE_FAILED) as refused:
        owners.of(caller("a secret"))
    assert refused.value.code == INTERNAL_ERROR
    [line] = caplog.messages
    assert "LookupError" in line
    assert "by_tenant" in line
    assert "secret" not in line
    # A request that is refused already: nothing more is said of it.
    assert owners.known(caller("a secret")) is None
    assert len(caplog.messages) == 1


def number(_: Caller) -> int:
    return 7


def raw(_: Caller) -> bytes:
    return b"ada"


async def awaited(_: Caller) -> str:
    return "ada"


@pytest.mark.parametrize("rule", [number, raw, awaited])
def test_a_rule_that_returns_no_name_refuses_the_request(rule: Any, caplog: pytest.LogCaptureFixture) -> None:
    owners = Owners(rule)
    with pytest.raises(RpcError, match=RULE_FAILED):
        owners.of(caller("ada"))
    assert "must return a str or None" in caplog.text
    assert not owners.has(caller("ada"))


def test_a_token_without_a_subject_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    owners = Owners()
    for _ in range(2):
        assert owners.of(caller("batch", identity=Identity(client_id="batch"))) == "batch"
    [line] = caplog.messages
    assert "'batch'" in line
    assert "no subject" in line


def test_who_is_authenticated_and_named_by_no_rule_is_told_so_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rule = Owners(lambda caller: caller.identity and caller.identity.person, required=lambda: True)
    machine = Caller(protocol_version=MODERN, identity=Identity(client_id="app"), headers={"host": "x"})
    for _ in range(3):
        with pytest.raises(RpcError, match="You are authenticated") as refused:
            rule.of(machine)
        assert refused.value.data == {"reason": "owner_required"}
    [line] = [record.getMessage() for record in caplog.records]
    assert "'app'" in line
    assert "subject" in line


def test_a_rule_of_ones_own_is_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    identity = Identity(client_id="batch")
    owners = Owners(lambda caller: caller.principal)
    owners.of(Caller(protocol_version=MODERN, principal="x", identity=identity))
    assert caplog.records == []
    usual = Owners()
    for number in range(MOST_NAMED + 50):
        usual.of(Caller(protocol_version=MODERN, principal="x", identity=Identity(client_id=str(number))))
    assert len(caplog.records) == MOST_NAMED


def test_the_local_user_is_one_of_this_machine() -> None:
    kind, machine, who = json.loads(local_user())
    assert kind == "local"
    assert machine
    assert who is not None


def test_what_comes_without_http_belongs_to_the_local_user_only_where_that_was_not_refused() -> None:
    piped = Caller(protocol_version=MODERN)
    assert Owners(required=lambda: True, local="me").of(piped) == "me"
    assert Owners(required=lambda: False, local="me").of(piped) is None
    named = Owners(lambda _: "ada", required=lambda: True, local="me")
    assert named.of(piped) == "ada"
    with pytest.raises(Exception, match="Authentication required"):
        Owners(required=lambda: True, local="me").of(Caller(protocol_version=MODERN, headers={"host": "x"}))
    with pytest.raises(Exception, match="Authentication required"):
        Owners(required=lambda: True).of(piped)
