"""A tracer provider that keeps what it is told, made of nothing but OpenTelemetry's API."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    Tracer,
    TracerProvider,
    get_current_span,
    use_span,
)
from opentelemetry.trace.status import Status, StatusCode


class CollectedSpan(Span):
    """A span, and all that was said of it."""

    def __init__(self, name: str, kind: SpanKind, attributes: Mapping[str, Any], parent: SpanContext) -> None:
        self.name = name
        self.kind = kind
        self.attributes: dict[str, Any] = dict(attributes)
        self.parent = parent
        self.status: tuple[str, str | None] | None = None
        self.exceptions: list[str] = []
        self.ends = 0
        trace = parent.trace_id if parent.is_valid else secrets.randbits(127) + 1
        flags = TraceFlags(TraceFlags.SAMPLED)
        self._context = SpanContext(trace, secrets.randbits(63) + 1, is_remote=False, trace_flags=flags)

    def told(self) -> dict[str, Any]:
        """What a collector would see of it, as JSON, but for what differs between any two spans."""
        return {
            "name": self.name,
            "kind": self.kind.name,
            "attributes": self.attributes,
            "status": self.status,
            "exceptions": self.exceptions,
            "parent": f"{self.parent.span_id:x}" if self.parent.is_valid else None,
            "ends": self.ends,
        }

    def end(self, end_time: int | None = None) -> None:
        self.ends += 1

    def get_span_context(self) -> SpanContext:
        return self._context

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self.attributes.update(attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        pass

    def update_name(self, name: str) -> None:
        self.name = name

    def is_recording(self) -> bool:
        return self.ends == 0

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        if isinstance(status, Status):
            status, description = status.status_code, status.description
        self.status = (status.name, description)

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        self.exceptions.append(type(exception).__name__)


class Collector(TracerProvider):
    """Keeps the spans of all tracers, in the order in which they were started."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []

    def get_tracer(self, *args: Any, **kwargs: Any) -> Tracer:
        return _Tracer(self.spans)


class _Tracer(Tracer):
    def __init__(self, spans: list[CollectedSpan]) -> None:
        self._spans = spans

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Span:
        parent = get_current_span(context).get_span_context()
        span = CollectedSpan(name, kind, attributes or {}, parent)
        self._spans.append(span)
        return span

    @contextmanager
    def start_as_current_span(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, name: str, *args: Any, end_on_exit: bool = True, **kwargs: Any
    ) -> Generator[Span]:
        span = self.start_span(name, *args, **kwargs)
        with use_span(span, end_on_exit=end_on_exit, record_exception=False, set_status_on_exception=False):
            yield span
