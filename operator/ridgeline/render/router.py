"""The router: SMG with a registrar beside it, its Service and the registrar's rights.

Why these flags (SMG 1.13.0):

* `--enable-igw` lets mixed, prefill and decode engines share one model in one table.
* `--policy least_load` sends a request to the engine with the fewest in flight. Prompts differ in cost by
  orders of magnitude, so turns (`round_robin`) pile work up behind a long one; the default `cache_aware`
  would pin prefixes to engines whose role is about to change.
* checks every second: an engine that died is left out after about 3 s instead of 3 minutes, and an engine
  that was registered while it did not answer yet is listed 1 s instead of 30 s after it does.
* `--worker-startup-timeout-secs 30`: registrars add only engines that are Ready, so one that does not
  answer within 30 s is gone; a shorter wait clears its place for the next that gets its address.
"""

from __future__ import annotations

from ridgeline.api import names
from ridgeline.api.fleet import InferenceFleet
from ridgeline.render.arguments import value_of, with_defaults
from ridgeline.render.engine import RESTRICTED
from ridgeline.render.metadata import Manifest, labels, metadata, selector

SERVICE_PORT = 8000
"""Port of the Service that clients use: the one that vLLM itself would have."""
PRE_STOP_SECONDS = 5
"""Until every node has taken the router out of its Service."""
REGISTRAR_PRE_STOP_SECONDS = 15
"""Until the router takes no new requests (its sleep and the 5 s for which SMG listens on): roles change till then."""
SHUTDOWN_GRACE_SECONDS = 300
KILL_MARGIN_SECONDS = 10
VOLUME_SCRATCH, VOLUME_API_ACCESS = "scratch", "api-access"
REGISTRAR_KEY_NAME = "registrar"


def service_account(fleet: InferenceFleet, name: str, component: str) -> Manifest:
    """An identity without a token: pods that need one mount it themselves."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(fleet, name, component),
        "automountServiceAccountToken": False,
    }


def registrar_role(fleet: InferenceFleet) -> Manifest:
    """What a registrar may do: read pods of this namespace."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(fleet, names.router_name(fleet.name), names.COMPONENT_ROUTER),
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
    }


def registrar_role_binding(fleet: InferenceFleet) -> Manifest:
    """The registrar's role, given to the router pods of this fleet."""
    name = names.router_name(fleet.name)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(fleet, name, names.COMPONENT_ROUTER),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": fleet.namespace}],
    }


