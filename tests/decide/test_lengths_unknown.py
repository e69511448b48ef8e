"""Requests are counted as they arrive, their outputs as they end: what is said of a fleet between the two."""

from __future__ import annotations

import pytest

from ridgeline.decide import reasons
from ridgeline.decide.guards import metrics_verdict
from ridgeline.decide.snapshot import Distribution, Signals, Snapshot

NOW = 1_800_000_000.0
LENGTHS: Distribution = ((100.0, 1.0),)


@pytest.mark.parametrize(
    ("rate", "prompts", "outputs", "unknown"),
    [
        pytest.param(2.0, LENGTHS, None, "outputs", id="arrived, and none has ended"),
        pytest.param(2.0, None, LENGTHS, "prompts", id="prompts unknown"),
        pytest.param(2.0, None, None, "prompts and outputs", id="both unknown"),
        pytest.param(2.0, LENGTHS, LENGTHS, None, id="both known"),
        pytest.param(0.0, None, LENGTHS, None, id="none arrives, and the last end"),
        pytest.param(0.0, None, None, None, id="idle"),
    ],
)
def test_a_fleet_whose_requests_run_is_not_judged_before_their_lengths_are_known(
    rate: float, prompts: Distribution | None, outputs: Distribution | None, unknown: str | None
) -> None:
    signals = Signals(
        sampled_at=NOW, requests_per_second=rate, missed_ratio=0.0, prompt_tokens=prompts, output_tokens=outputs
    )
    verdict = metrics_verdict(Snapshot(signals=signals), NOW)
    if unknown is None:
        assert verdict.status == "True"
    else:
        assert (verdict.status, verdict.reason) == ("False", reasons.METRICS_INCOMPLETE)
        assert verdict.message == f"requests run, but the lengths of their {unknown} are not known yet"
