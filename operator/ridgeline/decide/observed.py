"""What a snapshot shows: do routers follow, does KV move, do requests arrive, how many are held."""

from __future__ import annotations

from math import fsum
from statistics import fmean

from ridgeline.api.fleet import FleetSpec, Role, RouterType
from ridgeline.decide.snapshot import Snapshot


def routers_lagging(snapshot: Snapshot, spec: FleetSpec) -> str | None:
    """What is missing until every router shows the labels of all ready engines; None when nothing is.

    An external router tells nothing: it is taken to follow the labels.
    """
    if spec.router.type is RouterType.EXTERNAL:
        return None
    ready = [r for r in snapshot.routers if r.ready]
    if not ready:
        return "no router is ready"
    labels = {e.pod: e.role for e in snapshot.live}
    serving = {e.pod for e in snapshot.serving}
    for router in ready:
        if router.workers is None:
            return f"the registrar of router {router.pod} does not answer"
        for pod in sorted(serving):
            seen = router.workers.get(pod)
            if seen is not labels[pod]:
                has = "not at all" if seen is None else f"as {seen}"
                return f"router {router.pod} shows engine {pod} {has}, its label says {labels[pod]}"
    return None


def kv_bytes(snapshot: Snapshot) -> int:
    """Bytes of KV cache that the engines, also those away for a while, have received since they started.

    An engine without the counter has received nothing: vLLM makes it at the first transfer. Where no engine has it,
    prompt tokens that came by transfer stand in: they grow for the same reason, and growth is all that is asked for.
    """
    live = (*snapshot.live, *snapshot.away)
    counted = [e.kv_bytes_received for e in live if e.kv_bytes_received is not None]
    if not counted:
        counted = [e.external_prompt_tokens for e in live if e.external_prompt_tokens is not None]
    return int(fsum(max(0.0, value) for value in counted))


def kv_failures(snapshot: Snapshot) -> int:
    """KV transfers that have failed on the engines, also those away for a while, since they started."""
    return int(fsum(max(0.0, e.kv_failures or 0.0) for e in (*snapshot.live, *snapshot.away)))


def prefills(snapshot: Snapshot) -> int:
    """Requests whose prefill the engines that are prefill engines now have finished since they started."""
    everyone = (*snapshot.live, *snapshot.away)
    return int(fsum(max(0.0, e.prompt_requests or 0.0) for e in everyone if e.role is Role.PREFILL))


def held_requests(snapshot: Snapshot) -> int | None:
    """Requests that the live engines hold, waiting or running; None where one does not tell."""
    counts = [e.running_requests for e in snapshot.live]
    return None if None in counts else sum(count for count in counts if count is not None)


def own_prompts_wait(snapshot: Snapshot) -> bool:
    """Whether requests wait at every decode engine before any transfer of theirs has begun."""
    waiting = [e.waiting_requests or 0 for e in snapshot.serving if e.role is Role.DECODE]
    return bool(waiting) and all(waiting)


def decodes_held(snapshot: Snapshot) -> float | None:
    """Requests that a decode engine decodes now, on average; None where no decode engine tells."""
    held = [engine.decodes for engine in snapshot.serving if engine.role is Role.DECODE]
    known = [count for count in held if count is not None]
    return fmean(known) if known else None
