"""Recipes need processes that can be stopped by signals."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.deploy.recipes import Site, site

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They are recipes for POSIX."""
    for item in items:
        if item.path.parent == HERE and os.name == "nt":
            item.add_marker(pytest.mark.skip(reason="the recipes are for POSIX"))


@pytest.fixture
def place(tmp_path: Path) -> Generator[Site]:
    """A folder with the files of the page."""
    with site(tmp_path) as made:
        yield made
