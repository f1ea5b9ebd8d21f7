"""What a store may be asked beyond `Store`: whether it is one, whose tasks are in it, and what stands under a key.

Apart from `Store`, because no server needs it: a store of somebody else's that lacks it is as good to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

Standing: TypeAlias = Literal["absent", "older", "current"]
"""Whether `open` would make something new, change what is there, or find it as it needs it."""


@runtime_checkable
class Inspects(Protocol):
    """A store that tells what it is. By shape: the driver of its database may not be there."""

    async def standing(self) -> Standing:
        """What is there. Makes and changes nothing, and may be asked before `open`.

        Raises:
            StoreUnavailable: It cannot be reached now.
            StoreCorrupt: What is there is not a store of ours, or one of a newer release that this one may not use.
        """
        ...

    async def namespaces(self) -> Sequence[str]:
        """Every namespace that has a task or a worker, in order. It need not be quick."""
        ...


@runtime_checkable
class FindsKeys(Protocol):
    """A store that finds a task by its idempotency key without making one."""

    async def id_under(self, key: str, *, namespace: str, owner: str | None) -> str | None:
        """The id of the task that stands under a key, expired or not; None if none does."""
        ...
