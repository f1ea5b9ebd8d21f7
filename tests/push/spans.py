"""Spans of a listen stream, both ways: `python -m tests.push.spans` prints when each is there and when it has ended.

A process of its own, because a process has one tracer provider for good.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    Tracer,
    TracerProvider,
    set_tracer_provider,
    use_span,
)

from harness.server import QUICK, build
from mcp_tasks import Tasks
from tests.push.asgi import app_of, at
from tests.push.listening import listen

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736


class _Span(NonRecordingSpan):
    def __init__(self, name: str) -> None:
        super().__init__(SpanContext(TRACE, 0x00F067AA0BA902B7, is_remote=False))
        self.name = name
        self.ends = 0

    def end(self, end_time: int | None = None) -> None:
        self.ends += 1


class _Tracer(Tracer):
    def __init__(self, spans: list[_Span]) -> None:
        self._spans = spans

    def start_span(self, name: str, *args: Any, **options: Any) -> Span:
        self._spans.append(_Span(name))
        return self._spans[-1]

    @contextmanager
    def _current(self, name: str, *args: Any, **options: Any) -> Generator[Span]:
        with use_span(self.start_span(name), end_on_exit=True) as span:
            yield span

    # The SDK's own type of it is a decorator as well, which nobody here needs.
    start_as_current_span: Callable[..., Any] = _current


class _Provider(TracerProvider):
    def __init__(self) -> None:
        self.spans: list[_Span] = []

    def get_tracer(self, *args: Any, **options: Any) -> Tracer:
        return _Tracer(self.spans)


async def spans_of_a_stream(provider: _Provider, *, short_way: bool) -> Mapping[str, Any]:
    """The spans of one stream, while it is open and after its client has left."""
    provider.spans.clear()
    tasks = Tasks("memory://", settings=QUICK, short_way=short_way)
    async with app_of(build(tasks)) as app:
        async with at(app, listen([])) as peer:
            await peer.until(lambda seen: seen.frames)
            open_ = [(span.name, span.ends) for span in provider.spans]
        ended = [(span.name, span.ends) for span in provider.spans]
    return {"open": open_, "ended": ended, "answered": tasks.short_way.answered.total()}


async def main() -> None:
    """Print them."""
    provider = _Provider()
    set_tracer_provider(provider)
    print(json.dumps([await spans_of_a_stream(provider, short_way=way) for way in (True, False)]))


if __name__ == "__main__":
    anyio.run(main)
