from __future__ import annotations

from dataclasses import replace

from prometheus_client import generate_latest

from ridgeline.api.conditions import ConditionType, Verdict
from ridgeline.api.fleet import Action, Mode, Recommendation, Role, TopologyStatus
from ridgeline.metrics import FleetView, OperatorMetrics

KEY = ("ns", "chat")
VIEW = FleetView(
    roles={"e1": Role.PREFILL, "e2": Role.DECODE},
    topology=TopologyStatus(mode=Mode.SPLIT, mixed=0, prefill=1, decode=1, tokenBudget=512),
    recommendation=Recommendation(
        mode=Mode.MIXED, prefill=0, decode=0, enginesNeeded=6, reason="Calm", message="m", time="t"
    ),
    recommended_action=Action.MERGE,
    sampled_at=100.0,
    seen_at=103.0,
    conditions={ConditionType.READY: Verdict("True", "AllReady")},
    step_time_corrections={"decode": 1.2},
)


def exposed(metrics: OperatorMetrics) -> dict[str, float]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_a_fleet_is_told_by_its_view() -> None:
    metrics = OperatorMetrics()
    metrics.show(KEY, VIEW)
    samples = exposed(metrics)
    fleet = 'fleet="chat",namespace="ns"'
    for name, value in {
        'engine_role{namespace="ns",fleet="chat",pod="e1",role="prefill"}': 1,
        'engines{namespace="ns",fleet="chat",role="decode"}': 1,
        'mode{namespace="ns",fleet="chat",mode="Split"}': 1,
        'mode{namespace="ns",fleet="chat",mode="Mixed"}': 0,
        'recommended_engines{namespace="ns",fleet="chat",role="mixed"}': 2,
        'recommendation{namespace="ns",fleet="chat",action="Merge",reason="Calm"}': 1,
        'engines_needed{namespace="ns",fleet="chat"}': 6,
        'token_budget{namespace="ns",fleet="chat"}': 512,
        'signal_age_seconds{namespace="ns",fleet="chat"}': 3,
        'step_time_correction_ratio{namespace="ns",fleet="chat",kind="decode"}': 1.2,
        'condition{namespace="ns",fleet="chat",type="Ready",status="True"}': 1,
        'condition{namespace="ns",fleet="chat",type="Ready",status="False"}': 0,
    }.items():
        normal = {_normalised(key): each for key, each in samples.items()}
        assert normal[_normalised(f"ridgeline_fleet_{name}")] == value, fleet


def test_a_need_that_no_number_of_engines_meets_has_no_series() -> None:
    metrics = OperatorMetrics()
    assert VIEW.recommendation is not None
    unmet = VIEW.recommendation.model_copy(update={"enginesNeeded": None})
    metrics.show(KEY, replace(VIEW, recommendation=unmet))
    samples = exposed(metrics)
    assert not [name for name in samples if name.startswith("ridgeline_fleet_engines_needed")]
    assert [name for name in samples if name.startswith("ridgeline_fleet_recommended_engines")]


def test_a_kind_of_step_that_was_not_measured_has_no_correction() -> None:
    metrics = OperatorMetrics()
    metrics.show(KEY, VIEW)
    shown = [name for name in exposed(metrics) if name.startswith("ridgeline_fleet_step_time_correction_ratio")]
    assert len(shown) == 1
    assert 'kind="decode"' in shown[0]


def test_an_engine_that_changes_its_role_has_one_series() -> None:
    metrics = OperatorMetrics()
    metrics.show(KEY, VIEW)
    metrics.show(KEY, FleetView(roles={"e1": Role.MIXED}))
    roles = [name for name in exposed(metrics) if name.startswith("ridgeline_fleet_engine_role")]
    assert len(roles) == 1
    assert 'role="mixed"' in roles[0]


def test_a_deleted_fleet_leaves_no_series() -> None:
    metrics = OperatorMetrics()
    for key in (KEY, ("ns", "other")):
        metrics.show(key, VIEW)
        metrics.decided(key, Action.SPLIT, "DecodeStalled")
        metrics.routed(key, Action.SPLIT, 0.3)
        metrics.transition_over(key, Action.SPLIT, "done", 70)
    metrics.forget(KEY)
    names = list(exposed(metrics))
    assert not [name for name in names if 'fleet="chat"' in name]
    assert [name for name in names if 'fleet="other"' in name]
    metrics.forget(KEY)  # forgetting twice is no error


def test_the_first_samples_exist_before_the_first_fleet() -> None:
    samples = exposed(OperatorMetrics())
    assert samples["ridgeline_leader"] == 0
    assert samples["ridgeline_reconcile_errors_total"] == 0


def _normalised(sample: str) -> tuple[str, frozenset[str]]:
    name, _, labels = sample.rstrip("}").partition("{")
    return name, frozenset(labels.split(","))
