"""What cannot work, said before anything is applied.

A list read top to bottom; the first rule that objects gives the verdict. The API server has already
refused what a schema or a CEL rule can see; here is what needs knowledge of vLLM, of SMG or of hardware.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ridgeline.api import names
from ridgeline.api.conditions import Verdict
from ridgeline.api.fleet import InferenceFleet
from ridgeline.render.arguments import flags, value_of
from ridgeline.render.engine import pod_template
from ridgeline.render.merge import KEYS
from ridgeline_exporters.roofline.hardware import ACCELERATORS, UnknownAccelerator, find

MAXIMUM_NAME_LENGTH = 63 - len("-engines")

ENGINE_FLAGS = {
    "--model": "`spec.model.id`",
    "--served-model-name": "`spec.model.servedName`",
    "--revision": "`spec.model.revision`",
    "--tensor-parallel-size": "`spec.hardware.perEngine`",
    "-tp": "`spec.hardware.perEngine`",
}
"""Flags of vLLM that a field of the fleet sets."""

REFUSED_ENGINE_FLAGS = {
    "--port": f"routers, probes and monitors expect port {names.ENGINE_PORT}",
    "--host": "routers, probes and monitors reach an engine at its pod's address",
    "--uds": "routers, probes and monitors reach an engine at its pod's address",
    "--ssl-keyfile": "routers, probes and monitors speak plain HTTP to engines; encrypt with a service mesh instead",
    "--ssl-certfile": "routers, probes and monitors speak plain HTTP to engines; encrypt with a service mesh instead",
    "--headless": "routers and probes need the engine's API server",
    "--api-key": "the router has no key for its engines; fence engines with a NetworkPolicy instead",
    "--pipeline-parallel-size": "an engine that reads KV from others cannot be split into pipeline stages",
    "-pp": "an engine that reads KV from others cannot be split into pipeline stages",
    "--data-parallel-size": "use `spec.replicas`: the router spreads requests over engines",
    "-dp": "use `spec.replicas`: the router spreads requests over engines",
}
REFUSED_ROUTER_FLAGS = {
    "--port": f"Service and registrar expect port {names.ROUTER_PORT}",
    "--host": "the router must serve on its pod's address",
    "--health-check-port": f"probes expect port {names.ROUTER_HEALTH_PORT}",
    "--prometheus-port": f"monitors expect port {names.ROUTER_METRICS_PORT}",
    "--control-plane-api-keys": "the registrar's key is made by the operator",
    "--worker-urls": "the registrar keeps the table of engines",
    "--service-discovery": "the registrar keeps the table of engines",
    "--pd-disaggregation": "mixed, prefill and decode engines share one table",
}
CONNECTORS = ("NixlConnector", "MultiConnector")


def validate(fleet: InferenceFleet) -> Verdict | None:
    """First thing that keeps this fleet from working; None when there is nothing."""
    for rule in RULES:
        verdict = rule(fleet)
        if verdict is not None:
            return verdict
    return None


def name_is_too_long_or_no_dns_label(fleet: InferenceFleet) -> Verdict | None:
    """Services, Deployments and label values are named after the fleet."""
    if len(fleet.name) <= MAXIMUM_NAME_LENGTH and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", fleet.name):
        return None
    return _no(
        "InvalidName",
        f"the name {fleet.name!r} must be at most {MAXIMUM_NAME_LENGTH} characters of a-z, 0-9 and '-', starting with"
        " a letter: the Services of the fleet are named after it; create the fleet under another name",
    )


def accelerator_has_no_peaks(fleet: InferenceFleet) -> Verdict | None:
    """Without peaks there is no roofline to decide on."""
    hardware = fleet.spec.hardware
    if hardware.peaks is not None:
        return None
    try:
        find(hardware.accelerator)
    except UnknownAccelerator:
        return _no(
            "UnknownAccelerator",
            f"the accelerator {hardware.accelerator!r} is not known; set `spec.hardware.peaks` (computeTeraflops and"
            f" memoryBandwidthGigabytesPerSecond of one GPU), or use one of: {', '.join(ACCELERATORS)}",
        )
    return None


def engine_flag_belongs_to_a_field(fleet: InferenceFleet) -> Verdict | None:
    """One place for each fact."""
    given = flags(fleet.spec.engine.args)
    for flag, field in ENGINE_FLAGS.items():
        if flag in given:
            return _no("InvalidEngineArguments", f"`spec.engine.args` must not set {flag}: set {field} instead")
    return None


def engine_flag_breaks_the_fleet(fleet: InferenceFleet) -> Verdict | None:
    """Flags under which an engine would start and yet never serve a request of this fleet."""
    given = flags(fleet.spec.engine.args)
    for flag, why in REFUSED_ENGINE_FLAGS.items():
        if flag in given:
            return _no("InvalidEngineArguments", f"`spec.engine.args` must not set {flag}: {why}")
    return None


def shutdown_timeout_is_no_number(fleet: InferenceFleet) -> Verdict | None:
    """The grace period of the pod is computed from it."""
    value = value_of("--shutdown-timeout", fleet.spec.engine.args)
    if value is None or value.isdecimal():
        return None
    return _no("InvalidEngineArguments", f"--shutdown-timeout must be whole seconds, not {value!r}")


def kv_transfer_cannot_change_roles(fleet: InferenceFleet) -> Verdict | None:
    """Every engine must be able to read KV and to be read from, by the protocol that the router speaks."""
    value = value_of("--kv-transfer-config", fleet.spec.engine.args)
    if value is None:
        return None
    try:
        config = json.loads(value)
    except json.JSONDecodeError:
        config = None
    if not isinstance(config, dict):
        return _no("InvalidEngineArguments", f"--kv-transfer-config must be one JSON object, not {value!r}")
    if config.get("kv_connector") not in CONNECTORS or config.get("kv_role") != "kv_both":
        return _no(
            "InvalidEngineArguments",
            '--kv-transfer-config must have "kv_connector":"NixlConnector" and "kv_role":"kv_both": any engine may be'
            " asked to prefill or to decode",
        )
    return None


def router_flag_breaks_the_fleet(fleet: InferenceFleet) -> Verdict | None:
    """Flags that would part the router from its registrar, probes or Service."""
    given = flags(fleet.spec.router.args)
    for flag, why in REFUSED_ROUTER_FLAGS.items():
        if flag in given:
            return _no("InvalidRouterArguments", f"`spec.router.args` must not set {flag}: {why}")
    grace = value_of("--shutdown-grace-period-secs", fleet.spec.router.args)
    if grace is not None and not grace.isdecimal():
        return _no("InvalidRouterArguments", f"--shutdown-grace-period-secs must be whole seconds, not {grace!r}")
    return None


def pod_template_is_no_template(fleet: InferenceFleet) -> Verdict | None:
    """The schema lets any object through; what cannot be merged is said here."""
    template = fleet.spec.engine.podTemplate or {}
    if unknown := sorted(set(template) - {"metadata", "spec"}):
        message = f"`spec.engine.podTemplate` must hold only `metadata` and `spec`, not {unknown[0]!r}"
        return _no("InvalidPodTemplate", message)
    for field in ("metadata", "spec"):
        if not isinstance(template.get(field, {}), dict):
            return _no("InvalidPodTemplate", f"`spec.engine.podTemplate.{field}` must be an object")
    if problem := _unmergeable(template, "spec.engine.podTemplate"):
        return _no("InvalidPodTemplate", problem)
    try:
        pod_template(fleet, "", "")
    except (AttributeError, KeyError, TypeError) as error:
        return _no(
            "InvalidPodTemplate",
            f"`spec.engine.podTemplate` is no part of a pod: a field of it has another shape than in Kubernetes ({error})",
        )
    return None


def _unmergeable(value: object, path: str) -> str | None:
    """Sentence on the first list that cannot be merged because an entry lacks its key."""
    if not isinstance(value, dict):
        return None
    for field, child in value.items():
        here = f"{path}.{field}"
        if field in KEYS and not path.endswith((".labels", ".annotations")):
            if not isinstance(child, list):
                return f"`{here}` must be a list"
            for index, entry in enumerate(child):
                if not isinstance(entry, dict) or KEYS[field] not in entry:
                    return f"`{here}[{index}]` must have `{KEYS[field]}`"
        for index, entry in enumerate(child if isinstance(child, list) else [child]):
            if problem := _unmergeable(entry, f"{here}[{index}]" if isinstance(child, list) else here):
                return problem
    return None


RULES: tuple[Callable[[InferenceFleet], Verdict | None], ...] = (
    name_is_too_long_or_no_dns_label,
    accelerator_has_no_peaks,
    engine_flag_belongs_to_a_field,
    engine_flag_breaks_the_fleet,
    shutdown_timeout_is_no_number,
    kv_transfer_cannot_change_roles,
    router_flag_breaks_the_fleet,
    pod_template_is_no_template,
)


def _no(reason: str, message: str) -> Verdict:
    return Verdict("False", reason, message)
