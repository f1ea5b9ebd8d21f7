"""One trace for each task: the call that made it, every run in whatever process, and the questions of the task.

The record keeps the context of the creating call as W3C text, and whoever runs the task goes on with it. Polls and
other requests about a task are in traces of their clients' own; their spans have a link to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from math import inf
from time import monotonic
from typing import Final

from opentelemetry.context import Context
from opentelemetry.metrics import NoOpMeterProvider, get_meter_provider
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracerProvider,
    ProxyTracerProvider,
    SpanContext,
    SpanKind,
    StatusCode,
    get_current_span,
    get_tracer,
    get_tracer_provider,
    set_span_in_context,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mcp_tasks._utils import BoundedDict, short_id
from mcp_tasks.model.json import legible
from mcp_tasks.model.machine import InputAnswered, InputRequested, InputWithdrawn
from mcp_tasks.model.record import InputRequest, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.runtime.observers import TaskChange, Wanted, Watcher
from mcp_tasks.runtime.run import Run

# ---- provider
# Whether anybody collects spans or metrics in this process, asked on every request and so found out as cheaply.


LOOK_AGAIN: Final = 1.0
"""Seconds after which it is asked again whether a provider was set, while there is none. OpenTelemetry looks into the
environment of the process each time that it is asked, which takes longer than much of what a poll takes."""


class Collected:
    """Whether somebody collects. A provider is set once in the life of a process, so that yes is for good."""

    __slots__ = ("_again_at", "_is_set", "_look")

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look
        self._is_set = False
        self._again_at = -inf

    def __call__(self) -> bool:
        """Whether somebody does, as of a second ago at most."""
        if self._is_set:
            return True
        now = monotonic()
        if now < self._again_at:
            return False
        self._again_at = now + LOOK_AGAIN
        self._is_set = self._look()
        return self._is_set


def _has_tracer() -> bool:
    return not isinstance(get_tracer_provider(), ProxyTracerProvider | NoOpTracerProvider)


def _has_meter() -> bool:
    provider = get_meter_provider()
    # The API's own stand-in has no public name. It comes from the API, and whatever collects does not.
    return not isinstance(provider, NoOpMeterProvider) and not type(provider).__module__.startswith(
        "opentelemetry.metrics"
    )


is_traced: Final = Collected(_has_tracer)
"""Whether somebody collects spans in this process."""

is_metered: Final = Collected(_has_meter)
"""Whether somebody collects metrics in this process through OpenTelemetry."""


TRACEPARENT: Final = "traceparent"

TASK: Final = "mcp_tasks.task"
TOOL: Final = "mcp_tasks.tool"
METHOD: Final = "mcp_tasks.method"
ATTEMPT: Final = "mcp_tasks.run.attempt"
RUN_END: Final = "mcp_tasks.run.end"
WORKER: Final = "mcp_tasks.run.worker"
QUESTION: Final = "mcp_tasks.question.method"
QUESTION_END: Final = "mcp_tasks.question.end"
"""Attributes of spans: a contract, see docs/telemetry.md."""

CREATE_SPAN: Final = "tasks.create"
RUN_SPAN: Final = "tasks.run"
QUESTION_SPAN: Final = "tasks.question"

MOST_QUESTIONS: Final = 10_000
"""Open questions whose beginning is remembered. Of others, only the end is known here."""

_W3C: Final = TraceContextTextMapPropagator()
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()

_tracer: Final = get_tracer("mcp-tasks")


class Traces:
    """Makes the traces of one runtime."""

    def trace_of(self, request: TaskRequest) -> str | None:
        """The context of the call: of the span that is current, or what the client says it is in."""
        if is_traced():
            context = get_current_span().get_span_context()
            return _text_of(context if context.is_valid else _beginning(request))
        sent = request.meta.get(TRACEPARENT)
        context = None if not isinstance(sent, str) else context_of(sent)
        return None if context is None else _text_of(context)

    def around(self, run: Run) -> AbstractContextManager[None]:
        """A span of the run, in the trace of its task, and current while its tool is at work."""
        return _run_span(run) if is_traced() else _NOTHING

    def touched(self, record: TaskRecord) -> None:
        """Say on the span of a request which task it is about, and in which trace that is."""
        if not is_traced():
            return
        span = get_current_span()
        if span.is_recording():
            span.set_attribute(TASK, short_id(record.id))
            creation = None if record.trace is None else context_of(record.trace)
            if creation is not None and creation.trace_id != span.get_span_context().trace_id:
                span.add_link(creation)


class QuestionSpans(Watcher):
    """A span for each question, from asking to the answer, made by the process that took the answer. Where another
    process asked, and the question was parked in between, it begins with the answer."""

    def __init__(self) -> None:
        self._asked: BoundedDict[tuple[str, str], datetime] = BoundedDict(MOST_QUESTIONS)

    def wanted(self) -> Collection[type[Wanted]]:
        """Questions, if somebody collects spans."""
        return (InputRequested, InputAnswered, InputWithdrawn) if is_traced() else ()

    def __call__(self, change: TaskChange) -> None:
        """Take note that something was asked, answered or withdrawn."""
        match change.event:
            case InputRequested(requests=requests):
                for key in requests:
                    self._asked[change.task.id, key] = change.at
            case InputAnswered(keys=keys):
                self._end(change, keys, "answered")
            case InputWithdrawn(keys=keys):
                self._end(change, keys, "withdrawn")
            case _:
                pass

    def _end(self, change: TaskChange, keys: Collection[str], how: str) -> None:
        open_before = _open_in(change.before)
        still_open = _open_in(change.after)
        for key in sorted(keys):
            if key not in open_before or key in still_open:
                continue
            since = self._asked.pop((change.task.id, key), change.at)
            span = _tracer.start_span(
                QUESTION_SPAN,
                context=_within(change.task),
                start_time=_nanoseconds(since),
                attributes={
                    **_attributes(change.task),
                    QUESTION: open_before[key].method,
                    QUESTION_END: how,
                },
            )
            span.end(_nanoseconds(change.at))


def _beginning(request: TaskRequest) -> SpanContext:
    """The beginning of a trace for a task that is made outside of any: by code of the server's own, as a rule. Without
    it each run would be in a trace of its own."""
    sent = request.meta.get(TRACEPARENT)
    parent = context_of(sent) if isinstance(sent, str) else None
    span = _tracer.start_span(
        CREATE_SPAN, context=_in_trace_of(parent), attributes={TOOL: legible(request.name), METHOD: request.method}
    )
    span.end()
    return span.get_span_context()


@contextmanager
def _run_span(run: Run) -> Generator[None]:
    record = run.record
    creation = None if record.trace is None else context_of(record.trace)
    span = _tracer.start_span(
        RUN_SPAN,
        # A trace of its own for a task whose call was in none: never a child of whatever happens to be current here.
        context=_within(record),
        kind=SpanKind.CONSUMER,
        attributes={**_attributes(record), ATTEMPT: run.attempt, WORKER: record.worker or ""},
        links=() if creation is None else (Link(creation),),
    )
    with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        yield
        span.set_attribute(RUN_END, _end_of(run))
        if run.record.status is TaskStatus.FAILED:
            span.set_status(StatusCode.ERROR)


def _open_in(record: TaskRecord | None) -> Mapping[str, InputRequest]:
    return {} if record is None else record.inputs.outstanding


def _end_of(run: Run) -> str:
    record = run.record
    if record.is_final:
        return "tool_error" if record.is_error else record.status.value
    if record.worker is None and record.attempt == run.attempt:
        return "parked" if record.wake_at is not None or record.inputs.outstanding else "released"
    return "lost"


def _within(record: TaskRecord) -> Context:
    return _in_trace_of(None if record.trace is None else context_of(record.trace))


def _in_trace_of(parent: SpanContext | None) -> Context:
    return Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())


def _attributes(record: TaskRecord) -> dict[str, str]:
    return {TASK: short_id(record.id), TOOL: legible(record.name), METHOD: record.method}


def context_of(traceparent: str) -> SpanContext | None:
    """What a `traceparent` says, as far as it is one."""
    context = get_current_span(_W3C.extract({TRACEPARENT: traceparent}, Context())).get_span_context()
    return context if context.is_valid else None


def _text_of(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1_000
