"""Whose tasks a caller's are: the one place that says so, for every method and every way in.

The author's rule names the owner; by default it is the identity in the SDK's access token. Where every task has to have
an owner, a request that has none is refused before anything is looked at, so it learns of no task and makes none.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import traceback
from collections.abc import Callable, Coroutine
from typing import Final

from mcp_types import INTERNAL_ERROR

from mcp_tasks.errors import OwnerRequired
from mcp_tasks.protocol.caller import Caller
from mcp_tasks.protocol.errors import RpcError, to_error_data
from mcp_tasks.quiet import get_logger, what

logger: Final = get_logger(__name__)

MOST_NAMED: Final = 100
"""Clients that are warned about by name. Whoever may register clients could otherwise fill the log, and the memory."""

NO_OWNER: Final = "Authentication required: on this server a task has to have an owner, and this request has none"

NOT_NAMED: Final = (
    "You are authenticated, and this server's rule of who owns a task names nobody for you: your access token may lack "
    "what it goes by. Nothing was done"
)

RULE_FAILED: Final = "This server cannot tell whose tasks yours are; its log says why. Nothing was done"


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

    @property
    def local(self) -> str | None:
        """Who has the server to themselves, through a pipe or in this process, where everybody else has a name."""
        return self._local

    def of(self, caller: Caller) -> str | None:
        """The owner of the caller's tasks; None where they need none, and have none.

        Raises:
            RpcError: -32600, the caller has no owner and needs one; -32603, the author's rule failed, or answered with
                something that is not a name. No store has to tell apart what it would make of it.
        """
        owner = self._named(caller)
        if owner is None and self._required():
            raise self._refusal(caller)
        return owner

    def has(self, caller: Caller) -> bool:
        """Whether the caller's tasks have an owner; not, if the rule fails: whatever is asked for then is refused."""
        return self.known(caller) is not None

    def known(self, caller: Caller) -> str | None:
        """The owner as far as the rule names one, for a request that is refused already: nothing is said of it."""
        try:
            owner: object = self._rule(caller)
        except Exception:
            # As it did when the request was refused for it, which is in the log.
            return None
        if isinstance(owner, Coroutine):
            owner.close()
        return self._settled(owner, caller) if owner is None or isinstance(owner, str) else None

    def _named(self, caller: Caller) -> str | None:
        try:
            owner: object = self._rule(caller)
        except Exception as exc:
            logger.error("the rule of principal= raised %s: the request is refused", _raised(exc))
            raise RpcError(INTERNAL_ERROR, RULE_FAILED) from exc
        if owner is None or isinstance(owner, str):
            if self._is_usual and caller.identity is not None and caller.identity.subject is None:
                self._warn(caller.identity.client_id)
            return self._settled(owner, caller)
        if isinstance(owner, Coroutine):
            owner.close()
        logger.error(
            "principal= must return a str or None, and returned a value of type %r: the request is refused. "
            "It cannot be an async function.",
            type(owner).__name__,
        )
        raise RpcError(INTERNAL_ERROR, RULE_FAILED)

    def _settled(self, owner: str | None, caller: Caller) -> str | None:
        """The owner, given what the rule named."""
        # An empty name is what a rule gives that found nothing: all without a name would be the same person.
        if not owner:
            return self._local if self._local and not caller.headers and self._required() else None
        return owner

    def _refusal(self, caller: Caller) -> RpcError:
        """The refusal of a request that has no owner and needs one."""
        if caller.identity is None:
            return _no_owner(NO_OWNER)
        if self._is_new(f"nobody {caller.identity.client_id}"):
            logger.warning(
                "the rule of principal= names no owner for access tokens of client %r, and their requests are refused. "
                "A token without a subject stands for no person; if it should be let in, have the rule name an owner "
                "for it",
                caller.identity.client_id,
            )
        return _no_owner(NOT_NAMED)

    def _warn(self, client_id: str) -> None:
        if not self._is_new(client_id):
            return
        logger.warning(
            "the access tokens of client %r name no subject, so all its users are one owner and see each other's "
            "tasks. That is right for a machine. For people, have the token verifier set AccessToken.subject, or name "
            "the owner with Tasks(principal=...)",
            client_id,
        )

    def _is_new(self, subject: str) -> bool:
        """Whether this has not been warned about before, and is to be."""
        if subject in self._warned or len(self._warned) >= MOST_NAMED:
            return False
        self._warned.add(subject)
        return True


def _no_owner(message: str) -> RpcError:
    error = to_error_data(OwnerRequired(message))
    return RpcError(error.code, error.message, error.data)


def _raised(exc: Exception) -> str:
    """What was raised and where, in one line, without what it says: that may quote the token."""
    *_, (frame, line) = traceback.walk_tb(exc.__traceback__)
    return f"{what(exc)} (in {frame.f_code.co_qualname}, {frame.f_code.co_filename}, line {line})"
