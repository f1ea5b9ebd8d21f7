"""Recipes need processes that can be stopped by signals."""

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE and os.name == "nt":
            item.add_marker(pytest.mark.skip(reason="the recipes are for POSIX"))
