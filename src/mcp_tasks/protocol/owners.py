"""Whose tasks a caller's are: the one place that says so, for every method and every way in.

The author's rule names the owner; by default it is the identity in the SDK's access token. Where every task has to have
an owner, a request that has none is refused before anything is looked at, so it learns of no task and makes none.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Final

from mcp_types import INTERNAL_ERROR

from mcp_tasks.errors import OwnerRequired
from mcp_tasks.protocol.caller import Caller
from mcp_tasks.protocol.errors import RpcError, to_error_data

logger: Final = logging.getLogger(__name__)

MOST_NAMED: Final = 100
"""Clients that are warned about by name. Whoever may register clients could otherwise fill the log, and the memory."""

NO_OWNER: Final = "Authentication required: on this server a task has to have an owner, and this request has none"


def authenticated(caller: Caller) -> str | None:
    """The usual rule of who owns a task: the identity that the request was authenticated with."""
    return caller.principal


def local_user() -> str:
    """The owner of what is made over a pipe, or in this process, on a server that requires authentication elsewhere:
    whoever runs the process, on this machine."""
    # Another user, and the same name on another machine, is somebody else: a store may be shared.
    user = os.getuid() if hasattr(os, "getuid") else getpass.getuser()
    return json.dumps(["local", socket.gethostname(), user])


class Owners:
    """Says whose tasks a caller's are.

    Args:
        rule: The author's rule, or the usual one.
        required: Whether every task has to have an owner.
        local: The owner of what comes without HTTP, if the rule names none and one is required; None to refuse it too.
    """

    def __init__(
        self,
        rule: Callable[[Caller], str | None] = authenticated,
        *,
        required: Callable[[], bool] = lambda: False,
        local: str | None = None,
    ) -> None:
        self._rule = rule
        self._required = required
        self._local = local
        self._is_usual = rule is authenticated
        self._warned: set[str] = set()

    def of(self, caller: Caller) -> str | None:
        """The owner of the caller's tasks; None where they need none, and have none.

        Raises:
            RpcError: -32600, the caller has no owner and needs one; -32603, the author's rule answered with something
                that is not a name. No store has to tell apart what it would make of it.
        """
        owner = self._named(caller)
        # An empty name is what a rule gives that found nothing: everybody without one would be the same person.
        if not owner and self._required():
            raise no_owner()
        return owner

    def has(self, caller: Caller) -> bool:
        """Whether the caller's tasks have an owner."""
        return bool(self._named(caller))

    def known(self, caller: Caller) -> str | None:
        """The owner as far as the rule names one, for a request that is refused already: nothing is said of it."""
        owner: object = self._rule(caller)
        if isinstance(owner, Coroutine):
            owner.close()
        return owner if isinstance(owner, str) else None

    def _named(self, caller: Caller) -> str | None:
        owner: object = self._rule(caller)
        if owner is None or isinstance(owner, str):
            if self._is_usual and caller.identity is not None and caller.identity.subject is None:
                self._warn(caller.identity.client_id)
            if not owner and self._local is not None and not caller.headers and self._required():
                return self._local
            return owner
        if isinstance(owner, Coroutine):
            owner.close()
        logger.error(
            "principal= must return a str or None, and returned a value of type %r: the request is refused. "
            "It cannot be an async function.",
            type(owner).__name__,
        )
        raise RpcError(INTERNAL_ERROR, "Internal server error")

    def _warn(self, client_id: str) -> None:
        if client_id in self._warned or len(self._warned) >= MOST_NAMED:
            return
        self._warned.add(client_id)
        logger.warning(
            "the access tokens of client %r name no subject, so all its users are one owner and see each other's "
            "tasks. That is right for a machine. For people, have the token verifier set AccessToken.subject, or name "
            "the owner with Tasks(principal=...)",
            client_id,
        )


def no_owner() -> RpcError:
    """The refusal of a request that has no owner and needs one."""
    error = to_error_data(OwnerRequired(NO_OWNER))
    return RpcError(error.code, error.message, error.data)
