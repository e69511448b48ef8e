"""Work and time of the phases: beside the exporter's own functions, and a run beside the steps that it stands for."""

from __future__ import annotations

from functools import cache
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.api.fleet import Role
from ridgeline.cost.step_cost import EngineCost
from ridgeline.simulate.controller import StaticMixed, StaticSplit, steer
from ridgeline.simulate.counters import Counters
from ridgeline.simulate.fleet import Fleet, FleetSettings
from ridgeline.simulate.phase_use import PhaseCounters, PhaseUse, PhaseWork
from ridgeline.simulate.results import Results
from ridgeline.simulate.router import least_load
from ridgeline.simulate.scheduler import EngineSettings
from ridgeline.simulate.traces import Arrival
from ridgeline_exporters.engine.accounting import Accounting
from ridgeline_exporters.engine.metrics import Totals
from ridgeline_exporters.engine.steps import StepRecord
from ridgeline_exporters.roofline import hardware
from ridgeline_exporters.roofline.bounds import Roof
from ridgeline_exporters.roofline.catalogue import find_model
from ridgeline_exporters.roofline.model import ModelShape
from tests.simulate.scenarios import requests

H100 = hardware.find("H100-SXM5-80GB")
WITHOUT_WINDOWS = ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-next-80b-a3b"]


@cache
def counted(name: str) -> tuple[ModelShape, Roof, PhaseWork]:
    shape, roof = ModelShape.from_config(find_model(name)), Roof.of(H100)
    return shape, roof, PhaseWork(shape, roof)


chunk_lists = st.lists(
    st.tuples(st.integers(1, 3000), st.integers(0, 20_000), st.booleans()), max_size=5
)  # tokens, cached, whether the prompt ends
context_lists = st.lists(st.integers(2, 30_000), max_size=40)


@pytest.mark.parametrize("name", WITHOUT_WINDOWS)
@settings(deadline=None)
@given(chunks=chunk_lists, contexts=context_lists, seconds=st.floats(1e-3, 2.0))
def test_a_step_counts_as_the_exporter_counts_it(
    name: str, chunks: list[tuple[int, int, bool]], contexts: list[int], seconds: float
) -> None:
    if not chunks and not contexts:
        return
    shape, roof, work = counted(name)
    record, totals, counters = StepRecord(shape.windows), Totals(), PhaseCounters()
    for tokens, cached, ends in chunks:
        record.prefill.add_prefill(cached, tokens, int(ends))
    for context in contexts:
        record.decode.add_decode(context - 1, 1, 1)
    Accounting(totals, shape, roof).add(record, seconds)
    prefill, decode = record.prefill, record.decode
    work.add_step(
        counters, seconds, prefill.tokens, prefill.attended_pairs, prefill.kv_tokens, prefill.sampled, len(chunks),
        decode.sequences, decode.kv_tokens,
    )  # fmt: skip
    used = work.use(PhaseCounters(), counters, seconds if contexts else 0.0)
    for phase, use in zip(("prefill", "decode"), used, strict=True):
        assert use.busy_seconds == pytest.approx(totals.busy_seconds[phase], rel=1e-9, abs=1e-12)
        assert use.flops == pytest.approx(totals.flops[phase], rel=1e-9)
        assert use.memory_bytes == pytest.approx(totals.memory_bytes(phase), rel=1e-9)


@settings(deadline=None)
@given(chunks=chunk_lists, contexts=context_lists.filter(len))
def test_layers_with_a_window_count_no_less_than_the_exporter_counts(
    chunks: list[tuple[int, int, bool]], contexts: list[int]
) -> None:
    shape, roof, work = counted("gpt-oss-20b")
    record, totals, counters = StepRecord(shape.windows), Totals(), PhaseCounters()
    for tokens, cached, ends in chunks:
        record.prefill.add_prefill(cached, tokens, int(ends))
    for context in contexts:
        record.decode.add_decode(context - 1, 1, 1)
    Accounting(totals, shape, roof).add(record, 1.0)
    prefill, decode = record.prefill, record.decode
    work.add_step(
        counters, 1.0, prefill.tokens, prefill.attended_pairs, prefill.kv_tokens, prefill.sampled, len(chunks),
        decode.sequences, decode.kv_tokens,
    )  # fmt: skip
    for phase, use in zip(("prefill", "decode"), work.use(PhaseCounters(), counters, 1.0), strict=True):
        assert use.flops >= totals.flops[phase] * (1 - 1e-9)
        assert use.memory_bytes >= totals.memory_bytes(phase) * (1 - 1e-9)


@pytest.mark.parametrize("name", [*WITHOUT_WINDOWS, "gpt-oss-20b", "gemma-2-27b"])
@settings(deadline=None)
@given(contexts=st.lists(st.integers(2, 30_000), min_size=1, max_size=40), steps=st.integers(1, 300))
def test_a_run_counts_as_its_steps_one_by_one(name: str, contexts: list[int], steps: int) -> None:
    _, _, work = counted(name)
    run, single = PhaseCounters(), PhaseCounters()
    work.add_run(run, steps, len(contexts), sum(contexts))
    for step in range(steps):
        work.add_step(single, 0.02, 0, 0, 0, 0, 0, len(contexts), sum(contexts) + step * len(contexts))
    seconds = steps * 0.02
    found, expected = (work.use(PhaseCounters(), each, seconds) for each in (run, single))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.busy_seconds == pytest.approx(theirs.busy_seconds, rel=1e-9)
        assert ours.flops == pytest.approx(theirs.flops, rel=1e-9)
        assert ours.memory_bytes == pytest.approx(theirs.memory_bytes, rel=1e-9)


