"""Engines as the tests make them, here and in other processes."""

from datetime import timedelta

from examples.celery_engine import CeleryCarrier, celery_engine
from mcp_tasks.engines import RemoteEngine
from mcp_tasks.engines.docket import DocketCarrier
from mcp_tasks.engines.procrastinate import Pace, ProcrastinateEngine

QUICK = Pace(poll=timedelta(milliseconds=100), heartbeat=timedelta(milliseconds=200), dead=timedelta(seconds=1))

TOLD = Pace(poll=timedelta(minutes=10))
"""Of a worker that learns of jobs by notifications alone."""

SOON = timedelta(seconds=1)
"""After which Docket carries an id again that was read by a process which died."""

WATCH = timedelta(seconds=0.5)


def docket(url: str, concurrency: int = 4) -> RemoteEngine:
    return RemoteEngine(DocketCarrier(url, redelivery=SOON, idle_check=SOON / 4, watch=WATCH), concurrency)


def procrastinate(url: str, concurrency: int = 4) -> ProcrastinateEngine:
    return ProcrastinateEngine(url, concurrency=concurrency, pace=QUICK)


def celery(broker: str) -> RemoteEngine:
    engine = celery_engine(broker, 4)
    assert isinstance(engine.carrier, CeleryCarrier)
    # How long the end of taking may take; a second otherwise.
    engine.carrier.app.conf.broker_transport_options |= {"polling_interval": 0.1}
    return engine
