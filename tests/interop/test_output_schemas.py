"""What the TypeScript SDKs' clients make of the schemas of tools that may answer with a handle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks.fallback.service import widened
from tests.fallback.schemas import HANDLE, SHAPES

from .conftest import Begun
from .driving import command, drive


@pytest.fixture(scope="module")
def report(installs: Begun, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Which results each SDK takes, by the name of the schema."""
    cases = {
        name: {"schema": widened(shape.schema), "values": [*shape.good, HANDLE, *shape.bad]}
        for name, shape in SHAPES.items()
    }
    file: Path = tmp_path_factory.mktemp("schemas") / "cases.json"
    file.write_text(json.dumps(cases))
    return drive(command(installs["npm"], "output_schemas.mjs"), [str(file)])


@pytest.mark.parametrize("listing", ["first", "second"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("sdk", ["older", "newest"])
def test_its_clients_take_the_tools_own_results_and_the_handle(report: Any, sdk: str, name: str, listing: str) -> None:
    shape = SHAPES[name]
    expected = [True] * (len(shape.good) + 1) + [False] * len(shape.bad)
    assert report[sdk][listing][name] == expected
