"""Options of the benchmarks: numbers that make no sense are refused before anything is started."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

N = TypeVar("N", int, float)


def at_least(least: N) -> Callable[[str], N]:
    """What reads a number for `argparse`: a whole one if the least is, and none below it."""
    kind = type(least)
    what = "a whole number" if kind is int else "a number"

    def read(text: str) -> N:
        try:
            value = kind(text)
        except ValueError:
            value = kind(least - 1)
        if not (value >= least and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} of at least {least:g}")
        return value

    return read
