"""How fast the engines of this machine are: objectives are made from it, so that the tests mean the same anywhere."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.e2e.fleets import LiveFleet
from tests.e2e.load import Planned, quantile


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured through the router on an otherwise idle fleet."""

    decode_step_seconds: float
    """95th percentile of the gaps of a few steady decodes."""
    prefill_token_seconds: float

    def objectives_that_a_budget_meets(self) -> dict[str, int]:
        """Room for a decode step and some 400 tokens of prefill: the prompts of a burst are beyond, small chunks well within."""
        gap = self.decode_step_seconds + 400 * self.prefill_token_seconds
        return {"timeToFirstTokenMilliseconds": 20_000, "interTokenLatencyMilliseconds": round(gap * 1000)}

    def objectives_that_no_budget_meets(self) -> dict[str, int]:
        """Little more than a decode step beside a busy core: whatever useful chunk shares it, the step is late."""
        gap = 1.3 * self.decode_step_seconds + 48 * self.prefill_token_seconds
        return {"timeToFirstTokenMilliseconds": 20_000, "interTokenLatencyMilliseconds": round(gap * 1000)}


def calibrate(fleet: LiveFleet) -> Calibration:
    """Send a few steady decodes, then long prompts one by one."""
    warm = fleet.load(seed=10)  # the first requests of an engine pay for what is made on first use
    asyncio.run(warm.run([Planned(0.1 * i, 256, 32) for i in range(8)]))
    decodes = fleet.load(seed=11)
    asyncio.run(decodes.run([Planned(0.2 * i, 32, 128) for i in range(6)]))
    prompts = fleet.load(seed=12)
    for _ in range(4):
        asyncio.run(prompts.run([Planned(0, 1024, 2)]))
    gaps = [gap for sent in decodes.sent for gap in sent.gaps]
    firsts = sorted(first for sent in prompts.sent if (first := sent.first_token_seconds) is not None)
    step = quantile(gaps, 0.95)
    assert step is not None
    assert firsts
    measured = Calibration(step, firsts[len(firsts) // 2] / 1024)
    print(
        f"\ncalibration: decode step p95 {measured.decode_step_seconds * 1000:.1f} ms, prefill {measured.prefill_token_seconds * 1e6:.0f} us a token"
    )
    return measured
