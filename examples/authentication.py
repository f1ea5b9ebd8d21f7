"""A server that lets nobody in without a token, and whose tasks are there for their owners alone.

    export TOKEN_SECRET=$(python -c 'import secrets; print(secrets.token_hex(32))')
    python examples/authentication.py serve &
    python examples/authentication.py visit http://127.0.0.1:8000/mcp

`visit` is two users, Ann and Bob, and says what each of them sees. In place of `token_for` there is an authorization
server in real life, and in place of the shared secret its public keys: `jwt.PyJWKClient(...)`. The rest stays.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import jwt
from mcp import Client
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context
from pydantic import AnyHttpUrl

from mcp_tasks import Tasks, current_task
from mcp_tasks.client import TaskHandle, TasksClient, reconnecting_http, resume_task, start_task
from mcp_tasks.errors import UnknownTask

ISSUER = "https://login.example.com"
RESOURCE = os.environ.get("RESOURCE_URL", "http://127.0.0.1:8000/mcp")
# Nothing that could be known: without a secret from outside, nobody gets in.
SECRET = os.environ.get("TOKEN_SECRET") or secrets.token_hex(32)
NO_SECRET = """\
TOKEN_SECRET is not set. Make one, the same for `serve` and `visit`:
  export TOKEN_SECRET=$(python -c 'import secrets; print(secrets.token_hex(32))')"""


class JwtVerifier:
    """Says who is behind a bearer token, or that nobody is."""

    async def verify_token(self, token: str) -> AccessToken | None:
        """Called by the SDK for every request, before anything else happens."""
        try:
            claims = jwt.decode(
                token,
                SECRET,
                algorithms=["HS256"],
                issuer=ISSUER,
                audience=RESOURCE,
                options={"require": ["exp", "sub", "client_id"]},
            )
        except jwt.InvalidTokenError:
            return None
        return AccessToken(
            token=token,
            client_id=claims["client_id"],
            scopes=claims.get("scope", "").split(),
            expires_at=claims["exp"],
            resource=RESOURCE,
            # These two make the user the owner of their tasks. Without them all users of one client are one owner.
            subject=claims["sub"],
            claims={"iss": claims["iss"]},
        )


auth = AuthSettings(
    issuer_url=AnyHttpUrl(ISSUER),
    resource_server_url=AnyHttpUrl(RESOURCE),
    validate_token_resource=True,
    required_scopes=["reports"],
)
tasks = Tasks(os.environ.get("MCP_TASKS_URL", "memory://"))
server = MCPServer("reports", auth=auth, token_verifier=JwtVerifier(), **tasks.wiring())


@server.tool()
@tasks.task(mode="required")
async def report(about: str, ctx: Context) -> str:
    """Takes its time. The tool knows whose task it is; it has neither the token nor the request."""
    for page in range(1, 4):
        await ctx.report_progress(page, 3, f"page {page}")
        await anyio.sleep(0.2)
    return f"{about}, for {current_task().owner}"


def token_for(user: str, *, lifetime: float = 3600, scope: str = "reports", secret: str = SECRET) -> str:
    """What an authorization server would issue."""
    claims = {"iss": ISSUER, "aud": RESOURCE, "sub": user, "client_id": "example", "scope": scope}
    return jwt.encode({**claims, "exp": int(time.time() + lifetime)}, secret, algorithm="HS256")


@asynccontextmanager
async def connected(url: str, token: str) -> AsyncGenerator[Client]:
    """A client that shows its token with every request."""
    transport = reconnecting_http(url, headers={"Authorization": f"Bearer {token}"})
    async with Client(transport, extensions=[TasksClient()]) as client:
        yield client


async def visit(url: str) -> None:
    """Two users, and what each of them sees of the other's task."""
    # The SDK has set up the log for the server that this file makes too; what is sent is of no interest here.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    async with connected(url, token_for("ann")) as ann, connected(url, token_for("bob")) as bob:
        handle = await start_task(ann, "report", {"about": "Q3"})
        assert isinstance(handle, TaskHandle)
        print(f"ann has {handle.id}")
        try:
            await resume_task(bob, handle.id).cancel()
        except UnknownTask as exc:
            print(f"bob: {exc}")
        print(f"ann: {(await handle.result()).structured_content}")


def main() -> None:
    """Serve, or visit a server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve").add_argument("--port", type=int, default=8000)
    commands.add_parser("visit").add_argument("url")
    options = parser.parse_args()
    if not os.environ.get("TOKEN_SECRET"):
        sys.exit(NO_SECRET)
    if options.command == "serve":
        server.run("streamable-http", port=options.port)
    else:
        anyio.run(visit, options.url)


if __name__ == "__main__":
    main()
