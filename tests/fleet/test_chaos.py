"""A fleet under fire for a little while: `make chaos` for longer."""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

import pytest

from harness.backends import BackendName
from tests.fleet.chaos import Chaos

SECONDS = 6.0
SEED = 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", get_args(BackendName))
def test_nothing_is_lost_doubled_or_stuck(name: str, tmp_path: Path) -> None:
    verdict = Chaos(backend=cast(BackendName, name), seconds=SECONDS, seed=SEED).run(tmp_path)
    assert verdict.is_good, "\n".join([*verdict.details(), verdict.line])
    assert verdict.acknowledged > SECONDS
