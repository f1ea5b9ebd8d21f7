"""What is looked at when a store is opened: whose keys these are, and whether the server keeps what it is given."""

from __future__ import annotations

from typing import Any, Final, cast

from mcp_tasks.errors import StoreCorrupt, StoreError
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.stores.redis.connection import Connection

logger: Final = get_logger(__name__)

LAYOUT: Final = 1
"""How tasks are kept. A release that keeps them in another way raises it, and reads what older ones kept."""

COMPATIBLE_FROM: Final = 1
"""The first layout whose releases may work beside this one. It stays where it is if something was only added (a field
of a row, a key) that they need not know and do not remove; otherwise it is `LAYOUT`."""

_NOT_DURABLE: Final = (
    "%s keeps tasks in memory alone (appendonly no): what was acknowledged since its last snapshot is lost when it "
    "stops or crashes. Set `appendonly yes`, and `appendfsync always` to lose nothing when the machine fails."
)
_EVICTS: Final = (
    "%s removes keys when its memory is full (maxmemory-policy %s): tasks could be lost. Set `maxmemory-policy "
    "noeviction`."
)
_UP_TO_A_SECOND: Final = (
    "%s writes to its disk once a second (appendfsync %s): if the machine fails, the last second may be lost. "
    "`appendfsync always` loses nothing."
)


async def check_layout(connection: Connection) -> None:
    """Mark the keys as ours, or see that they are.

    Raises:
        StoreCorrupt: They are somebody else's, or of a newer release.
    """
    found = await connection.run("layout", LAYOUT, COMPATIBLE_FROM)
    layout, compatible_from = (int(number) if number and number.isdigit() else 0 for number in found)
    if not layout or not compatible_from:
        raise StoreCorrupt(
            f"{connection.place} has keys that begin with {connection.prefix.decode()} and are not a task store's. "
            "Give the store another prefix."
        )
    if layout > LAYOUT and compatible_from > LAYOUT:
        raise StoreCorrupt(
            f"{connection.place} has tasks in layout {layout}, and this release knows up to {LAYOUT}. Use the release "
            "of mcp-tasks that wrote them, or a newer one."
        )


async def check_persistence(connection: Connection) -> None:
    """Warn if the server may forget tasks. Where that cannot be found out, it is said quietly."""
    try:
        said = _lines(await connection.call("INFO", "persistence")) | _lines(await connection.call("INFO", "memory"))
    except StoreError as exc:
        logger.info("whether the server keeps tasks over a restart could not be checked: %s", exc)
        return
    if said.get("aof_enabled") == "0":
        logger.warning(_NOT_DURABLE, connection.place)
    policy = said.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        logger.warning(_EVICTS, connection.place, policy)
    if said.get("aof_enabled") == "1":
        await _check_sync(connection)


async def _check_sync(connection: Connection) -> None:
    try:
        _, sync = await connection.call("CONFIG", "GET", "appendfsync")
    except (StoreError, ValueError) as exc:
        # Services that are run by others mostly forbid it.
        logger.debug("how often the server writes to its disk could not be checked: %s", what(exc))
        return
    if sync != b"always":
        logger.info(_UP_TO_A_SECOND, connection.place, sync.decode(errors="replace"))


def _lines(answer: Any) -> dict[str, str]:
    """What `INFO` says, which redis-py may have read already."""
    if isinstance(answer, dict):
        return {str(name): str(value) for name, value in cast("dict[Any, Any]", answer).items()}
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in text.splitlines()) if colon}
