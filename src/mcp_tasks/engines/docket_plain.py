"""`PlainDocket`: a docket that unpickles nothing of what is on the server.

Docket pickles the arguments of what it carries, and unpickles what it reads: the arguments of each message, and the
values of strikes. So whoever can write to the server could run code in every process that reads. Here an id is carried
in the key of its message, which is text. The arguments of a message are replaced before Docket sees them, and strikes,
which are not used here, are not read.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, cast
from urllib.parse import quote, unquote
from uuid import uuid4

from docket import Docket
from docket.strikelist import StrikeList
from redis.asyncio import Redis

from mcp_tasks.quiet import get_logger

logger: Final = get_logger(__name__)

READS: Final = ("XREADGROUP", "XAUTOCLAIM", "XCLAIM")
"""The commands that give messages."""

_NO_NAMES: Final = pickle.dumps({})


def key_of(task_id: str) -> str:
    """The key of a message that carries an id. Each is new: Docket drops a message with the key of one that runs."""
    return f"{uuid4().hex}/{quote(task_id, safe='', errors='surrogatepass')}"


class PlainDocket(Docket):
    """Reads the keys of messages, and no pickles."""

    @property
    def strike_list(self) -> StrikeList:
        """One that is this process's alone."""
        return self._own_strikes

    @strike_list.setter
    def strike_list(self, _: StrikeList) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        # Docket makes one that reads from the server; without a URL there is no server.
        self._own_strikes = StrikeList(name=self.name)

    @asynccontextmanager
    async def redis(self) -> AsyncGenerator[Any]:
        """The client with which Docket reads, whose messages have no pickles of others."""
        async with super().redis() as client:
            _guard(cast("Redis", client))
            yield client


def _guard(client: Redis) -> None:
    for command in READS:
        callback: Any = client.response_callbacks.get(command)
        if not (isinstance(callback, partial) and callback.func is _read):
            client.set_response_callback(command, partial(_read, callback))


def _read(parse: Any, response: Any, **options: Any) -> Any:
    found = response if parse is None else parse(response, **options)
    _replace_arguments(found)
    return found


def _replace_arguments(found: Any) -> None:
    """Give each message in an answer of the server the id of its key as its one argument."""
    if isinstance(found, list | tuple):
        for each in cast("list[Any]", found):
            _replace_arguments(each)
    elif isinstance(found, dict):
        message = cast("dict[Any, Any]", found)
        if b"key" in message or b"args" in message or b"kwargs" in message:
            message[b"args"], message[b"kwargs"] = pickle.dumps(_arguments(message)), _NO_NAMES
        else:
            for each in message.values():
                _replace_arguments(each)


def _arguments(message: Mapping[Any, Any]) -> tuple[str, ...]:
    _, slash, quoted = cast("bytes", message.get(b"key", b"")).decode("ascii", "replace").partition("/")
    if not slash:
        logger.warning("a message on the server that carries tasks is none of ours, and is passed over")
        return ()
    return (unquote(quoted, errors="surrogatepass"),)
