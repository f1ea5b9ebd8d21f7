"""How connections are made."""

from __future__ import annotations

from mcp_tasks.client.poller import Poller
from mcp_tasks.client.servers import ServerAddress, patience_with


def test_a_server_that_is_long_out_of_reach_is_still_tried_every_two_seconds() -> None:
    poller = Poller(patience_with(ServerAddress(url="http://x/mcp")), jitter=lambda: 1.0)
    now = 0.0
    pauses: list[float] = []
    while poller.failed(now):
        pauses.append(poller.next_look - now)
        now = poller.next_look
    assert max(pauses) == 2.0
    # And for as long as anybody else is patient.
    assert now > 290


def test_a_process_that_ended_is_soon_given_up() -> None:
    poller = Poller(patience_with(ServerAddress(argv=("server",), folder="/")), jitter=lambda: 1.0)
    now = 0.0
    while poller.failed(now):
        now = poller.next_look
    assert now <= 2
