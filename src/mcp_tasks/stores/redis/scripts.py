"""The Lua scripts, each made of files in `lua/`: what several need, and what is its own.

A script is one round trip, and nobody sees it half done. It is sent by its hash; a server that does not know it (it is
new to it, was restarted, or was told to forget: `SCRIPT FLUSH`) is sent the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

_NEEDED: Final[Mapping[str, Sequence[str]]] = {
    "create": ("indexes", "keeping", "shares", "sealed"),
    "save": ("indexes", "keeping", "sealed"),
    "set_note": ("sealed",),
    "reseal": ("indexes",),
    "delete": ("indexes", "keeping"),
    "forget_expired": ("indexes", "keeping"),
    "hand_out": ("indexes", "shares"),
    "hand_back": ("indexes",),
    "usage": ("indexes",),
}
"""What a script needs before its own file. Not more: a server reads all of it each time."""

WRITES: Final = frozenset(
    {
        *("create", "save", "set_note", "delete", "forget_expired", "hand_out", "hand_back", "heartbeat", "retire"),
        *("layout", "reseal"),
    }
)
"""The scripts that change something."""


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
    text = b"\n".join(map(_text, ("arguments", *_NEEDED.get(name, ()), name)))
    # How Redis names scripts; nothing depends on it that anybody could forge.
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest())


def _text(name: str) -> bytes:
    return (files("mcp_tasks.stores.redis") / "lua" / f"{name}.lua").read_bytes()