def played(shape: ModelShape, split: bool) -> tuple[Fleet, Results]:
    """A short trace on two engines."""
    results = Results(5.0)
    engine = EngineSettings(kv_blocks=20_000)
    fleet_settings = FleetSettings(2, engine, shape.kv_bytes_per_token, 50e9, 2.0, 0.05)
    work = PhaseWork(shape, Roof.of(H100))
    fleet = Fleet(fleet_settings, EngineCost(shape, H100), least_load(), results.done, work=work)
    results.watch(fleet)
    steer(fleet, StaticSplit(1) if split else StaticMixed(512))
    fleet.run(requests(3, 120, 6.0, (50, 3000), (1, 200)))
    return fleet, results


@pytest.mark.parametrize("split", [False, True])
def test_the_time_of_the_phases_adds_up(split: bool) -> None:
    """To the time of all steps that hold decodes and no more than the engines had, interval by interval."""
    shape = ModelShape.from_config(find_model("llama-3.1-8b"))
    fleet, results = played(shape, split)
    summary, timeline = results.summary(), results.timeline()
    prefill, decode = summary["prefill_use"], summary["decode_use"]
    assert sum(summary["engine_seconds"].values()) == pytest.approx(2 * fleet.now)
    assert prefill["busy_seconds"] + decode["busy_seconds"] >= fleet.counters.decode_seconds - 1e-6
    assert prefill["busy_seconds"] + decode["busy_seconds"] < 2 * fleet.now
    # A model without windows: every decoded token costs the same outside attention, so this is a floor.
    assert decode["flops"] > fleet.counters.decode_tokens * shape.decode.flops_per_token
    assert prefill["flops"] > fleet.counters.prefill_tokens * shape.linear_flops_per_token
    for name, whole in (("prefill_use", prefill), ("decode_use", decode)):
        parts = [getattr(interval, name) for interval in timeline]
        assert all(isinstance(part, PhaseUse) for part in parts)
        assert sum(part.flops for part in parts) == pytest.approx(whole["flops"])
        assert sum(part.busy_seconds for part in parts) == pytest.approx(whole["busy_seconds"])
    ridge = Roof.of(H100).ridge
    assert prefill["flops"] / prefill["memory_bytes"] > decode["flops"] / decode["memory_bytes"]
    assert decode["flops"] / decode["memory_bytes"] < ridge


def test_a_split_keeps_the_time_of_engines_by_role() -> None:
    _, results = played(ModelShape.from_config(find_model("llama-3.1-8b")), split=True)
    seconds = results.summary()["engine_seconds"]
    assert seconds["mixed"] == 0.0
    assert seconds["prefill"] == seconds["decode"] > 0.0


def test_time_of_engines_follows_their_labels_and_their_health() -> None:
    fleet_settings = FleetSettings(2, EngineSettings(kv_blocks=100), 1.0, inf, inf, inf)
    fleet = Fleet(fleet_settings, EngineCost(ModelShape.from_config(find_model("llama-3.1-8b")), H100), least_load())
    fleet.at(10.0, lambda now: fleet.set_role("engine-0", Role.PREFILL))
    fleet.at(12.0, lambda now: fleet.fail("engine-0", back_after_seconds=5.0))
    fleet.at(30.0, lambda now: fleet.count_engine_time())
    fleet.run([Arrival(0.0, 10, 2), Arrival(40.0, 10, 2)], until=35.0)
    assert fleet.counters.engine_seconds == {Role.MIXED: 10.0 + 30.0, Role.PREFILL: 2.0 + 13.0, Role.DECODE: 0.0}


def test_without_the_model_nothing_is_said_of_its_work() -> None:
    fleet_settings = FleetSettings(1, EngineSettings(kv_blocks=100), 1.0, inf, inf, inf)
    results = Results()
    cost = EngineCost(ModelShape.from_config(find_model("llama-3.1-8b")), H100)
    fleet = Fleet(fleet_settings, cost, least_load(), results.done)
    results.watch(fleet)
    fleet.run([Arrival(0.0, 10, 2)])
    assert results.summary()["prefill_use"] is None
    assert results.timeline()[0].plain()["decode_use"] is None


def test_an_interval_without_decodes_has_no_stall() -> None:
    """A share of nothing is missing, not zero."""
    results = Results(5.0)
    fleet_settings = FleetSettings(1, EngineSettings(kv_blocks=100), 1.0, inf, inf, inf)
    cost = EngineCost(ModelShape.from_config(find_model("llama-3.1-8b")), H100)
    fleet = Fleet(fleet_settings, cost, least_load(), results.done)
    results.watch(fleet)
    fleet.run([Arrival(0.0, 10, 20), Arrival(12.0, 10, 20)])
    assert [interval.stall_ratio for interval in results.timeline()] == [0.0, None, 0.0]


def test_copies_of_the_counters_do_not_change() -> None:
    _, _, work = counted("llama-3.1-8b")
    counters = Counters()
    before = counters.copy()
    work.add_run(counters.phases, 10, 4, 4000)
    assert work.use(before.phases, counters.phases, 1.0)[1].flops > 0.0
    assert work.use(before.phases, before.phases, 0.0)[1].flops == 0.0
