"""Which program makes a `Tasks` object, told by the file of the module that does.

The answer names the default store's file. So it must be the same however the program is started: as a script, by
`python -m`, or imported by `uvicorn x:app` or `mcp-tasks worker x:server`. And it must be another for another program:
two projects may both have a server called "demo" in a `server.py`.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_INSTALLED: Final = ("site-packages", "dist-packages")


def callers_globals() -> Mapping[str, Any]:
    """The module that makes the `Tasks` object: the nearest one that is not ours."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("mcp_tasks."):
        frame = frame.f_back
    return {} if frame is None else frame.f_globals


def origin_of(frame_globals: Mapping[str, Any]) -> str:
    """The program to which the module with these globals belongs.

    - A module of an installed package: its dotted name. The folder does not count, because an environment may move.
    - Any other module: the path of its file, with symbolic links resolved. The working directory, `sys.path` and the
      name under which it was loaded do not count, because they depend on how it was started.
    """
    if getattr(sys, "frozen", False):
        # Such a program unpacks its modules into another folder each time.
        return os.path.abspath(sys.executable)
    file = frame_globals.get("__file__")
    if not file:
        return f"{os.getcwd()}/{frame_globals.get('__name__') or '__main__'}"
    path = Path(os.path.realpath(file))
    above = [index for index, part in enumerate(path.parts) if part in _INSTALLED]
    if not above:
        return str(path)
    name = ".".join((*path.parts[above[-1] + 1 : -1], path.name.partition(".")[0]))
    return name.removesuffix(".__init__")


def short_hash(text: str) -> str:
    """Eight hexadecimal digits that tell texts apart."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
