"""Merging a user's pod template over the rendered one.

The rules are those of a strategic merge patch for the lists that matter in a pod: entries with the
same key are merged, others appended; every other list is replaced; dicts are merged field by field;
`null` removes a field. Tolerations are the one exception: they have no key of their own and a user
who adds one does not mean to lose the rest, so they are appended. An entry of `env` or `volumes` is a
choice (`value` or `valueFrom`, one kind of volume), so the fields that the user leaves out go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
}
"""List field → the field by which its entries are told apart."""

CHOICES = frozenset({"env", "volumes"})
APPENDED = frozenset({"tolerations"})


def merge(base: Any, patch: Any) -> Any:
    """Lay a patch over a value; neither of the two is changed."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        return _merge_mappings(base, patch)
    return patch


def merge_list(field: str, base: Sequence[Mapping[str, Any]], patch: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Merge two lists whose entries carry a key; the order of the base is kept, new entries follow."""
    key = KEYS[field]
    overrides = {entry[key]: entry for entry in patch}
    known = {entry[key] for entry in base}
    return [
        *(_merge_entry(field, entry, overrides[entry[key]]) if entry[key] in overrides else entry for entry in base),
        *(entry for name, entry in overrides.items() if name not in known),
    ]


def _merge_entry(field: str, base: Mapping[str, Any], patch: Mapping[str, Any]) -> Any:
    if field in CHOICES:
        base = {name: value for name, value in base.items() if name in patch}
    return merge(base, patch)


def _merge_mappings(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for field, value in patch.items():
        if value is None:
            result.pop(field, None)
        elif field not in base:
            result[field] = value
        elif field in KEYS and isinstance(value, list):
            result[field] = merge_list(field, base[field], value)
        elif field in APPENDED and isinstance(value, list):
            result[field] = [*base[field], *(entry for entry in value if entry not in base[field])]
        else:
            result[field] = merge(base[field], value)
    return result
