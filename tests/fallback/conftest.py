"""Simulated time by all clocks."""

import asyncio
import time

import pytest


@pytest.fixture
async def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time goes by but that of the event loop, however busy the machine is."""
    monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
