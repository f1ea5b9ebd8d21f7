"""Which program makes a `Tasks` object, told by the module that does.

The answer names the default store's file, so it must be the same each time the program starts, also after an upgrade of
its package, and another for another program: two projects may both have a server called "demo" in a `server.py`.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MAIN = ("__main__", "__mp_main__")
"""Names of the module that was started, in its process and in those that `multiprocessing` spawns from it."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})


def callers_globals() -> Mapping[str, Any]:
    """The module that makes the `Tasks` object: the nearest one that is not ours."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("mcp_tasks."):
        frame = frame.f_back
    return {} if frame is None else frame.f_globals


def origin_of(frame_globals: Mapping[str, Any]) -> str:
    """The program to which the module with these globals belongs.

    - A module of an installed package: its dotted name. The folder does not count, because an environment may move.
    - Any other module that can be imported: its dotted name, and a hash of the folder in which its top-level package
      lies.
    - A script, or a file that was loaded under a name it does not have: its absolute path.
    """
    if getattr(sys, "frozen", False):
        # Such a program unpacks its modules into another folder each time.
        return os.path.abspath(sys.executable)
    name, file = _dotted_name(frame_globals), frame_globals.get("__file__")
    if not file:
        return f"{os.getcwd()}/{name or '__main__'}"
    path = Path(os.path.abspath(file))  # with symbolic links as they are: `current` stays, releases come and go
    if name is None or (folder := _import_folder(name, path)) is None:
        return str(path)
    return name if _INSTALLED.intersection(path.parts) else f"{name}-{short_hash(str(folder))}"


def short_hash(text: str) -> str:
    """Eight hexadecimal digits that tell texts apart."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _dotted_name(frame_globals: Mapping[str, Any]) -> str | None:
    """The name by which the module can be imported, if it has one."""
    name, spec = frame_globals.get("__name__"), frame_globals.get("__spec__")
    if spec is None or spec.name in _MAIN:
        return None
    if name in _MAIN:  # python -m package.module
        return spec.name
    known = sys.modules.get(spec.name)
    return spec.name if known is not None and vars(known) is frame_globals else None


def _import_folder(name: str, path: Path) -> Path | None:
    """The folder from which `name` is imported, if the module at `path` really has that name."""
    parts = name.split(".")
    stem = path.name.partition(".")[0]
    if stem == "__init__" and parts[-1] != "__init__":
        parts.append("__init__")
    above = path.parents
    if [*(folder.name for folder in reversed(above[: len(parts) - 1])), stem] != parts:
        return None
    return above[len(parts) - 1]
