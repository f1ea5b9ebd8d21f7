"""A fleet under fire for a little while: `make chaos` for longer. And that whoever judges it can find fault."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from harness.backends import BackendName
from tests.fleet.chaos import Chaos
from tests.fleet.conftest import BACKENDS

SECONDS = 10.0
SEED = 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BACKENDS)
def test_nothing_is_lost_doubled_or_stuck(name: str, tmp_path: Path) -> None:
    verdict = Chaos(backend=cast(BackendName, name), seconds=SECONDS, seed=SEED).run(tmp_path)
    assert verdict.is_good, "\n".join([*verdict.details(), verdict.line])
    assert verdict.acknowledged > SECONDS


@pytest.mark.timeout(300)
def test_without_the_fence_something_is_found_to_be_wrong(tmp_path: Path) -> None:
    verdict = Chaos(backend="sqlite", seconds=4.0, seed=SEED, fence="removed", settled_in=5.0).run(tmp_path)
    assert verdict.doubled or verdict.wrong or verdict.stuck


@pytest.mark.timeout(300)
def test_slow_writes_alone_are_no_fault(tmp_path: Path) -> None:
    verdict = Chaos(backend="sqlite", seconds=4.0, seed=SEED, fence="slow").run(tmp_path)
    assert verdict.is_good, "\n".join([*verdict.details(), verdict.line])
