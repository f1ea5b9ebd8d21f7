"""Who calls: all that the rules of the protocol need to know of a request, whichever way it came in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeGuard

from mcp_tasks.core.json import JsonObject

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

    def declares(self, extension: str) -> bool:
        """Whether the client declared an extension. A declaration is an object; anything else is not one."""
        extensions = self.capabilities.get("extensions")
        return _is_object(extensions) and _is_object(extensions.get(extension))


def _is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    # A dictionary as a rule, and to tell it by its type takes a tenth of the time.
    return type(value) is dict or isinstance(value, Mapping)
