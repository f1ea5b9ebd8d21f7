"""Both ends of OAuth: an authorization server whose user agrees to everything, and a client that signs in there."""

from __future__ import annotations

import secrets
import time
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyHttpUrl, AnyUrl

SCOPE: Final = "everything"
CALLBACK: Final = "http://127.0.0.1:9/callback"


def settings(base: str) -> AuthSettings:
    """The server at `base` protects itself, and issues its own tokens."""
    return AuthSettings(
        issuer_url=AnyHttpUrl(base),
        resource_server_url=AnyHttpUrl(f"{base}/mcp"),
        validate_token_resource=True,
        required_scopes=[SCOPE],
        client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=[SCOPE]),
    )


class Agreeable(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Every client is registered, and whoever is sent here signs in as the user whose name the client has."""

    def __init__(self, issuer: str) -> None:
        self._issuer = issuer
        self._clients: dict[str, OAuthClientInformationFull] = {}
        self._codes: dict[str, AuthorizationCode] = {}
        self._tokens: dict[str, AccessToken] = {}
        self._refreshing: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self._clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self._clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        assert client.client_id is not None
        code = secrets.token_urlsafe(32)
        self._codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [SCOPE],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
            subject=client.client_name,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self._codes[authorization_code.code]
        return self._issue(authorization_code)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self._refreshing.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self._refreshing[refresh_token.token]
        return self._issue(refresh_token)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self._tokens.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self._tokens.pop(token.token, None)

    def _issue(self, grant: AuthorizationCode | RefreshToken) -> OAuthToken:
        token, refresh = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        about: dict[str, Any] = {
            "client_id": grant.client_id,
            "scopes": grant.scopes,
            "resource": grant.resource,
            "subject": grant.subject,
        }
        self._tokens[token] = AccessToken(token=token, claims={"iss": self._issuer}, **about)
        self._refreshing[refresh] = RefreshToken(token=refresh, **about)
        return OAuthToken(access_token=token, refresh_token=refresh, scope=" ".join(grant.scopes), expires_in=3600)


class Keys:
    """What a client remembers of signing in."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def signing_in(url: str, user: str, http: httpx2.AsyncClient, keys: Keys) -> OAuthClientProvider:
    """What the SDK's client signs in with; in place of the browser there is `http`."""
    landed: list[str] = []

    async def redirect(address: str) -> None:
        landed.append((await http.get(address)).headers["location"])

    async def callback() -> AuthorizationCodeResult:
        found = {name: values[0] for name, values in parse_qs(urlsplit(landed[-1]).query).items()}
        return AuthorizationCodeResult(**found)

    metadata = OAuthClientMetadata(client_name=user, redirect_uris=[AnyUrl(CALLBACK)], scope=SCOPE)
    return OAuthClientProvider(url, metadata, keys, redirect, callback)
