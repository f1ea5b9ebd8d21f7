"""Numbers that a benchmark is told."""

from __future__ import annotations

import argparse

import pytest

from bench import expiry
from bench.options import at_least
from harness.processes import python, run


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", ""])
def test_a_count_is_whole_and_at_least_what_is_said(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number of at least 1"):
        at_least(1)(text)
    assert at_least(1)("1") == 1


@pytest.mark.parametrize("text", ["0", "nan", "inf", "soon"])
def test_a_measure_is_a_number_that_has_an_end(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a number of at least 0\.1"):
        at_least(0.1)(text)
    assert at_least(0.1)("0.5") == 0.5


def test_a_benchmark_refuses_them_before_it_does_anything() -> None:
    done = run(python(expiry.__name__, "--tasks", "0"))
    assert done.returncode == 2
    assert "argument --tasks: '0' is not a whole number of at least 1" in done.stderr
    assert not done.stdout
