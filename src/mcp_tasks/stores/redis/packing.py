"""Commands put together by hiredis. The driver has it do so where it blocks, and not where it is awaited: in Python the
thirty arguments of one write took a seventh of a worker's time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from redis.asyncio.connection import AbstractConnection

try:
    import hiredis
except ImportError:  # pragma: no cover - the extra installs it
    _pack: Callable[..., bytes] | None = None
else:
    _pack = cast("Callable[..., bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]

_Base = AbstractConnection if TYPE_CHECKING else object


@cache
def packing(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """The same kind of connection, with quicker hands; the same one where there is no hiredis."""
    return kind if _pack is None else type(f"Packing{kind.__name__}", (_Packing, kind), {})


class _Packing(_Base):
    def pack_command(self, *args: Any) -> list[bytes]:
        """One command, ready to be sent."""
        name: str | bytes = args[0]
        # Of a command in two words the driver makes two arguments.
        has_two_words = " " in name if isinstance(name, str) else b" " in name
        return super().pack_command(*args) if _pack is None or has_two_words else [_pack(args)]
