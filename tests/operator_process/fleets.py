"""Fleets as a user writes them."""

from __future__ import annotations

from typing import Any


def fleet(name: str = "chat", **spec: Any) -> dict[str, Any]:
    """A small fleet; keyword arguments replace whole parts of its spec."""
    return {
        "apiVersion": "ridgeline.dev/v1alpha1",
        "kind": "InferenceFleet",
        "metadata": {"name": name},
        "spec": {
            "model": {"id": "example/tiny", "servedName": "tiny"},
            "hardware": {"accelerator": "H100-SXM5-80GB"},
            "engine": {"image": "registry.example/vllm:1"},
            "replicas": 2,
            **spec,
        },
    }
