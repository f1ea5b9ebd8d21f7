"""Engines on Postgres as other processes make them."""

from __future__ import annotations

from datetime import timedelta

from mcp_tasks.engines import EVERYTHING, Execute, Serves
from mcp_tasks.engines.procrastinate import Pace, ProcrastinateEngine

QUICK = Pace(poll=timedelta(milliseconds=100), heartbeat=timedelta(milliseconds=200), dead=timedelta(seconds=1))

SLOW = Pace(dead=timedelta(minutes=10))
"""At which nothing is given to another worker while a test lasts."""


def make_engine(url: str) -> ProcrastinateEngine:
    return ProcrastinateEngine(url, concurrency=4, pace=QUICK)


class EngineOfOne(ProcrastinateEngine):
    """An engine that takes tasks of one namespace and its one tool, whatever it is told."""

    def __init__(self, url: str, namespace: str) -> None:
        super().__init__(url, pace=SLOW)
        self._of = namespace

    async def start(self, execute: Execute | None, serves: Serves = EVERYTHING) -> None:
        await super().start(execute, Serves(namespace=self._of, tools=("tool",)))
