"""The robustness benchmark's disturbances: what a policy sees under each, and what its table says."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest

from ridgeline.api.fleet import Role
from ridgeline.decide.guards import metrics_verdict
from ridgeline.decide.snapshot import MetricsProblem, Signals, Snapshot
from ridgeline.observe.signals import NO_SAMPLES, STALE_SAMPLES
from ridgeline.simulate.controller import StaticSplit, steer
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.observer import EPOCH_SECONDS, Observer
from ridgeline.simulate.router import least_load
from tests.bench import robustness, robustness_table
from tests.bench.disturbances import BEGIN, DISTURBANCES, DOWN_SECONDS, END, UNDISTURBED, DisturbedObserver, let_die
from tests.decide.fleets import LLAMA_70B
from tests.simulate.test_steering import COST, SETTINGS, Looker, steady

SECONDS = END + 60.0
LOOK_SECONDS = BEGIN + 100.0
"""A look in the middle of what passes."""


def seen(name: str, seconds: float = SECONDS) -> list[tuple[float, Snapshot]]:
    """All looks at a fleet of four with a little load, under a disturbance."""
    fleet, looker = Fleet(SETTINGS, COST, least_load()), Looker()
    steer(fleet, looker, DisturbedObserver(fleet, LLAMA_70B, DISTURBANCES[name]))
    fleet.run(steady(seconds, 2.0))
    return looker.seen


def during(name: str) -> Signals | MetricsProblem:
    return next(snapshot.signals for now, snapshot in seen(name) if now >= LOOK_SECONDS)


def calm() -> Signals:
    signals = during(UNDISTURBED)
    assert isinstance(signals, Signals)
    return signals


def test_undisturbed_is_what_the_observer_shows() -> None:
    fleet, looker = Fleet(SETTINGS, COST, least_load()), Looker()
    steer(fleet, looker, Observer(fleet, LLAMA_70B))
    fleet.run(steady(200.0, 2.0))
    assert seen(UNDISTURBED, 200.0) == looker.seen


def test_what_passes_is_gone_before_and_after() -> None:
    looks = {name: dict(seen(name)) for name in ("missing-passing", UNDISTURBED)}
    differing = [now for now, snapshot in looks["missing-passing"].items() if snapshot != looks[UNDISTURBED][now]]
    assert (min(differing), max(differing)) == (BEGIN, END - 5.0)


def test_every_way_not_to_know_is_told_apart() -> None:
    nan, missing, zero = during("nan-passing"), during("missing-passing"), during("zero-passing")
    assert isinstance(nan, Signals)
    assert isinstance(missing, Signals)
    assert isinstance(zero, Signals)
    assert nan.requests_per_second is not None
    assert isnan(nan.requests_per_second)
    assert nan.prompt_tokens is not None
    assert (missing.requests_per_second, missing.missed_ratio, missing.prompt_tokens) == (None, None, None)
    assert (zero.requests_per_second, zero.missed_ratio, zero.decode.tokens_per_second) == (0.0, 0.0, 0.0)
    assert (zero.prompt_tokens, zero.inter_token_p99_seconds) == (None, None), "an idle histogram has no quantiles"
    for signals in (nan, missing, zero):
        assert signals.weight_bytes == LLAMA_70B.weight_bytes, "what engines are is still known"
        assert signals.sampled_at == calm().sampled_at
    nothing = during("no-series")
    assert isinstance(nothing, MetricsProblem)
    assert nothing.reason == NO_SAMPLES


def test_late_samples_are_refused_where_their_age_shows_and_believed_where_it_does_not() -> None:
    for name in ("late-30", "late-300", "late-300-passing"):
        late = during(name)
        assert isinstance(late, MetricsProblem)
        assert late.reason == STALE_SAMPLES
    fresh = {now: snapshot.signals for now, snapshot in seen(UNDISTURBED)}
    for name, seconds in (("late-30-unseen", 30.0), ("late-300-unseen", 300.0)):
        looks = seen(name)
        assert isinstance(looks[1][1].signals, MetricsProblem), "nothing has arrived yet"
        now, snapshot = next(look for look in looks if look[0] >= LOOK_SECONDS)
        lying, true, then = snapshot.signals, fresh[now], fresh[now - seconds]
        assert isinstance(lying, Signals)
        assert isinstance(true, Signals)
        assert isinstance(then, Signals)
        assert lying.sampled_at == true.sampled_at
        assert lying.requests_per_second == then.requests_per_second != true.requests_per_second
        assert metrics_verdict(snapshot, EPOCH_SECONDS + now).status == "True"


def test_lies_change_what_they_are_about_and_nothing_else() -> None:
    true = calm()
    tenfold, half, misses = during("tenfold"), during("lengths-half"), during("misses-1")
    assert isinstance(tenfold, Signals)
    assert isinstance(half, Signals)
    assert isinstance(misses, Signals)
    assert tenfold.requests_per_second == pytest.approx((true.requests_per_second or 0.0) * 13 / 4)
    assert (tenfold.missed_ratio, tenfold.prompt_tokens) == (true.missed_ratio, true.prompt_tokens)
    assert half.prompt_tokens == tuple((tokens / 2.0, weight) for tokens, weight in true.prompt_tokens or ())
    assert half.requests_per_second == true.requests_per_second
    assert (misses.missed_ratio, misses.gaps_late_ratio, misses.first_token_late_ratio) == (1.0, 1.0, 0.0)
    assert misses.requests_per_second == true.requests_per_second


def test_wrong_peaks_and_links_are_wrong_for_the_policy_alone() -> None:
    peaks = during("compute-high-memory-low")
    assert isinstance(peaks, Signals)
    assert peaks.peak_flops == pytest.approx(1.3 * (LLAMA_70B.peak_flops or 0.0))
    assert peaks.peak_memory_bytes_per_second == pytest.approx(0.7 * (LLAMA_70B.peak_memory_bytes_per_second or 0.0))
    assert peaks.measured_steps == calm().measured_steps, "the engines stay as they are"
    slow = seen("link-tenth", 20.0)[-1][1]
    assert slow.link_bytes_per_second == pytest.approx(SETTINGS.link_bytes_per_second / 10.0)


@pytest.mark.parametrize(
    ("name", "dead", "role_after"),
    [
        pytest.param("prefill-dies", {"engine-0"}, Role.PREFILL, id="a prefill engine"),
        pytest.param("decode-dies", {"engine-3"}, Role.DECODE, id="a decode engine"),
        pytest.param("decode-replaced", {"engine-3"}, Role.MIXED, id="its successor is mixed"),
        pytest.param("two-die", {"engine-0", "engine-3"}, None, id="one of each"),
        pytest.param("decode-dies-for-good", {"engine-3"}, None, id="for good"),
    ],
)
def test_engines_die_and_come_back_as_they_were_started(name: str, dead: set[str], role_after: Role | None) -> None:
    deaths = DISTURBANCES[name].deaths
    assert deaths is not None
    fleet, looker = Fleet(SETTINGS, COST, least_load()), Looker()
    steer(fleet, StaticSplit(3))
    steer(fleet, looker, Observer(fleet, LLAMA_70B))
    fleet.set_roles_at_once({f"engine-{n}": Role.PREFILL if n < 3 else Role.DECODE for n in range(4)})
    let_die(fleet, deaths)
    fleet.at(60.0, lambda now: fleet.set_limit("engine-3", 256))
    fleet.run(steady(BEGIN + DOWN_SECONDS + 60.0, 2.0))
    down = next(snapshot for now, snapshot in looker.seen if now > BEGIN + 10.0)
    assert {engine.pod for engine in down.live if not engine.ready} == dead
    assert all(engine.running_requests is None for engine in down.live if not engine.ready), "the dead tell nothing"
    back = looker.seen[-1][1]
    assert len(back.serving) == (4 if deaths.back_after_seconds else 3)
    if role_after is not None:
        (name,) = dead
        engine = next(engine for engine in back.engines if engine.pod == name)
        assert (engine.role, engine.limit_tokens) == (role_after, SETTINGS.engine.max_num_batched_tokens)


def test_reasons_are_weighed_by_the_time_that_they_stood() -> None:
    from ridgeline.simulate.ridgeline_policy import RidgelinePolicy
    from tests.decide.fleets import spec

    heard = robustness.Heard(RidgelinePolicy(spec(4)))
    fleet = Fleet(SETTINGS, COST, least_load())
    steer(fleet, heard, DisturbedObserver(fleet, LLAMA_70B, DISTURBANCES["late-30"]))
    fleet.run(steady(120.0, 2.0))
    shares = heard.shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares[STALE_SAMPLES] > 0.5
    assert shares[NO_SAMPLES] == pytest.approx(30.0 / 115.0, abs=0.1)


def row(policy: str, disturbance: str, attainment: float, draw: int = 1) -> dict[str, Any]:
    return {
        "case": "8b", "kind": "abrupt", "draw": draw, "level": 0.8, "policy": policy, "disturbance": disturbance,
        "choice": "split:6", "attainment": attainment, "actions": {"done": 2, "rolled_back": 1},
        "said": {"ObjectivesMet": 0.7, "MetricsStale": 0.28, "Stabilizing": 0.02},
    }  # fmt: skip


def lines(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    told = robustness_table.table(rows, list(DISTURBANCES)).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in told if line.startswith("|")]
    return {each[0]: each[2:] for each in cells}


def test_the_table_compares_each_draw_with_its_own_undisturbed_one() -> None:
    rows = [
        row("ridgeline", UNDISTURBED, 0.9), row("ridgeline", UNDISTURBED, 0.8, 2),
        row("ridgeline", "nan", 0.8), row("ridgeline", "nan", 0.6, 2), row("mixed:8192", UNDISTURBED, 0.1),
    ]  # fmt: skip
    told = lines(rows)
    assert told["nan"][:4] == ["70.0 %", "-15.0", "10.0 %", ""]
    assert told["nan"][4:] == ["2", "1", "0", "ObjectivesMet 70 %, MetricsStale 28 %"]
    assert told[UNDISTURBED][:2] == ["85.0 %", ""]


def test_a_static_choice_is_compared_under_the_same_deaths_and_without_any_other_disturbance() -> None:
    rows = [
        row("best static", UNDISTURBED, 0.9), row("best static", "decode-dies", 0.5),
        *(row("ridgeline", name, 0.7) for name in (UNDISTURBED, "zero", "decode-dies", "prefill-dies")),
    ]  # fmt: skip
    told = lines(rows)
    assert [told[name][3] for name in ("zero", "decode-dies", "prefill-dies")] == ["90.0 %", "50.0 %", ""]
    assert robustness_table.table([], []) == "No rows yet."


def test_statics_are_played_where_engines_die_and_once_undisturbed() -> None:
    parts = robustness.parts([0.8], ["nan", "decode-dies"])
    assert [(name, policy) for _, policy, name in parts] == [
        (UNDISTURBED, "ridgeline"), (UNDISTURBED, "mixed:8192"), (UNDISTURBED, "best static"),
        ("nan", "ridgeline"),
        ("decode-dies", "ridgeline"), ("decode-dies", "mixed:8192"), ("decode-dies", "best static"),
    ]  # fmt: skip
