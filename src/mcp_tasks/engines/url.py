"""One URL decides who runs the tools: this process alone, or a fleet of workers that a database or a broker feeds."""

from __future__ import annotations

from typing import Final

from mcp_tasks.core.extras import needing_extra
from mcp_tasks.core.urls import POSTGRES, REDIS, shown, with_plain_scheme
from mcp_tasks.engines.base import Engine
from mcp_tasks.engines.local import LocalEngine
from mcp_tasks.engines.remote import Carrier, RemoteEngine
from mcp_tasks.errors import UsageError

LOCAL: Final = "local"

_OF_ONE_MACHINE: Final = ("sqlite:", "memory:")


def engine_beside(url: str, concurrency: int) -> Engine:
    """The engine that goes with the URL of a store: the local one beside those of one machine.

    Raises:
        UsageError: The URL names no engine this release knows.
        MissingExtra: What the engine needs is not installed.
    """
    return engine_from_url(LOCAL if with_plain_scheme(url).startswith(_OF_ONE_MACHINE) else url, concurrency)


def engine_from_url(url: str, concurrency: int) -> Engine:
    """The engine that a URL names: `local`, `postgresql://…` or `redis://…`.

    Raises:
        UsageError: The URL names no engine this release knows.
        MissingExtra: What the engine needs is not installed.
    """
    url = with_plain_scheme(url)
    if url == LOCAL:
        return LocalEngine(concurrency)
    if url.startswith(POSTGRES):
        return _procrastinate(url, concurrency)
    if url.startswith(REDIS):
        return RemoteEngine(_docket(url, concurrency), concurrency)
    raise UsageError(f"{shown(url)} names no engine; use 'local', postgresql://…, redis://…, or pass an Engine object")


def _procrastinate(url: str, concurrency: int) -> Engine:
    with needing_extra("carrying tasks by Postgres", "postgres"):
        from mcp_tasks.engines.procrastinate import ProcrastinateEngine
    return ProcrastinateEngine(url, concurrency)


def _docket(url: str, concurrency: int) -> Carrier:
    with needing_extra("carrying tasks by Redis", "redis"):
        from mcp_tasks.engines.docket import BATCH, DocketCarrier
    return DocketCarrier(url, batch=min(concurrency, BATCH))
