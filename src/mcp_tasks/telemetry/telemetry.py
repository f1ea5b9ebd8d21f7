"""All telemetry of one `Tasks` object: it observes each of its runtimes, and keeps counting between them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from os import PathLike
from typing import Any, Final

from mcp_tasks.errors import InvalidOption
from mcp_tasks.model.json import legible
from mcp_tasks.model.values import needing_extra
from mcp_tasks.runtime import Observer, TaskRuntime
from mcp_tasks.stores.base import Store
from mcp_tasks.telemetry.audit import Audit, AuditLog
from mcp_tasks.telemetry.metrics import LOST_RUNS, Gauges, Meter, Metric, Numbers, Served, timed
from mcp_tasks.telemetry.traces import QuestionSpans, Traces, is_metered

LOOK_EVERY: Final = 10.0
"""Seconds between two reads of the store for OpenTelemetry, which cannot wait for one when it exports."""

_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one `Tasks` object, for Prometheus: an ASGI app, or an endpoint of a server's own route.

        server.custom_route("/metrics", methods=["GET"])(tasks.metrics.endpoint)

    Names, units and labels are in docs/telemetry.md. Nothing in them is about callers or the content of tasks.
    """

    def __init__(self, numbers: Numbers, gauges: Gauges) -> None:
        with needing_extra("the page of metrics", "prometheus"):
            from mcp_tasks.telemetry.prometheus import exposition
        self._numbers = numbers
        self._gauges = gauges
        self._exposition = exposition

    async def text(self, *, without: Collection[Metric] = ()) -> str:
        """The page, as Prometheus reads it, without metrics that the same page gets from elsewhere."""
        await self._gauges.look()
        return self._exposition(self._numbers, self._gauges.values(), without)

    async def endpoint(self, request: Any) -> Any:
        """The answer to a request, for `server.custom_route`."""
        return self

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a GET with the page: an ASGI app."""
        if scope["type"] != "http":
            raise ValueError(f"the metrics are a page of HTTP, and this is {scope['type']!r}")
        found = scope["method"] in ("GET", "HEAD")
        body = (await self.text()).encode() if found else b"Method Not Allowed\n"
        headers = [(b"content-type", _TEXT), (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200 if found else 405, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


class Telemetry:
    """Observes the tasks of one `Tasks` object.

    Args:
        audit: The file of the audit log, if there is one.
        served: The counts of the fast path.
        knows: Whether the server has a tool of that name.

    Raises:
        InvalidOption: The file is no path.
    """

    def __init__(
        self,
        audit: str | PathLike[str] | None,
        *,
        served: Callable[[], Served],
        knows: Callable[[str], bool],
    ) -> None:
        if audit is not None and not (isinstance(audit, str | PathLike) and os.fspath(audit)):
            raise InvalidOption(f"audit must be the path of a file, like 'audit.jsonl', got {audit!r}")
        self.traces: Traces = Traces()
        self._audit_path = audit
        self._knows = knows
        self._numbers = Numbers()
        self._gauges = Gauges(served)
        self._metrics: Metrics | None = None
        self._looking: asyncio.Task[None] | None = None
        self._instruments: object | None = None

    @property
    def metrics(self) -> Metrics:
        """The metrics for Prometheus. They are counted from the first use of this property.

        Raises:
            MissingExtra: `prometheus_client` is not installed.
        """
        if self._metrics is None:
            self._metrics = Metrics(self._numbers, self._gauges)
        return self._metrics

    def observers(self, namespace: str) -> Sequence[Observer]:
        """The observers of a new runtime."""
        log = AuditLog(self._audit_path, server=namespace)
        meter = Meter(self._numbers, log, is_counted=self._is_counted, knows=self._knows)
        return [Audit(log), meter, QuestionSpans()]

    def timed(self, store: Store) -> Store:
        """The store, timed if the times are exported."""
        return timed(store, self._numbers) if self._is_counted() else store

    def begin(self, runtime: TaskRuntime, tools: Collection[str] = ()) -> None:
        """A runtime has started, for these tools."""
        for tool in tools:
            # The process that notices a lost run may never have run the tool itself.
            self._numbers.expect(LOST_RUNS, legible(tool))
        self._gauges.runtime = runtime
        if is_metered():
            if self._instruments is None:
                from mcp_tasks.telemetry.otel import Instruments

                self._instruments = Instruments(self._numbers, self._gauges, runtime.namespace)
            self._looking = asyncio.create_task(self._keep_looking(), name="mcp-tasks-metrics")

    def end(self) -> None:
        """The runtime has stopped."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        self._gauges.leave()

    def _is_counted(self) -> bool:
        return self._metrics is not None or is_metered()

    async def _keep_looking(self) -> None:
        while True:
            await self._gauges.look()
            await asyncio.sleep(LOOK_EVERY)
