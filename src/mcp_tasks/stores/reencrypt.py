"""`mcp-tasks encrypt`: all that a store keeps is encrypted with the first key, also if it was with another, or not.

It can be stopped at any time, and goes on where it was when it is run again. Until encryption has been turned on for
all of a store, no server gets in, and from those that are in nothing plain is taken any more. While a key is changed
servers that have both may be at work.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcp_tasks.encryption import Cipher
from mcp_tasks.errors import StoreError, StoreUnavailable, UsageError
from mcp_tasks.model.values import POSTGRES, REDIS, with_plain_scheme
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.encryption import Resealed
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.stores.sqlite.file import translate
from mcp_tasks.stores.sqlite.schema import prepare
from mcp_tasks.stores.sqlite.sealing import encrypt_file
from mcp_tasks.stores.url import store_from_url

if TYPE_CHECKING:
    from mcp_tasks.stores.postgres.database import Connection as PostgresConnection

WATCH: Final = 6.0
"""Seconds for which heartbeats are watched: longer than any process whose lease is the usual one lets pass."""


async def encrypt_store(url: str, cipher: Cipher, *, watch: float = WATCH) -> Resealed:
    """Encrypt all that the store behind a URL keeps.

    Raises:
        UsageError: The URL names no store, or one in memory.
        StoreUnavailable: It is in use.
        EncryptionMismatch: It is encrypted with a key that is not there.
    """
    plain_url, codec = with_plain_scheme(url), Codec(cipher)
    if plain_url.startswith(POSTGRES):
        return await _postgres(plain_url, codec, watch)
    if plain_url.startswith(REDIS):
        return await _redis(plain_url, codec, watch)
    store = store_from_url(url)
    if not isinstance(store, SqliteStore):
        raise UsageError("tasks in memory are nowhere at rest, and there is nothing to encrypt")
    return await asyncio.to_thread(_sqlite, store.path, codec)


def _sqlite(path: Path, codec: Codec) -> Resealed:
    if not path.exists():
        raise UsageError(f"there is no file {str(path)!r}: no server has kept tasks there yet")
    try:
        prepare(path, namespace="", patience=1)
        return encrypt_file(path, codec)
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc


async def _postgres(url: str, codec: Codec, watch: float) -> Resealed:
    # Here, because what it needs is not always installed.
    import psycopg

    from mcp_tasks.stores.postgres import sealing
    from mcp_tasks.stores.postgres.database import name_of, prepare, translate

    place = name_of(url)

    async def encrypted(connection: PostgresConnection) -> Resealed:
        await prepare(connection, place)
        turns_on = await sealing.turns_on(connection, codec, place)
        if turns_on:
            await _check_quiet(lambda: sealing.heartbeats(connection), watch, place)
        await sealing.begin_encrypting(connection, codec, place)
        return await sealing.encrypt_tables(connection, codec, vacuum=turns_on)

    try:
        async with await psycopg.AsyncConnection.connect(
            url, autocommit=True, fallback_application_name="mcp-tasks"
        ) as connection:
            return await encrypted(connection)
    except StoreError:
        raise
    except (psycopg.Error, OSError) as exc:
        raise translate(exc, place) from exc


async def _redis(url: str, codec: Codec, watch: float, prefix: str = "mcp-tasks") -> Resealed:
    from mcp_tasks.stores.redis import sealing
    from mcp_tasks.stores.redis.connection import Connection, check_layout

    connection = Connection(url, prefix=b"{" + prefix.encode() + b"}:", max_connections=4, timeout=30)
    connection.open()
    try:
        await check_layout(connection)
        if await sealing.turns_on(connection, codec):
            await _check_quiet(lambda: sealing.heartbeats(connection), watch, connection.place)
        await sealing.begin_encrypting(connection, codec)
        return await sealing.encrypt_keys(connection, codec)
    finally:
        await connection.close()


async def _check_quiet(heartbeats: Callable[[], Awaitable[Mapping[str, int]]], watch: float, place: str) -> None:
    """Refuse to go on if any process runs tools in the store: what it writes from then on would be refused. One that
    only serves does not beat, and is not noticed until then."""
    if not (before := await heartbeats()):
        return
    await asyncio.sleep(watch)
    if await heartbeats() != before:
        raise StoreUnavailable(f"{place} is in use. Stop the servers and workers that have it, and try again.")
