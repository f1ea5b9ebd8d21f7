"""The same request both ways, and whether anybody could tell which way it went."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from tests.short.raw import Answer, exchange
from tests.short.requests import Step
from tests.short.servers import STAND_IN, STATES, Setup, Twins, Way, Written, neutral, put

SETUPS: Final = [
    Setup(),
    Setup(auth=True),
    Setup(json_response=True, guarded=True),
    Setup(auth=True, json_response=True, needs_name=True, max_body=2_500),
    Setup(guarded=True, max_body=20_000),
    Setup(low_level=True),
    Setup(default_mode="optional", needs_name=True),
]
"""Servers that every request is sent to sooner or later."""

_MADE: Final = re.compile(rb"task_[\w-]{27}")
"""Ids of tasks that a request made: different ones, of one form."""

_SESSION: Final = re.compile(rb"[0-9a-f]{32}")

_SEALED: Final = re.compile(rb'"requestState":"[^"]*"')
"""What a call brings along when it comes back: sealed anew each time."""


@dataclass
class Tally:
    """How many pairs were compared, and how many of them the short way answered, by method."""

    sent: Counter[str] = field(default_factory=Counter[str])
    answered: Counter[str] = field(default_factory=Counter[str])
    handed_over: Counter[str] = field(default_factory=Counter[str])

    def __str__(self) -> str:
        by_method = ", ".join(f"{method} {self.answered[method]} of {sent}" for method, sent in self.sent.most_common())
        share = sum(self.answered.values()) / max(self.sent.total(), 1)
        return f"{self.sent.total()} pairs, {share:.0%} answered the short way: {by_method}; {dict(self.handed_over)}"


async def compare(pair: Twins, number: int, steps: Sequence[Step], tally: Tally) -> Answer:
    """Send requests one after the other, both ways, to tasks of their own; gives the last answer."""
    named, short = repr(steps), Answer(status=None)
    await put(pair, number, {name: state for name, state in STATES.items() if f"{STAND_IN}{name}" in named})
    for step in steps:
        pair.clock.advance(timedelta(milliseconds=step.wait_ms))
        counts = pair.short.tasks.short_way
        answered, handed_over = Counter(counts.answered), Counter(counts.handed_over)
        short, short_writes = await go(pair, pair.short, "a", number, step)
        tally.answered += counts.answered - answered
        tally.handed_over += Counter(str(reason) for reason in (counts.handed_over - handed_over).elements())
        long, long_writes = await go(pair, pair.long, "b", number, step)
        tally.sent[step.method] += 1
        assert short.told() == long.told(), f"{step}\n{short}\n{long}"
        assert short_writes == long_writes, f"{step}\n{short_writes}\n{long_writes}"
    return short


async def go(pair: Twins, way: Way, side: str, number: int, step: Step) -> tuple[Answer, list[Written]]:
    """Send a request one way; gives what came back and what was written, as they would be on either side."""
    pair.store.written.clear()
    sent = step.draft(auth=pair.setup.auth).sent(side, number)
    answer = await exchange(way.app, sent)
    written = [_neutral_write(write, side, number) for write in pair.store.written]
    headers = [(name, _SESSION.sub(b"session", value)) for name, value in answer.headers]
    body = _MADE.sub(b"task_made", neutral(answer.body, side, number))
    body = _SEALED.sub(b'"requestState":"sealed"', body)
    length = answer.header(b"content-length")
    if length is not None and int(length) == len(answer.body):
        # Of the body as it is compared: what was put in place of ids may have another length.
        headers = [(name, b"%d" % len(body) if name == b"content-length" else value) for name, value in headers]
    return replace(answer, headers=headers, body=body), written


def _neutral_write(write: Written, side: str, number: int) -> Written:
    told = repr(write.beside).encode(errors="surrogatepass")
    return replace(write, beside=_MADE.sub(b"task_made", neutral(told, side, number)))
