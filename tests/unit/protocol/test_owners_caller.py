"""Who calls, as rules of authors see it."""

from __future__ import annotations

from mcp_tasks.protocol.owners import Identity


def test_a_person_is_one_whichever_host_they_use_and_another_with_another_issuer() -> None:
    desktop, phone = (Identity(client_id=client, issuer="https://a", subject="ada") for client in ("desktop", "phone"))
    assert desktop.person == phone.person
    assert Identity(client_id="phone", issuer="https://b", subject="ada").person != phone.person


def test_a_token_without_a_subject_stands_for_no_person() -> None:
    assert Identity(client_id="batch", issuer="https://a").person is None
