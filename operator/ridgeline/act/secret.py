"""The Secret of a fleet: the token of its engines' control endpoint and the key of its routers' worker table.

It is made once and never written again: a new token would lock the operator out of engines that run with the old one.
To change the keys, delete the Secret and restart the fleet's pods.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass, field

from ridgeline.act.api import SECRETS, ApiError, KubernetesApi, Object
from ridgeline.api.names import API_VERSION, KIND, LABEL_FLEET, SECRET_KEY_CONTROL, SECRET_KEY_ROUTER, secret_name

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Keys:
    """What the Secret holds; kept out of `repr`, so that no log line can show it."""

    control_token: str = field(repr=False)


class UnusableSecretError(Exception):
    """The fleet's Secret exists and cannot be worked with; the text says what to do."""


async def ensure_secret(api: KubernetesApi, namespace: str, fleet: str, uid: str) -> Keys:
    """Read the fleet's Secret, made first where there is none.

    A Secret without an owner is taken as it is: somebody brought it, or restored it from a backup.

    Raises:
        UnusableSecretError: the Secret lacks the token, or belongs to another fleet.
        ApiError: the Secret cannot be read or written.
    """
    name = secret_name(fleet)
    stored = await api.get(SECRETS, namespace, name)
    if stored is None:
        try:
            stored = await api.create(SECRETS, namespace, new_secret(fleet, uid))
        except ApiError as error:
            if error.status != 409:
                raise
            stored = await api.get(SECRETS, namespace, name) or {}  # made meanwhile by somebody else: theirs counts
    owners = stored.get("metadata", {}).get("ownerReferences") or ()
    if any(owner.get("uid") != uid for owner in owners):
        raise UnusableSecretError(
            f"Secret {name} belongs to somebody else; delete it if it is not needed"
            " (what a deleted fleet of the same name left is waited for)"
        )
    token = (stored.get("data") or {}).get(SECRET_KEY_CONTROL)
    if not token:
        raise UnusableSecretError(f"Secret {name} has no key `{SECRET_KEY_CONTROL}`; delete it to have it made anew")
    return Keys(control_token=base64.b64decode(token).decode())


def new_secret(fleet: str, uid: str) -> Object:
    """A Secret with fresh keys, deleted with the fleet."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(fleet),
            "labels": {LABEL_FLEET: fleet, "app.kubernetes.io/managed-by": "ridgeline"},
            "ownerReferences": [
                {"apiVersion": API_VERSION, "kind": KIND, "name": fleet, "uid": uid, "controller": True}
            ],
        },
        "type": "Opaque",
        "stringData": {
            SECRET_KEY_CONTROL: secrets.token_urlsafe(KEY_BYTES),
            SECRET_KEY_ROUTER: secrets.token_urlsafe(KEY_BYTES),
        },
    }
