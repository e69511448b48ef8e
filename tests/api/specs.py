"""Specs to start from, and values at and beyond the bounds of every field, read from the generated schema."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from ridgeline.api import crd
from ridgeline.api.fleet import FleetSpec

MINIMAL: dict[str, Any] = {
    "model": {"id": "meta-llama/Llama-3.1-8B", "servedName": "llama-3.1-8b"},
    "hardware": {"accelerator": "H100-SXM5-80GB"},
    "engine": {"image": "docker.io/vllm/vllm-openai:v0.32.0"},
}

# Every field of the spec has a value here. Policy Static with no prefill engine is held by no rule between fields.
FULL: dict[str, Any] = {
    "model": {
        "id": "meta-llama/Llama-3.1-8B",
        "servedName": "llama-3.1-8b",
        "revision": "main",
        "cache": {"persistentVolumeClaimName": "weights"},
        "tokenSecretRef": {"name": "hub", "key": "token"},
    },
    "hardware": {
        "accelerator": "H100-SXM5-80GB",
        "perEngine": 1,
        "peaks": {"computeTeraflops": 989, "memoryBandwidthGigabytesPerSecond": 3350, "linkGigabytesPerSecond": 50},
    },
    "engine": {
        "image": "docker.io/vllm/vllm-openai:v0.32.0",
        "args": ["--max-model-len=8192"],
        "env": [{"name": "VLLM_LOGGING_LEVEL", "value": "INFO"}],
        "startupTimeoutSeconds": 600,
        "podTemplate": {"spec": {"nodeSelector": {"pool": "gpu"}}},
    },
    "replicas": 8,
    "topology": {"policy": "Static", "prefillReplicas": 0, "minPrefillReplicas": 1, "minDecodeReplicas": 1},
    "objectives": {"timeToFirstTokenMilliseconds": 2000, "interTokenLatencyMilliseconds": 50, "percentile": 95},
    "rules": {
        "missedRequestsPercent": 2,
        "decodeStallPercent": 10,
        "tolerancePercent": 5,
        "stabilizationWindowSeconds": 45,
        "cooldownSeconds": 30,
    },
    "transition": {"strategy": "InPlace", "soakSeconds": 60, "maxConcurrentEngines": 2},
    "router": {"type": "SMG", "image": "docker.io/lightseekorg/smg:1.13.0", "replicas": 1, "args": ["--log-json"]},
}


def changed(spec: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with values at dotted paths (written with two underscores); None removes the field."""
    result = copy.deepcopy(spec)
    for path, value in changes.items():
        *parents, last = path.split("__")
        node = result
        for parent in parents:
            node = node.setdefault(parent, {})
        if value is None:
            del node[last]
        else:
            node[last] = value
    return result


WITH_OTHER_FIELDS: dict[str, dict[str, Any]] = {
    "model.cache.hostPath": {"model__cache": {}},
    "model.cache.sizeLimit": {"model__cache": {}},
    "topology.policy": {"topology__prefillReplicas": None},
}
"""What must be changed before a field can be tried alone."""

HELD_BY_A_RULE: dict[str, Any] = {
    "topology.policy": "Static",  # needs `prefillReplicas`, which the others must not have
    "topology.prefillReplicas": 1024,  # must be below `replicas`, whose maximum it shares
}
"""Values within a field's bounds that a rule between fields refuses."""

MALFORMED = {
    "model.id": ["--trust-remote-code", "two words"],
    "model.cache.hostPath": ["models"],
    "model.cache.sizeLimit": ["80 GB", "-1Gi", "80gi"],
    "engine.env[].name": ["WITH=SIGN", "1ST"],
}


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every value of the spec, with its path."""
    for name, child in schema.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield below, child
        yield from fields(child, below)
        if "items" in child:
            yield f"{below}[]", child["items"]
            yield from fields(child["items"], f"{below}[]")


def text(length: int, pattern: str) -> str:
    """Text of a length that fits the field's pattern."""
    first = "/" if pattern.startswith("^/") else "1" if pattern.startswith("^[0-9]") else "a"
    return (first + ("1" if first == "1" else "a") * length)[:length]


def tries(path: str, node: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    """Values at and beyond the bounds of a field, and whether they must be accepted."""
    if "enum" in node:
        yield "Nonsense", False
        yield from ((value, True) for value in node["enum"])
    elif node["type"] == "integer":
        yield from ((node["minimum"], True), (node["minimum"] - 1, False), ("1", False))
        if "maximum" in node:
            yield from ((node["maximum"], True), (node["maximum"] + 1, False))
    elif node["type"] == "string":
        pattern = node.get("pattern", "")
        yield from ((text(node["maxLength"], pattern), True), (text(node["maxLength"] + 1, pattern), False), (1, False))
        if node.get("minLength"):
            yield "", False
        yield from ((value, False) for value in MALFORMED.get(path, ()))
    elif node["type"] == "array":
        item = (lambda i: {"name": f"V{i}"}) if node["items"]["type"] == "object" else (lambda i: f"--a{i}")
        yield from (([item(i) for i in range(node["maxItems"])], True),)
        yield from (([item(i) for i in range(node["maxItems"] + 1)], False),)


def put(spec: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a path such as `engine.env[].name`."""
    node: Any = spec
    *parents, last = path.replace("[]", ".[]").split(".")
    for part in parents:
        node = node[0] if part == "[]" else node.setdefault(part, {})
    if last == "[]":
        node[0] = value
    else:
        node[last] = value


SPEC_SCHEMA = crd.structural_schema(FleetSpec)
BOUNDED = [(path, node) for path, node in fields(SPEC_SCHEMA) if node["type"] != "object"]
