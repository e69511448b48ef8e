"""`make demo-cluster`: a fleet of two engines that splits under bursts of long prompts and merges when it is calm.

Installs the chart into the test cluster, makes a fleet, measures how fast this machine's engines are, and sends the
load of the cluster tests. A line every few seconds says what the fleet looks like; each decision is printed with its
reason. Ctrl-C ends the load; the cluster and the fleet stay, to be looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

from tests.e2e.calibration import calibrate
from tests.e2e.cluster import RELEASE, SYSTEM_NAMESPACE, Cluster, make_model, wait_for_async
from tests.e2e.fleets import LiveFleet
from tests.e2e.load import Load
from tests.e2e.scenario import bursts, calm_until, narrate

NAMESPACE = "demo"
RECOMMEND_SECONDS, BURST_SECONDS = 30, 150
ROW_SECONDS = 5.0
HEAD = "  time  topology      budget  missed   stall  prefill F/B  decode F/B  gap p95  gap p99  arriving/s"


def prepare() -> LiveFleet:
    """Install the release and make the fleet, saying what is being waited for."""
    cluster = Cluster.found()
    cluster.refuse_if_in_use()
    if cluster.ours:
        make_model()
    print("Installing the chart.", flush=True)
    cluster.install()
    cluster.try_kubectl("create", "namespace", NAMESPACE)
    print("Applying a fleet of two engines; they take a minute or two to load vLLM.", flush=True)
    fleet = LiveFleet.created(cluster, "chat", NAMESPACE)
    fleet.reset()
    print(cluster.kubectl("-n", NAMESPACE, "get", "fleets"))
    return fleet


def row(fleet: LiveFleet, started: float) -> str:
    """One line of the table."""

    def show(name: str, form: str, scale: float = 1.0, **labels: str) -> str:
        value = fleet.rule(f"fleet:ridgeline_{name}", **labels)
        return "-" if value is None else format(value * scale, form)

    topology = fleet.status.get("topology", {})
    division = f"{topology.get('mixed')}M {topology.get('prefill')}P {topology.get('decode')}D"
    gap95 = show("decode_gap_seconds:p95", ".0f", 1000)
    gap99 = show("decode_gap_seconds:p99", ".0f", 1000)
    return (
        f"{time.time() - started:5.0f}s  {topology.get('mode', ''):5} {division:8}"
        f"{topology.get('tokenBudget') or '-':>6}"
        f"{show('requests_missed:ratio', '.1%'):>8}"
        f"{show('decode_stall:ratio', '.1%'):>8}"
        f"{show('arithmetic_intensity:flops_per_byte', '.1f', phase='prefill'):>13}"
        f"{show('arithmetic_intensity:flops_per_byte', '.2f', phase='decode'):>12}"
        f"{gap95 + ' ms':>9}{gap99 + ' ms':>9}{show('requests_arriving:rate', '.2f'):>12}"
    )


class Table:
    """Prints a row every few seconds, and the head above every twentieth."""

    def __init__(self, fleet: LiveFleet) -> None:
        self._fleet = fleet
        self._started = time.time()
        self._told = 0.0
        self._rows = 0

    def go_on(self) -> None:
        """Print the next row if it is time."""
        if time.time() - self._told < ROW_SECONDS:
            return
        if self._rows % 20 == 0:
            print(HEAD, flush=True)
        print(row(self._fleet, self._started), flush=True)
        self._told, self._rows = time.time(), self._rows + 1


async def hand_over(fleet: LiveFleet, objectives: dict[str, int]) -> None:
    """Let the fleet recommend for a while, then act."""
    await asyncio.sleep(RECOMMEND_SECONDS)
    print("From here on the policy is Auto: what was recommended is done.", flush=True)
    await asyncio.to_thread(fleet.policy, "Auto", objectives)


async def play(fleet: LiveFleet, load: Load, objectives: dict[str, int]) -> None:
    """Bursts, then calm until the fleet is mixed again."""

    def merged() -> bool:
        return set(fleet.roles.values()) == {"mixed"} and not fleet.status.get("transition")

    narration = asyncio.create_task(narrate(fleet, Table(fleet).go_on))
    handing_over = asyncio.create_task(hand_over(fleet, objectives))
    with contextlib.suppress(asyncio.CancelledError):
        await load.run(bursts(BURST_SECONDS))
        await handing_over
        print("The bursts are over: a few short requests from here on.", flush=True)
        await calm_until(load, wait_for_async("the calm fleet merges", merged, seconds=900))
    narration.cancel()


def main() -> int:
    """Run the demonstration."""
    fleet = prepare()
    calibration = calibrate(fleet)
    objectives = calibration.objectives_that_no_budget_meets()
    fleet.policy("Recommend", objectives)
    first, gap = objectives["timeToFirstTokenMilliseconds"], objectives["interTokenLatencyMilliseconds"]
    print(f"Objectives: first token within {first} ms, at most 5 % of a request's gaps above {gap} ms.", flush=True)
    load, started = fleet.load(), time.time()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(play(fleet, load, objectives))
    if load.sent:
        print(f"\nWhat clients saw: {load.summary(started, time.time(), first / 1000, gap / 1000)}")
    print(
        f"The cluster runs on. KUBECONFIG={fleet.cluster.kubeconfig}\n"
        f"  kubectl -n {NAMESPACE} describe fleet chat\n"
        f"  helm uninstall {RELEASE} -n {SYSTEM_NAMESPACE}; make cluster-down"
    )
    return 1 if load.failed else 0


if __name__ == "__main__":
    sys.exit(main())
