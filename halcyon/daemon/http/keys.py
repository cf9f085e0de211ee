"""Who is asking: an API key becomes a tenant. Only hashes are kept, and every hash is compared, so that time tells nothing."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from aiohttp import web

from halcyon.config.settings import TenantSettings
from halcyon.errors import Forbidden, Unauthorized

NOBODY = TenantSettings(name="", key_sha256="")
"""The tenant of a daemon without tenants, and of the control socket: may use every model."""


class KeyRing:
    """The keys of a daemon. Without tenants, or on a trusted socket, everybody is `NOBODY` and no key is read."""

    def __init__(self, tenants: Sequence[TenantSettings], *, trusted: bool = False) -> None:
        self._tenants = () if trusted else tuple((tenant, tenant.key_sha256.encode()) for tenant in tenants)

    def tenant_of(self, request: web.Request) -> TenantSettings:
        """The tenant whose key the request carries.

        Raises:
            Unauthorized: no key, or one nobody knows.
        """
        if not self._tenants:
            return NOBODY
        key = _key_of(request)
        if key is None:
            raise Unauthorized("an API key is needed; send `Authorization: Bearer KEY` or `x-api-key: KEY`")
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest().encode()
        matches = [tenant for tenant, known in self._tenants if hmac.compare_digest(digest, known)]
        if not matches:
            raise Unauthorized("the API key is not known here; check it, or ask the operator for one")
        return matches[0]


def check_model(tenant: TenantSettings, model: str) -> None:
    """Lets a tenant without a list use every model, and one with a list those on it (by name, any version).

    Raises:
        Forbidden: the model is not on the list.
    """
    if not may_use(tenant, model):
        raise Forbidden(f"this key may not use the model; it may use: {', '.join(tenant.models)}", param="model")


def may_use(tenant: TenantSettings, model: str) -> bool:
    """Whether the model, `name` or `name@version`, is on the tenant's list."""
    return not tenant.models or model in tenant.models or model.partition("@")[0] in tenant.models


def _key_of(request: web.Request) -> str | None:
    scheme, _, credential = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credential.strip():
        return credential.strip()
    return request.headers.get("x-api-key")
