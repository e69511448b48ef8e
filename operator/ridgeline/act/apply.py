"""What was rendered becomes what the cluster holds; what is no longer rendered goes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.act.api import POD_MONITORS, RENDERED_KINDS, Kind, KubernetesApi, Object, kind_of
from ridgeline.api.names import LABEL_FLEET

REAPPLY_SECONDS = 60.0
"""How often manifests are applied anew even when nothing changed: mends what somebody else edited."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What was applied last, so that the next pass can tell that there is nothing to do."""

    digest: str
    at: float
    """Unix seconds."""
    names: frozenset[tuple[str, str]]
    """Kind and name of each manifest."""


class NameTakenError(Exception):
    """An object of the name that the fleet needs is not the fleet's."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"a {kind} named {name} exists and is not this fleet's; delete it, or create the fleet under another name"
            " (what a deleted fleet of the same name left is waited for)"
        )


def digest(manifests: Sequence[Mapping[str, Any]]) -> str:
    """A value that changes when any manifest does."""
    return hashlib.sha256(json.dumps(manifests, sort_keys=True).encode()).hexdigest()


def is_due(
    applied: Applied | None, manifests: Sequence[Mapping[str, Any]], present: Iterable[tuple[str, str]], now: float
) -> bool:
    """Whether the manifests must be applied.

    Args:
        applied: what this process applied last.
        manifests: what should be.
        present: kind and name of the objects seen in this pass, of kinds that every pass lists (Deployments).
        now: Unix seconds.
    """
    if applied is None or applied.digest != digest(manifests) or is_old(applied, now):
        return True
    wanted = {(m["kind"], m["metadata"]["name"]) for m in manifests if m["kind"] == "Deployment"}
    return not wanted <= set(present)


def is_old(applied: Applied | None, now: float) -> bool:
    """Whether it is time to look at what is seldom looked at."""
    return applied is None or now - applied.at >= REAPPLY_SECONDS


async def apply(
    api: KubernetesApi,
    namespace: str,
    fleet: str,
    uid: str,
    manifests: Sequence[Object],
    before: Applied | None,
    now: float,
) -> Applied:
    """Apply all manifests, then delete what the fleet owned and no longer has.

    Raises:
        NameTakenError: an object of that name belongs to somebody else; nothing was applied.
        ApiError: one of them was refused; the others may be applied, and the next pass tries again.
    """
    for manifest in manifests:
        if before is None or (manifest["kind"], manifest["metadata"]["name"]) not in before.names:
            await _claim(api, namespace, uid, manifest)
    for manifest in manifests:
        await api.apply(kind_of(manifest), namespace, manifest["metadata"]["name"], manifest)
    names = frozenset((m["kind"], m["metadata"]["name"]) for m in manifests)
    if before is None or before.names != names:
        await _prune(api, namespace, fleet, uid, names)
    return Applied(digest(manifests), now, names)


async def _claim(api: KubernetesApi, namespace: str, uid: str, manifest: Object) -> None:
    """Refuse to apply over an object that is not the fleet's: it would be taken now and deleted with the fleet."""
    kind, name = kind_of(manifest), manifest["metadata"]["name"]
    found = await api.named(kind, namespace, name)
    if found is not None and not is_owned(found, uid):
        raise NameTakenError(kind.kind, name)


def is_owned(found: Mapping[str, Any], uid: str) -> bool:
    """Whether the fleet with this UID controls the object. A label alone is no claim."""
    owners = found["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)


async def _prune(api: KubernetesApi, namespace: str, fleet: str, uid: str, names: frozenset[tuple[str, str]]) -> None:
    """Delete objects of the fleet that are not among `names`."""
    for kind in RENDERED_KINDS:
        if not await _listable(api, kind):
            continue
        for found in await api.select(kind, namespace, {LABEL_FLEET: fleet}):
            metadata = found["metadata"]
            if is_owned(found, uid) and (kind.kind, metadata["name"]) not in names:
                await api.delete(kind, namespace, metadata["name"], metadata["uid"])


async def _listable(api: KubernetesApi, kind: Kind) -> bool:
    """Kinds of the Prometheus Operator exist on some clusters only."""
    return kind is not POD_MONITORS or await api.serves(kind)
