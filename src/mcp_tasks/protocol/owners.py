"""Who calls, and whose tasks those are: the one place that says so, for every method and every entry point.

The author's rule names the owner; by default it is the identity in the SDK's access token. Where every task has to have
an owner, a request that has none is refused before anything is looked at, so it learns of no task and makes none.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, cast

from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from mcp_tasks.errors import KeyRefused, OwnerRequired
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.record import TaskRequest
from mcp_tasks.protocol.errors import RpcError, to_error_data
from mcp_tasks.protocol.shapes import EXTENSION_ID, IDEMPOTENCY_KEY, LONGEST_KEY, REPEATED_META_KEY
from mcp_tasks.protocol.versions import UNKNOWN_VERSION, VERSIONS, ProtocolVersion
from mcp_tasks.quiet import get_logger, what

# ---- caller
# Who calls: all that the rules of the protocol need to know of a request, whichever way it came in.


_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What the access token of a request says of its caller: what a rule of the author's own may go by.

    Attributes:
        client_id: The OAuth client: a host, or a machine.
        issuer: Who issued the token; None if the token verifier does not say.
        subject: The person. Unique only for one issuer; None for a machine, and where the verifier does not say.
        scopes: What the token allows.
        claims: What else the token says: a tenant, groups.
        expires_at: When it expires, in seconds since 1970; None if it does not, or the verifier does not say.
    """

    client_id: str
    issuer: str | None = None
    subject: str | None = None
    scopes: tuple[str, ...] = ()
    claims: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    expires_at: float | None = None

    @property
    def person(self) -> str | None:
        """One name for a person, whichever host they use: issuer and subject without the client. None for a token
        without a subject, which stands for no person."""
        return None if self.subject is None else json.dumps([self.issuer, self.subject], ensure_ascii=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """One request's caller.

    Attributes:
        protocol_version: The version of the protocol that the request speaks, which decides the era.
        principal: The authenticated identity behind the request, as one string of client id, issuer and subject; None
            on transports without authentication.
        identity: The same in its parts, with what else the token says.
        capabilities: What the client declared, as JSON: on the request itself or in the handshake, as its era has it.
        client_info: What the client says of itself, as JSON; None if it says nothing.
        headers: The headers of the HTTP request, by lower-case name; empty on other transports.
        version: The row of that version in the table of differences.
        takes_tasks: Whether the client said, for this very request, that it takes tasks as SEP-2663 has them.
        connection: The network connection that the request came on, as the HTTP server names it: host and port of the
            other side. An HTTP server that trusts a proxy names the address that the proxy forwards. Empty if the
            server does not say; None on transports without a network.
    """

    protocol_version: str
    principal: str | None = None
    identity: Identity | None = None
    capabilities: JsonObject = field(default_factory=lambda: _NOTHING)
    client_info: JsonObject | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    connection: str | None = None
    version: ProtocolVersion = field(init=False, repr=False, compare=False)
    takes_tasks: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        version = VERSIONS.get(self.protocol_version, UNKNOWN_VERSION)
        object.__setattr__(self, "version", version)
        object.__setattr__(self, "takes_tasks", version.has_extension and self.declares(EXTENSION_ID))

    def declares(self, extension: str) -> bool:
        """Whether the client declared an extension. A declaration is an object; anything else is not one."""
        extensions = self.capabilities.get("extensions")
        return isinstance(extensions, Mapping) and isinstance(
            cast("Mapping[str, Any]", extensions).get(extension), Mapping
        )


logger: Final = get_logger(__name__)

MOST_NAMED: Final = 100
"""Clients that are warned about by name. Otherwise an attacker who may register clients could fill the log."""

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
        self.local: str | None = local
        self._is_usual = rule is authenticated
        self._warned: set[tuple[str, str]] = set()

    def of(self, caller: Caller) -> str | None:
        """The owner of the caller's tasks; None where they need none, and have none.

        Raises:
            RpcError: -32600, the caller has no owner and needs one; -32603, the author's rule failed, or answered with
                something that is not a name. No store has to tell apart what it would make of it.
        """
        try:
            owner: object = caller.principal if self._is_usual else self._rule(caller)
        except Exception as exc:
            logger.error("the rule of principal= raised %s: the request is refused", _raised(exc))
            raise RpcError(INTERNAL_ERROR, RULE_FAILED) from exc
        if not isinstance(owner, str | None):
            if isinstance(owner, Coroutine):
                owner.close()
            logger.error(
                "principal= must return a str or None, and returned a value of type %r: the request is refused. "
                "It cannot be an async function.",
                type(owner).__name__,
            )
            raise RpcError(INTERNAL_ERROR, RULE_FAILED)
        if self._is_usual and caller.identity is not None and caller.identity.subject is None:
            self._warn(
                caller.identity.client_id,
                "the access tokens of client %r name no subject, so all its users are one owner and see each other's "
                "tasks. That is right for a machine. For people, have the token verifier set AccessToken.subject, or "
                "name the owner with Tasks(principal=...)",
            )
        # An empty name is the answer of a rule that found nothing: all without a name would be the same person.
        if owner:
            return owner
        if not self._required():
            return None
        if self.local and not caller.headers:
            return self.local
        raise self._refusal(caller)

    def known(self, caller: Caller) -> str | None:
        """The owner as far as the rule names one, for a request that is refused already: nothing is said of it."""
        try:
            owner: object = self._rule(caller)
        except Exception:
            # As it did when the request was refused for it, which is in the log.
            return None
        if isinstance(owner, str) and owner:
            return owner
        if isinstance(owner, Coroutine):
            owner.close()
        is_local = owner in (None, "") and not caller.headers and self._required()
        return (self.local or None) if is_local else None

    def _refusal(self, caller: Caller) -> RpcError:
        """The refusal of a request that has no owner and needs one."""
        message = NO_OWNER
        if caller.identity is not None:
            message = NOT_NAMED
            self._warn(
                caller.identity.client_id,
                "the rule of principal= names no owner for access tokens of client %r, and their requests are refused. "
                "A token without a subject stands for no person; if it should be let in, have the rule name an owner "
                "for it",
            )
        error = to_error_data(OwnerRequired(message))
        return RpcError(error.code, error.message, error.data)

    def _warn(self, client_id: str, message: str) -> None:
        """Warn of a client, once, and not of any number of them."""
        if (client_id, message) not in self._warned and len(self._warned) < MOST_NAMED:
            self._warned.add((client_id, message))
            logger.warning(message, client_id)


def _raised(exc: Exception) -> str:
    """What was raised and where, in one line, without what it says: that may quote the token."""
    *_, (frame, line) = traceback.walk_tb(exc.__traceback__)
    return f"{what(exc)} (in {frame.f_code.co_qualname}, {frame.f_code.co_filename}, line {line})"


# ---- idempotency
# Idempotency keys: a caller that did not get the answer to a call makes it again, and gets the same task.


LEAST_CHARACTERS: Final = 22
"""Of a key without authentication: what `secrets.token_urlsafe(16)` gives, 128 bits."""


@dataclass(frozen=True, slots=True)
class CallKey:
    """The idempotency key of a call, as a store keeps it.

    Attributes:
        key: The key that the task of the call stands under.
        fingerprint: A hash of the call: no other call may stand under the same key.
    """

    key: str
    fingerprint: str


def take_key(
    request: TaskRequest, owner: str | None, *, asks_first: bool = False
) -> tuple[TaskRequest, CallKey | None]:
    """Take the idempotency key out of a request: the store and the tool never see it.

    Args:
        owner: The owner of the task; None for a caller that has no name.
        asks_first: Whether the tool may ask by returning, and be called again with the answers.

    Raises:
        RpcError: -32602: it is not a key.
        KeyRefused: The caller has no name, and the key could be guessed.
    """
    if IDEMPOTENCY_KEY not in request.meta:
        return request, None
    key: object = request.meta[IDEMPOTENCY_KEY]
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise RpcError(
            INVALID_PARAMS,
            f"_meta[{IDEMPOTENCY_KEY!r}] must be a string of 1 to {LONGEST_KEY} characters, another one for each "
            "call: a UUID will do",
        )
    if owner is None and len(key) < LEAST_CHARACTERS:
        raise KeyRefused("key_too_short", least=LEAST_CHARACTERS)
    # The first request of a call stands where any call does: a key is one call's, whichever the tool and the entry
    # point.
    is_later = asks_first and (request.request_state is not None or bool(request.input_responses))
    place = [key, request.request_state, sorted(request.input_responses or ())] if is_later else [key]
    call = [request.method, request.name, request.arguments, request.input_responses or {}]
    taken = CallKey(f"idempotency/{_digest(place)}", _digest(call))
    return replace(request, meta=without_key(request.meta)), taken


def without_key(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `_meta` of a call as its tool sees it."""
    if IDEMPOTENCY_KEY not in meta:
        return meta
    return {name: value for name, value in meta.items() if name not in (IDEMPOTENCY_KEY, REPEATED_META_KEY)}


def check_first(meta: Mapping[str, Any]) -> None:
    """Refuse to make a call that may have been made before, of a tool whose calls are not kept.

    Raises:
        KeyRefused: Its caller says that it may have been.
    """
    if meta.get(REPEATED_META_KEY) is True and IDEMPOTENCY_KEY in meta:
        raise KeyRefused("call_not_kept")


def _digest(value: Any) -> str:
    try:
        # ASCII, so that half a character has a spelling as well.
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (RecursionError, TypeError, ValueError) as exc:
        raise RpcError(INVALID_PARAMS, f"The arguments of the call cannot be written as JSON: {exc}") from exc
    return sha256(text.encode()).hexdigest()