def router_service(fleet: InferenceFleet) -> Manifest:
    """The Service that clients use: named as the fleet, port 8000."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(fleet, names.service_name(fleet.name), names.COMPONENT_ROUTER),
        "spec": {
            "type": "ClusterIP",
            "selector": selector(fleet, names.COMPONENT_ROUTER),
            "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def router_deployment(fleet: InferenceFleet, operator_image: str, pull_policy: str) -> Manifest:
    """Router pods; each keeps a worker table of its own, filled by its own registrar."""
    name = names.router_name(fleet.name)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(fleet, name, names.COMPONENT_ROUTER),
        "spec": {
            "replicas": fleet.spec.router.replicas,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector(fleet, names.COMPONENT_ROUTER)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": labels(fleet, names.COMPONENT_ROUTER)},
                "spec": {
                    "serviceAccountName": name,
                    "automountServiceAccountToken": False,  # only the registrar gets it: the router faces clients
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": grace_period_seconds(fleet),
                    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                    "topologySpreadConstraints": [
                        {
                            "topologyKey": "kubernetes.io/hostname",
                            "maxSkew": 1,
                            "whenUnsatisfiable": "ScheduleAnyway",
                            "labelSelector": {"matchLabels": selector(fleet, names.COMPONENT_ROUTER)},
                        }
                    ],
                    "containers": [
                        router_container(fleet),
                        registrar_container(fleet, operator_image, pull_policy),
                    ],
                    "volumes": [{"name": VOLUME_SCRATCH, "emptyDir": {}}, api_access_volume()],
                },
            },
        },
    }


def router_container(fleet: InferenceFleet) -> Manifest:
    """The SMG container."""
    return {
        "name": names.CONTAINER_ROUTER,
        "image": fleet.spec.router.image,
        "command": ["smg", "launch"],
        "args": router_arguments(fleet),
        "env": [_router_key(fleet)],
        "ports": [
            {"name": "http", "containerPort": names.ROUTER_PORT, "protocol": "TCP"},
            {"name": "health", "containerPort": names.ROUTER_HEALTH_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": names.ROUTER_METRICS_PORT, "protocol": "TCP"},
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        # 200 once an engine is healthy, so that no request reaches a router with an empty table.
        "readinessProbe": _probe("/readiness", "health", period=2, failures=3),
        "livenessProbe": _probe("/liveness", "health", period=10, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        "securityContext": RESTRICTED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": VOLUME_SCRATCH, "mountPath": "/tmp"}],  # noqa: S108 - an emptyDir of the pod
    }


def registrar_container(fleet: InferenceFleet, operator_image: str, pull_policy: str) -> Manifest:
    """The registrar container.

    Its readiness asks only whether the router has had a table that serves since the registrar began: SMG calls
    itself ready with the first engine, and half of a pair answers 503. Afterwards nothing takes the pod out of the
    Service here: one engine that its router refuses must not close the router to all the others. `/readyz` and the
    metrics tell the operator about that.
    """
    return {
        "name": names.CONTAINER_REGISTRAR,
        "image": operator_image,
        "imagePullPolicy": pull_policy,
        "command": ["ridgeline", "registrar"],
        "args": [
            "--namespace",
            fleet.namespace,
            "--fleet",
            fleet.name,
            "--router-url",
            f"http://127.0.0.1:{names.ROUTER_PORT}",
            "--port",
            str(names.REGISTRAR_PORT),
        ],
        "env": [_router_key(fleet)],
        "ports": [{"name": "registrar", "containerPort": names.REGISTRAR_PORT, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "20m", "memory": "96Mi"}, "limits": {"memory": "384Mi"}},
        "readinessProbe": _probe("/servedz", "registrar", period=1, failures=3),
        "livenessProbe": _probe("/healthz", "registrar", period=10, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": REGISTRAR_PRE_STOP_SECONDS}}},
        "securityContext": RESTRICTED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": VOLUME_SCRATCH, "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod
            {"name": VOLUME_API_ACCESS, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True},
        ],
    }


def api_access_volume() -> Manifest:
    """What a client inside the cluster looks for: a token, the API server's certificate, the namespace."""
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    sources: list[Manifest] = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    return {"name": VOLUME_API_ACCESS, "projected": {"defaultMode": 0o444, "sources": sources}}


def router_arguments(fleet: InferenceFleet) -> list[str]:
    """Arguments of `smg launch`: ours, less what the user sets, then the user's."""
    defaults: list[tuple[str, ...]] = [
        ("--enable-igw",),
        ("--policy", "least_load"),
        ("--host", "0.0.0.0"),  # noqa: S104 - a pod serves on its own address
        ("--port", str(names.ROUTER_PORT)),
        ("--prometheus-port", str(names.ROUTER_METRICS_PORT)),
        ("--health-check-port", str(names.ROUTER_HEALTH_PORT)),
        ("--health-check-interval-secs", "1"),
        ("--worker-startup-check-interval", "1"),
        ("--worker-startup-timeout-secs", "30"),
        ("--shutdown-grace-period-secs", str(SHUTDOWN_GRACE_SECONDS)),
        ("--control-plane-api-keys", f"{REGISTRAR_KEY_NAME}:{REGISTRAR_KEY_NAME}:admin:$(ROUTER_KEY)"),
        ("--log-json",),
        ("--log-level", "warn"),  # at info, every request and every pass of the registrar is three lines
    ]
    return with_defaults(defaults, fleet.spec.router.args)


def grace_period_seconds(fleet: InferenceFleet) -> int:
    """How long a router may take to end the streams it carries."""
    drain = value_of("--shutdown-grace-period-secs", fleet.spec.router.args)
    return PRE_STOP_SECONDS + int(drain or SHUTDOWN_GRACE_SECONDS) + KILL_MARGIN_SECONDS


def _router_key(fleet: InferenceFleet) -> Manifest:
    reference = {"name": names.secret_name(fleet.name), "key": names.SECRET_KEY_ROUTER}
    return {"name": "ROUTER_KEY", "valueFrom": {"secretKeyRef": reference}}


def _probe(path: str, port: str, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
