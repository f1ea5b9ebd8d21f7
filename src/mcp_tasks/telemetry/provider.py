"""Whether anybody collects spans or metrics in this process, asked on every request and so found out as cheaply."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

from opentelemetry.metrics import NoOpMeterProvider, get_meter_provider
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, get_tracer_provider

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
