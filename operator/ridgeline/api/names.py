"""Every name that Ridgeline writes into a cluster, in one place.

The registrar, the renderer, the recording rules and the tests meet through these strings,
so a rename happens here or nowhere.
"""

from __future__ import annotations

GROUP = "ridgeline.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferenceFleet"
PLURAL = "inferencefleets"

FIELD_MANAGER = "ridgeline"
"""Owner of every field the operator applies (server-side apply)."""

LABEL_FLEET = f"{GROUP}/fleet"
LABEL_COMPONENT = f"{GROUP}/component"
LABEL_ROLE = f"{GROUP}/role"
"""The role label of an engine pod is the truth about the topology; everything else mirrors it."""

ANNOTATION_TEMPLATE_HASH = f"{GROUP}/template-hash"

COMPONENT_ENGINE = "engine"
COMPONENT_ROUTER = "router"

CONTAINER_ENGINE = "engine"
CONTAINER_ROUTER = "router"
CONTAINER_REGISTRAR = "registrar"
INIT_CONTAINER_EXPORTER = "exporter"

ENGINE_PORT = 8000
SIDE_CHANNEL_PORT = 5600
EXPORTER_PORT = 9400
ROUTER_PORT = 30000
ROUTER_HEALTH_PORT = 30001
ROUTER_METRICS_PORT = 29000
REGISTRAR_PORT = 30002
OPERATOR_METRICS_PORT = 9090
OPERATOR_HEALTH_PORT = 8080

GPU_RESOURCE = "nvidia.com/gpu"
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"

SECRET_KEY_CONTROL = "control-token"  # noqa: S105 - the name of a key, not a secret
SECRET_KEY_ROUTER = "router-key"  # noqa: S105 - the name of a key, not a secret

EXPORTER_FOLDER = "/ridgeline"
"""Where the init container puts the exporter; on PYTHONPATH of the engine."""

CACHE_FOLDER = "/cache"
"""Where the model cache of `spec.model.cache` is mounted; HF_HOME lies below it."""


def engines_name(fleet: str) -> str:
    """Name of the engine Deployment, its headless Service and its ServiceAccount."""
    return f"{fleet}-engines"


def router_name(fleet: str) -> str:
    """Name of the router Deployment and of the registrar's ServiceAccount, Role and RoleBinding."""
    return f"{fleet}-router"


def service_name(fleet: str) -> str:
    """Name of the Service that clients use: the fleet's own."""
    return fleet


def secret_name(fleet: str) -> str:
    """Name of the Secret with the control token of the engines and the key of the router."""
    return f"{fleet}-control"
