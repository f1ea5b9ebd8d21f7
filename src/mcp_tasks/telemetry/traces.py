"""One trace for each task: the call that created it, its runs in all processes, and its questions.

The record keeps the context of the creating call as W3C text, and every run continues that trace. Polls and other
requests about a task are in traces of their clients' own; their spans have a link to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
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
from mcp_tasks.model.record import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.runtime.observers import TaskChange, Wanted, Watcher
from mcp_tasks.runtime.run import Run

LOOK_AGAIN: Final = 1.0
"""Seconds between two checks for a provider, while there is none. OpenTelemetry reads the environment of the process at
each check, which takes longer than much of a poll, and every request asks."""


class Collected:
    """Whether a provider collects. It is set once in the life of a process, so yes is for good."""

    __slots__ = ("_again_at", "_is_set", "_look")

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look
        self._is_set = False
        self._again_at = -inf

    def __call__(self) -> bool:
        """Whether there is one, as of a second ago at most."""
        if not self._is_set and (now := monotonic()) >= self._again_at:
            self._again_at = now + LOOK_AGAIN
            self._is_set = self._look()
        return self._is_set


def _has_meter() -> bool:
    provider = get_meter_provider()
    # The API's own placeholder has no public name. It is in the API's module, and a real provider is not.
    return not isinstance(provider, NoOpMeterProvider) and not type(provider).__module__.startswith(
        "opentelemetry.metrics"
    )


is_traced: Final = Collected(lambda: not isinstance(get_tracer_provider(), ProxyTracerProvider | NoOpTracerProvider))
"""Whether spans are collected in this process."""

is_metered: Final = Collected(_has_meter)
"""Whether metrics are collected in this process through OpenTelemetry."""


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
"""Open questions whose start is remembered. The span of another begins with its answer."""

_W3C: Final = TraceContextTextMapPropagator()
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()

_tracer: Final = get_tracer("mcp-tasks")


class Traces:
    """Makes the traces of one runtime."""

    def trace_of(self, request: TaskRequest) -> str | None:
        """The context of the call: of the current span, or the one that the client sent."""
        sent = context_of(request.meta.get(TRACEPARENT))
        if is_traced():
            context = get_current_span().get_span_context()
            if not context.is_valid:
                # The task is created outside of any span, usually by the server's own code. Without a span of its own
                # each run would be in a trace of its own.
                attributes = {TOOL: legible(request.name), METHOD: request.method}
                span = _tracer.start_span(CREATE_SPAN, context=_in_trace_of(sent), attributes=attributes)
                span.end()
                context = span.get_span_context()
        elif sent is None:
            return None
        else:
            context = sent
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def around(self, run: Run) -> AbstractContextManager[None]:
        """A span of the run, in the trace of its task, and current while its tool runs."""
        return _run_span(run) if is_traced() else _NOTHING

    def touched(self, record: TaskRecord) -> None:
        """Note on the span of a request which task it is about, and in which trace that is."""
        if not is_traced():
            return
        span = get_current_span()
        if span.is_recording():
            span.set_attribute(TASK, short_id(record.id))
            creation = context_of(record.trace)
            if creation is not None and creation.trace_id != span.get_span_context().trace_id:
                span.add_link(creation)


class QuestionSpans(Watcher):
    """A span for each question, from asking to the answer, made by the process that took the answer. If another process
    asked, and the run was suspended in between, the span begins with the answer."""

    def __init__(self) -> None:
        self._asked: BoundedDict[tuple[str, str], datetime] = BoundedDict(MOST_QUESTIONS)

    def wanted(self) -> Collection[type[Wanted]]:
        """Questions, if spans are collected."""
        return (InputRequested, InputAnswered, InputWithdrawn) if is_traced() else ()

    def __call__(self, change: TaskChange) -> None:
        """Note that something was asked, answered or withdrawn."""
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
        task = change.task
        for key in sorted(keys):
            question = None if change.before is None else change.before.inputs.outstanding.get(key)
            if question is None or (change.after is not None and key in change.after.inputs.outstanding):
                continue
            since = self._asked.pop((task.id, key), change.at)
            span = _tracer.start_span(
                QUESTION_SPAN,
                context=_in_trace_of(context_of(task.trace)),
                start_time=_nanoseconds(since),
                attributes={**_attributes(task), QUESTION: question.method, QUESTION_END: how},
            )
            span.end(_nanoseconds(change.at))


@contextmanager
def _run_span(run: Run) -> Generator[None]:
    record = run.record
    creation = context_of(record.trace)
    span = _tracer.start_span(
        RUN_SPAN,
        # A trace of its own for a task whose call was in none: never a child of the span that happens to be current.
        context=_in_trace_of(creation),
        kind=SpanKind.CONSUMER,
        attributes={**_attributes(record), ATTEMPT: run.attempt, WORKER: record.worker or ""},
        links=() if creation is None else (Link(creation),),
    )
    with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        yield
        span.set_attribute(RUN_END, _end_of(run))
        if run.record.status is TaskStatus.FAILED:
            span.set_status(StatusCode.ERROR)


def _end_of(run: Run) -> str:
    record = run.record
    if record.is_final:
        return "tool_error" if record.is_error else record.status.value
    if record.worker is None and record.attempt == run.attempt:
        return "parked" if record.wake_at is not None or record.inputs.outstanding else "released"
    return "lost"


def _in_trace_of(parent: SpanContext | None) -> Context:
    return Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())


def _attributes(record: TaskRecord) -> dict[str, str]:
    return {TASK: short_id(record.id), TOOL: legible(record.name), METHOD: record.method}


def context_of(traceparent: object) -> SpanContext | None:
    """The context that a `traceparent` stands for; None if it is not a valid one."""
    if not isinstance(traceparent, str):
        return None
    context = get_current_span(_W3C.extract({TRACEPARENT: traceparent}, Context())).get_span_context()
    return context if context.is_valid else None


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1_000
