"""The Lua scripts, one file each in `lua/`, and the arguments that each takes.

A script is one round trip, and nobody sees it half done. It is sent by its hash; a server that does not know it (it is
new to it, was restarted, or was told to forget: `SCRIPT FLUSH`) is sent the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """One script.

    Attributes:
        name: What it is called.
        text: What the server runs.
        digest: What the server knows it by.
    """

    name: str
    text: bytes
    digest: str


@cache
def script(name: str) -> Script:
    """The script in the file of that name."""
    text = _text("common") + b"\n" + _text(name)
    # How Redis names scripts; nothing depends on it that anybody could forge.
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest())


def _text(name: str) -> bytes:
    return (files("mcp_tasks.stores.redis") / "lua" / f"{name}.lua").read_bytes()
