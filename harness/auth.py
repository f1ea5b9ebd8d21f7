"""Servers that let nobody in without a token, and the tokens."""

from typing import Any, Final, TypedDict

from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken, TokenVerifier, principal_components
from mcp.server.auth.settings import AuthSettings
from mcp.server.request_state import compact_json
from pydantic import AnyHttpUrl

from mcp_tasks import Tasks

ISSUER: Final = "https://issuer.example"
MACHINES: Final = ("machine", "robot")
"""Clients that no user is behind."""


class Tokens:
    """Takes tokens that say whose they are: `USER[@CLIENT][-MARK][!SECOND]`.

    A mark tells two tokens of one user apart; the second is when the token expires.

    Args:
        known: The users; without any, everybody is one.
        scopes: What a token is good for.
    """

    def __init__(self, *known: str, scopes: tuple[str, ...] = ()) -> None:
        self._known = known
        self._scopes = scopes

    async def verify_token(self, token: str) -> AccessToken | None:
        found = self.token(token)
        return found if not self._known or (found.subject or found.client_id) in self._known else None

    def token(self, token: str) -> AccessToken:
        who, _, second = token.partition("!")
        user, _, client = who.partition("-")[0].partition("@")
        is_machine = user in MACHINES
        return AccessToken(
            token=token,
            client_id=client or (user if is_machine else "app"),
            scopes=list(self._scopes),
            subject=None if is_machine else user,
            claims={"iss": ISSUER, "tenant": user[:1]},
            expires_at=int(second) if second else None,
        )


USERS: Final = Tokens("alice", "bob", "robot")
"""Two people and a machine, for servers that let in nobody else."""


def owner_of(token: str) -> str:
    """Whom the tasks belong to that are made with a token."""
    return compact_json(principal_components(Tokens().token(token)))


class Locks(TypedDict):
    """What `MCPServer` takes to let nobody in without a token."""

    auth: AuthSettings | None
    token_verifier: TokenVerifier | None


def locks(verifier: TokenVerifier | None) -> Locks:
    """What makes a server want tokens that the verifier knows; nothing, without one."""
    wanted = AuthSettings(issuer_url=AnyHttpUrl(ISSUER), resource_server_url=None)
    return {"auth": wanted if verifier is not None else None, "token_verifier": verifier}


def server_with(tasks: Tasks, name: str, verifier: TokenVerifier | None = None) -> MCPServer[Any]:
    """A server with tasks and no tools yet; with a verifier, it lets nobody in without a token."""
    return MCPServer(name, version="1", **tasks.wiring(), log_level="CRITICAL", **locks(verifier))
