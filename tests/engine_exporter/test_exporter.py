from __future__ import annotations

import logging
from typing import Any

import pytest
from prometheus_client import generate_latest

from ridgeline_exporters.engine.accounting import WINDOW_SECONDS
from ridgeline_exporters.engine.metrics import OUTPUT_TOKENS
from ridgeline_exporters.engine.regression import WARM_UP_STEPS
from ridgeline_exporters.engine.requests import ARRIVAL_FIELD, Objectives
from ridgeline_exporters.roofline.work import Sequence, step_work
from tests.engine_exporter.synthetic import (
    ROOF,
    SHAPE,
    Bench,
    SyntheticEngineOutput,
    SyntheticFinishReason,
    SyntheticPrefillStats,
    SyntheticSchedulerOutput,
    SyntheticStatus,
    step,
    token,
)

LENGTH = SyntheticFinishReason.LENGTH
HAND_OFF = {"do_remote_decode": True, "do_remote_prefill": False}


def seconds_of_steps(bench: Bench) -> float:
    return float(sum(histogram.total for histogram in bench.totals.steps.values()))


# Work


def test_flops_and_bytes_are_those_of_the_roofline_and_phases_add_up() -> None:
    bench = Bench()
    bench.request("a", 100)
    bench.request("b", 50)
    bench.run(step(new={"a": (100, 0, 100)}), 0.1, token("a"))
    bench.run(step(new={"b": (50, 0, 30)}, cached={"a": (100, 1)}), 0.1, token("a"))
    first = step_work(SHAPE, [Sequence(100, 100)], [])
    second = step_work(SHAPE, [Sequence(30, 30, samples=False)], [Sequence(1, 101)])
    prefill, decode = first[0] + second[0], second[1]
    for phase, work in (("prefill", prefill), ("decode", decode)):
        assert bench.totals.flops[phase] == pytest.approx(work.flops)
        assert bench.totals.bytes[phase] == {
            "weights": pytest.approx(work.weight_bytes),
            "kv_read": pytest.approx(work.kv_read_bytes),
            "kv_write": pytest.approx(work.kv_write_bytes),
            "activations": pytest.approx(work.activation_bytes),
        }
    weights = sum(bench.totals.bytes[phase]["weights"] for phase in ("prefill", "decode"))
    assert weights == pytest.approx(2 * SHAPE.weight_bytes)


def test_a_model_without_a_roofline_is_still_counted_in_tokens_and_seconds() -> None:
    bench = Bench(shape=None, roof=None)
    bench.request("a", 90)
    bench.request("b", 50)
    bench.run(step(new={"b": (50, 0, 50)}), 0.1, token("b"))
    bench.run(step(new={"a": (90, 0, 3)}, cached={"b": (50, 1)}), 0.4)
    assert bench.totals.tokens == {"prefill": 53, "decode": 1}
    assert bench.totals.flops == {"prefill": 0.0, "decode": 0.0}
    assert bench.totals.busy_seconds == {"prefill": pytest.approx(0.1 + 0.3), "decode": pytest.approx(0.1)}


def test_a_mixed_step_is_split_by_the_modelled_time_of_each_phase() -> None:
    bench = Bench()
    bench.request("a", 200)
    bench.request("b", 50)
    bench.run(step(new={"b": (50, 0, 50)}), 0.1, token("b"))
    before = bench.totals.busy_seconds.copy()
    bench.run(step(new={"a": (200, 0, 200)}, cached={"b": (50, 1)}), 0.5)
    prefill, decode = (ROOF.bound(work).seconds for work in step_work(SHAPE, [Sequence(200, 200)], [Sequence(1, 51)]))
    busy = {phase: bench.totals.busy_seconds[phase] - before[phase] for phase in before}
    assert busy["prefill"] == pytest.approx(0.5 * prefill / (prefill + decode))
    assert sum(busy.values()) == pytest.approx(0.5)


# Time


def test_idle_time_before_a_step_is_not_step_time() -> None:
    bench = Bench()
    for name in ("a", "b"):
        bench.request(name, 8)
        bench.pass_time(30.0)
        bench.run(step(new={name: (8, 0, 8)}), 0.02, token(name, finish_reason=LENGTH))
    assert seconds_of_steps(bench) == pytest.approx(0.04)


def test_between_steps_of_a_busy_engine_no_time_is_lost() -> None:
    bench = Bench()
    bench.scheduler.running = [bench.request("a", 8)]
    bench.run(step(new={"a": (8, 0, 8)}), 0.02, token("a"))
    bench.pass_time(0.003)  # the engine hands out tokens and takes in requests
    bench.run(step(cached={"a": (8, 1)}), 0.02, token("a"))
    assert seconds_of_steps(bench) == pytest.approx(0.043)


def test_steps_that_overlap_are_timed_from_completion_to_completion() -> None:
    bench = Bench()
    bench.scheduler.running = [bench.request("a", 8)]
    first = bench.schedule(step(new={"a": (8, 0, 8)}))
    bench.pass_time(0.001)
    second = bench.schedule(step(cached={"a": (8, 1)}))  # asynchronous scheduling runs one step ahead
    bench.pass_time(0.019)
    bench.complete(first, token("a"))
    third = bench.schedule(step(cached={"a": (9, 1)}))
    bench.pass_time(0.010)
    bench.complete(second, token("a"))
    bench.pass_time(0.010)
    bench.complete(third, token("a"))
    assert bench.totals.steps["prefill"].total == pytest.approx(0.020)
    assert bench.totals.steps["decode"].total == pytest.approx(0.020)
    assert bench.totals.gaps.counts[5] + bench.totals.gaps.counts[6] == 2
    assert bench.totals.gaps.total == pytest.approx(0.020)


def test_waiting_for_kv_in_steps_without_tokens_is_idle() -> None:
    bench = Bench()
    bench.scheduler.running = [bench.request("a", 8)]
    bench.run(step(new={"a": (8, 0, 8)}), 0.02, token("a"))
    for _ in range(100):
        bench.run(step(), 0.05)
    bench.run(step(cached={"a": (8, 1)}), 0.02, token("a"))
    assert seconds_of_steps(bench) == pytest.approx(0.04)
    assert sum(sum(h.counts) for h in bench.totals.steps.values()) == 2


def test_a_pause_that_keeps_its_requests_is_idle() -> None:
    bench = Bench()
    bench.scheduler.running = [bench.request("a", 8)]
    bench.run(step(new={"a": (8, 0, 8)}), 0.02, token("a"))
    bench.exporter.after_pause()
    bench.pass_time(60.0)
    bench.exporter.after_pause()
    bench.run(step(cached={"a": (8, 1)}), 0.02, token("a"))
    assert seconds_of_steps(bench) == pytest.approx(0.04)
    assert bench.totals.gaps.total == pytest.approx(60.02), "clients did wait"


def test_steps_are_summed_by_kind_in_the_terms_of_the_step_model() -> None:
    bench = Bench()
    bench.scheduler.running = [bench.request("a", 8)]
    bench.run(step(new={"a": (8, 0, 8)}), 0.02, token("a"))
    for position in (8, 9):
        bench.run(step(cached={"a": (position, 1)}), 0.01, token("a"))
    bench.request("b", 20)
    bench.run(step(new={"b": (20, 0, 12)}, cached={"a": (10, 1)}), 0.03, token("a"))
    bench.run(step(cached={"a": (11, 1), "b": (12, 8)}), 0.03, token("a"), token("b"))
    held = {kind: tuple(terms.values()) for kind, terms in bench.totals.step_terms.items()}
    assert list(bench.totals.step_terms["decode"]) == ["decode_sequence", "kv_token", "prefill_token", "prefill_pair"]
    assert held == {
        "prefill": (0, 0, 8, 8 * 9 // 2),
        "decode": (2, 9 + 10, 0, 0),
        "mixed": (2, 11 + 12, 20, 20 * 21 // 2),
    }


# Stall


def decoding(bench: Bench, steps: int) -> int:
    """Let one request decode alone for so many steps of 10 ms; returns its next position."""
    bench.scheduler.running = [bench.request("a", 8)]
    bench.run(step(new={"a": (8, 0, 8)}), 0.02, token("a"))
    for i in range(steps):
        bench.run(step(cached={"a": (8 + i, 1)}), 0.01, token("a"))
    return 8 + steps


def test_prefill_beside_a_decode_stalls_it_by_what_the_step_took_longer() -> None:
    bench = Bench()
    position = decoding(bench, 4 * WARM_UP_STEPS)
    bench.request("b", 200)
    bench.run(step(new={"b": (200, 0, 200)}, cached={"a": (position, 1)}), 0.11, token("a"), token("b"))
    assert bench.totals.stall_seconds == pytest.approx(0.10, rel=0.02)
    assert bench.totals.stall_sequence_seconds == pytest.approx(0.10, rel=0.02)
    assert sum(bench.totals.stalls.counts) == 1
    assert bench.totals.decode_seconds == pytest.approx(4 * WARM_UP_STEPS * 0.01 + 0.11)


def test_the_baseline_is_shown_for_the_decodes_of_the_last_step_once_it_is_known() -> None:
    bench = Bench()
    position = decoding(bench, WARM_UP_STEPS - 1)
    assert bench.exporter.gauges()["decode_baseline_seconds"] == []
    assert bench.exporter.gauges()["decode_baseline_samples"] == [((), WARM_UP_STEPS - 1)]
    bench.run(step(cached={"a": (position, 1)}), 0.01, token("a"))
    assert dict(bench.exporter.gauges()["decode_baseline_seconds"]) == {(): pytest.approx(0.01, rel=0.01)}


def test_no_stall_is_invented_before_the_baseline_is_known() -> None:
    bench = Bench()
    position = decoding(bench, WARM_UP_STEPS - 1)
    bench.request("b", 200)
    bench.run(step(new={"b": (200, 0, 200)}, cached={"a": (position, 1)}), 0.11, token("a"), token("b"))
    assert bench.totals.stall_seconds == 0.0
    assert sum(bench.totals.stalls.counts) == 0


def test_a_mixed_step_faster_than_the_baseline_is_no_negative_stall() -> None:
    bench = Bench()
    position = decoding(bench, 4 * WARM_UP_STEPS)
    bench.request("b", 2)
    bench.run(step(new={"b": (2, 0, 2)}, cached={"a": (position, 1)}), 0.005, token("a"), token("b"))
    assert bench.totals.stall_seconds == 0.0
    assert sum(bench.totals.stalls.counts) == 1


# Requests


@pytest.mark.parametrize(
    ("first", "gaps", "outcome"),
    [
        pytest.param(0.4, [0.04] * 20, "met", id="all in time"),
        pytest.param(0.6, [0.04] * 20, "first_token_late", id="late first token"),
        pytest.param(0.4, [0.04] * 19 + [0.2], "met", id="one gap of twenty is 5 %, and not more"),
        pytest.param(0.4, [0.04] * 18 + [0.2] * 2, "gaps_late", id="two gaps of twenty"),
        pytest.param(0.6, [0.2] * 20, "first_token_late", id="both late: the first token decides"),
        pytest.param(0.4, [], "met", id="a single token has no gaps"),
    ],
)
def test_a_request_is_judged_by_its_first_token_and_its_own_gaps(first: float, gaps: list[float], outcome: str) -> None:
    bench = Bench(Objectives(0.5, 0.05))
    bench.scheduler.running = [bench.request("a", 8)]
    ends = {"finish_reason": LENGTH}
    bench.run(step(new={"a": (8, 0, 8)}), first, token("a", **({} if gaps else ends)))
    for i, gap in enumerate(gaps):
        bench.run(step(cached={"a": (8 + i, 1)}), gap, token("a", **(ends if i == len(gaps) - 1 else {})))
    assert bench.totals.requests == {"met": 0, "first_token_late": 0, "gaps_late": 0, outcome: 1}
    assert bench.totals.first_tokens.total == pytest.approx(first)
    assert bench.totals.prompt_tokens.total == 8
    assert bench.totals.output_tokens.total == len(gaps) + 1


def longer(bench: Bench) -> dict[int, int]:
    """Outputs that have become longer than each bound, of the bounds that any has passed."""
    counts = zip(OUTPUT_TOKENS, bench.exporter.outputs_longer(), strict=True)
    return {tokens: count for tokens, count in counts if count}


def test_an_output_counts_beyond_each_bound_as_soon_as_it_passes_it() -> None:
    bench = Bench()
    bench.scheduler.running = [bench.request("a", 8)]
    bench.run(step(new={"a": (8, 0, 8)}), 0.01, token("a"))
    assert longer(bench) == {}, "one token is not more than one"
    bench.run(step(cached={"a": (8, 1)}), 0.01, token("a"))
    assert longer(bench) == {1: 1}
    bench.run(step(cached={"a": (9, 1)}), 0.01, token("a"))
    bench.run(step(cached={"a": (10, 1)}), 0.01, token("a"))
    assert longer(bench) == {1: 1, 2: 1}, "four tokens are not more than four"
    bench.run(step(cached={"a": (11, 1)}), 0.01, token("a", finish_reason=LENGTH))
    assert longer(bench) == {1: 1, 2: 1, 4: 1}
    bench.run(step(finished={"a"}), 0.0)
    assert longer(bench) == {1: 1, 2: 1, 4: 1}, "and stays counted when the request is gone"


def test_outputs_that_are_cut_stay_counted_as_far_as_they_came() -> None:
    bench = Bench()
    bench.scheduler.running = [bench.request("a", 8)]
    bench.run(step(new={"a": (8, 0, 8)}), 0.01, token("a"))
    bench.run(step(cached={"a": (8, 1)}), 0.01, token("a"))
    bench.run(step(cached={"a": (9, 1)}), 0.01, token("a", finish_reason=SyntheticFinishReason.ABORT))
    bench.run(step(finished={"a"}), 0.0)
    assert longer(bench) == {1: 1, 2: 1}
    assert sum(bench.totals.output_tokens.counts) == 0, "a length that was cut is none"


def test_a_preempted_request_keeps_what_it_has_and_goes_on_from_there() -> None:
    bench = Bench()
    bench.scheduler.running = [bench.request("a", 8)]
    bench.run(step(new={"a": (8, 0, 8)}), 0.01, token("a"))
    bench.run(step(cached={"a": (8, 1)}), 0.01, token("a"))
    bench.scheduler.running = []
    assert longer(bench) == {1: 1}, "preempted, it waits"
    bench.run(step(cached={"a": (0, 10)}, resumed={"a"}), 0.01, token("a"))
    assert longer(bench) == {1: 1, 2: 1}


def test_what_another_engine_decodes_is_no_output_of_this_one() -> None:
    bench = Bench()
    bench.request("a", 8, kv_transfer_params=HAND_OFF)
    bench.request("b", 8)
    bench.run(step(new={"a": (8, 0, 8), "b": (8, 0, 8)}), 0.01, token("a"), token("b"))
    bench.run(step(cached={"a": (8, 1), "b": (8, 1)}), 0.01, token("a"), token("b"))
    assert longer(bench) == {1: 1}
    bench.run(step(finished={"a", "b"}), 0.0)
    assert longer(bench) == {1: 1}


def test_the_count_does_not_fall_for_a_request_that_is_let_go_of_while_it_is_looked_at() -> None:
    bench = Bench()
    bench.scheduler.running = [bench.request("a", 8)]
    bench.run(step(new={"a": (8, 0, 8)}), 0.01, token("a"))
    bench.run(step(cached={"a": (8, 1)}), 0.01, token("a"))
    assert longer(bench) == {1: 1}
    bench.totals.gone_outputs = Vanishing(bench, "a")
    assert longer(bench) == {1: 1}, "it was in neither list"
    assert longer(bench) == {1: 1}, "and counts once"


class Vanishing(list[int]):
    """Counts of what is gone; while they are copied, one more request goes."""

    def __init__(self, bench: Bench, request: str) -> None:
        super().__init__(bench.totals.gone_outputs)
        self._bench, self._request = bench, request

    def __getitem__(self, place: Any) -> Any:
        copied = super().__getitem__(place)
        if isinstance(place, slice):
            self._bench.exporter._tokens.forget(self._request)
        return copied


def test_without_objectives_nothing_is_late() -> None:
    bench = Bench()
    bench.request("a", 8)
    bench.run(step(new={"a": (8, 0, 8)}), 100.0, token("a", finish_reason=LENGTH))
    assert bench.totals.requests["met"] == 1


def test_time_in_the_queue_belongs_to_the_first_token() -> None:
    bench = Bench()
    bench.request("a", 8)
    bench.pass_time(3.0)
    bench.run(step(new={"a": (8, 0, 8)}), 0.5, token("a", finish_reason=LENGTH))
    assert bench.totals.first_tokens.total == pytest.approx(3.5)


def test_a_prefill_that_is_handed_off_is_not_finished_here_and_carries_its_arrival() -> None:
    bench = Bench(Objectives(0.01, 0.01))
    request = bench.request("a", 8, kv_transfer_params=dict(HAND_OFF))
    output = token("a", finish_reason=LENGTH, kv_transfer_params={"do_remote_prefill": True})
    bench.run(step(new={"a": (8, 0, 8)}), 0.5, output)
    assert output.kv_transfer_params == {"do_remote_prefill": True, ARRIVAL_FIELD: request.arrival_time}
    assert sum(bench.totals.requests.values()) == 0
    assert sum(bench.totals.first_tokens.counts) == sum(bench.totals.output_tokens.counts) == 0
    assert bench.totals.prefills_finished == 1


def received(bench: Bench, carried: object) -> None:
    params = {"do_remote_prefill": False, "do_remote_decode": False, ARRIVAL_FIELD: carried}
    bench.request("a", 100, kv_transfer_params=params, prefill_stats=SyntheticPrefillStats(0, 100))
    bench.run(step(new={"a": (100, 99, 1)}), 0.5, token("a", finish_reason=LENGTH))


def test_a_received_request_counts_from_its_arrival_at_the_first_engine() -> None:
    bench = Bench()
    received(bench, bench.wall.now - 2.0)
    assert bench.totals.first_tokens.total == pytest.approx(2.5)
    assert bench.totals.tokens == {"prefill": 0, "decode": 1}
    assert bench.totals.external_prompt_tokens == 100
    assert bench.totals.prefills_finished == 0
    assert bench.totals.steps["decode"].total == pytest.approx(0.5)


@pytest.mark.parametrize(
    "carried",
    [
        pytest.param(2_000_000_000.0, id="in the future"),
        pytest.param(1.0, id="absurdly old"),
        pytest.param("yesterday", id="no number"),
        pytest.param(True, id="a boolean"),
        pytest.param(float("nan"), id="not a number"),
        pytest.param(None, id="nothing"),
    ],
)
def test_a_carried_arrival_that_cannot_be_is_not_believed(carried: object) -> None:
    bench = Bench()
    received(bench, carried)
    assert bench.totals.first_tokens.total == pytest.approx(0.5)
    assert bench.exporter.up


@pytest.mark.parametrize(
    ("local", "external", "start", "arrived"),
    [
        pytest.param(32, 68, 99, 68, id="the rest of a local hit came"),
        pytest.param(0, 100, 64, 64, id="a part came"),
        pytest.param(32, 68, 32, 0, id="nothing came"),
        pytest.param(0, 0, 0, 0, id="nothing was to come"),
    ],
)
def test_only_prompt_tokens_that_arrived_count_as_external(local: int, external: int, start: int, arrived: int) -> None:
    bench = Bench()
    bench.request("a", 100, prefill_stats=SyntheticPrefillStats(local, external))
    bench.run(step(new={"a": (100, start, 100 - start)}), 0.1, token("a"))
    assert bench.totals.external_prompt_tokens == arrived
    assert bench.totals.tokens["prefill"] == (0 if start == 99 else 100 - start)


def test_clients_that_give_up_count_when_they_were_already_late() -> None:
    bench = Bench(Objectives(0.5, None))
    patient, late, queued = (bench.request(name, 8) for name in ("patient", "late", "queued"))
    bench.schedule(step(new={"patient": (8, 0, 4), "late": (8, 0, 4)}))
    bench.pass_time(0.1)
    bench.exporter.after_finish([patient])
    bench.pass_time(0.5)
    bench.exporter.after_finish([late, queued])
    assert bench.totals.requests == {"met": 0, "first_token_late": 2, "gaps_late": 0}


def test_aborted_and_failed_requests_are_not_counted_as_met() -> None:
    bench = Bench()
    for name, reason in (("a", SyntheticFinishReason.ABORT), ("b", SyntheticFinishReason.ERROR)):
        bench.request(name, 8)
        bench.run(step(new={name: (8, 0, 8)}), 0.1, token(name, finish_reason=reason))
    assert sum(bench.totals.requests.values()) == 0


def test_a_step_in_flight_for_a_finished_request_is_still_counted_and_then_forgotten() -> None:
    bench = Bench()
    bench.scheduler.running = [bench.request("a", 8)]
    first = bench.schedule(step(new={"a": (8, 0, 8)}))
    second = bench.schedule(step(cached={"a": (8, 1)}))
    bench.complete(first, token("a", finish_reason=SyntheticFinishReason.STOP))
    bench.complete(second)
    assert bench.totals.tokens == {"prefill": 8, "decode": 1}
    assert bench.exporter._states
    bench.run(step(finished={"a"}), 0.0)
    assert not bench.exporter._states


def test_requests_are_counted_by_state() -> None:
    bench = Bench()
    a, b, c, d = (bench.request(name, 8) for name in "abcd")
    bench.request("pinned", 8)
    c.status = SyntheticStatus.WAITING_FOR_REMOTE_KVS
    bench.scheduler.running, bench.scheduler.waiting = [a, b], [d]
    bench.scheduler.kv_holding_waiting, bench.scheduler.deferred_waiting = [c], {c}
    bench.run(step(new={"a": (8, 0, 4)}), 0.1)
    bench.run(step(cached={"b": (9, 1), "a": (4, 2)}), 0.1)
    states = {labels[0]: value for labels, value in bench.exporter.gauges()["requests"]}
    assert states == {"waiting": 1, "prefilling": 1, "decoding": 1, "transferring": 1}
    state = bench.exporter.state()
    assert (state["waiting"], state["decoding"], state["pinned_remote_reads"]) == (1, 1, 1)


# Arrivals


def arrived(bench: Bench) -> tuple[int, float]:
    """Requests that arrived, and the tokens of their prompts."""
    return sum(bench.totals.prompt_tokens.counts), bench.totals.prompt_tokens.total


def test_a_request_counts_once_as_soon_as_it_arrives_whatever_becomes_of_it() -> None:
    bench = Bench()
    served, given_up = bench.request("served", 40), bench.request("given up", 60)
    assert arrived(bench) == (2, 100)
    bench.scheduler.running = [served]
    bench.run(step(new={"served": (40, 0, 40)}), 0.1, token("served"))
    bench.run(step(cached={"served": (0, 41)}, resumed={"served"}), 0.1, token("served", finish_reason=LENGTH))
    bench.exporter.after_finish([given_up])
    assert arrived(bench) == (2, 100)


@pytest.mark.parametrize(
    ("params", "counts"),
    [
        pytest.param(None, 1, id="a mixed engine"),
        pytest.param({}, 1, id="no word of a transfer"),
        pytest.param(HAND_OFF, 1, id="the prefill engine"),
        pytest.param({"do_remote_decode": False, "do_remote_prefill": True}, 0, id="the decode engine"),
    ],
)
def test_over_a_split_a_request_arrives_at_its_prefill_engine_alone(
    params: dict[str, bool] | None, counts: int
) -> None:
    bench = Bench()
    bench.request("a", 100, kv_transfer_params=params)
    assert arrived(bench) == (counts, 100 * counts)


def test_each_turn_of_a_streaming_session_arrives_with_what_it_adds_and_its_end_does_not() -> None:
    bench = Bench()
    bench.request("session", 40, resumable=True)
    bench.request("session", 10, resumable=True)
    assert arrived(bench) == (2, 50)
    bench.request("session", 1, resumable=False)
    assert arrived(bench) == (2, 50)


def test_what_vllm_gives_itself_to_let_go_of_kv_does_not_arrive() -> None:
    bench = Bench()
    bench.request("refused", 1, abort_immediately=True)
    assert arrived(bench) == (0, 0)


# Gauges


def test_the_ten_second_gauges_are_the_rates_of_the_counters() -> None:
    bench = Bench()
    bench.scheduler.running = [bench.request("a", 8)]
    bench.run(step(new={"a": (8, 0, 8)}), 1.0, token("a"))
    history = []
    for i in range(40):
        history.append((bench.monotonic.now, bench.totals.flops["decode"], bench.totals.memory_bytes("decode")))
        bench.run(step(cached={"a": (8 + i, 1)}), 0.5, token("a"))
    now, flops, moved = bench.monotonic.now, bench.totals.flops["decode"], bench.totals.memory_bytes("decode")
    then = max(sample for sample in history if sample[0] <= now - WINDOW_SECONDS)
    gauges = bench.exporter.gauges()
    by_name = {
        name: dict(gauges[name])[("decode",)]
        for name in gauges
        if name.endswith(("_byte", "_ratio")) and dict(gauges[name]).get(("decode",)) is not None
    }
    assert by_name == {
        "arithmetic_intensity_flops_per_byte": pytest.approx((flops - then[1]) / (moved - then[2])),
        "memory_bandwidth_utilization_ratio": pytest.approx((moved - then[2]) / 10.0 / ROOF.memory_bytes_per_second),
        "compute_utilization_ratio": pytest.approx((flops - then[1]) / 10.0 / ROOF.flops_per_second),
    }


def test_after_ten_idle_seconds_utilisation_is_zero_and_intensity_absent() -> None:
    bench = Bench()
    bench.request("a", 8)
    bench.run(step(new={"a": (8, 0, 8)}), 1.0, token("a", finish_reason=LENGTH))
    bench.pass_time(11.0)
    gauges = bench.exporter.gauges()
    assert gauges["arithmetic_intensity_flops_per_byte"] == []
    assert dict(gauges["compute_utilization_ratio"]) == {("prefill",): 0.0, ("decode",): 0.0}


def test_late_gaps_are_counted_the_same_for_requests_in_step_and_out_of_step() -> None:
    bench = Bench(Objectives(None, 0.05))
    bench.scheduler.running = [bench.request("a", 8), bench.request("b", 8)]
    bench.run(step(new={"a": (8, 0, 8), "b": (8, 0, 8)}), 0.1, token("a"), token("b"))
    bench.run(step(cached={"a": (8, 1), "b": (8, 1)}), 0.06, token("a"), token("b"))  # both late, in step
    bench.run(step(cached={"a": (9, 1)}), 0.04, token("a"))
    bench.run(step(cached={"a": (10, 1), "b": (9, 1)}), 0.04, token("a"), token("b"))  # b waited for two steps
    states = bench.exporter._states
    assert (states["a"].gaps, states["a"].late_gaps) == (3, 1)
    assert (states["b"].gaps, states["b"].late_gaps) == (2, 2)
    assert bench.totals.gaps.total == pytest.approx(0.06 + 0.04 + 0.04 + 0.06 + 0.08)
    assert sum(bench.totals.gaps.counts) == 5


def test_drafts_that_were_accepted_come_at_once_and_are_one_gap() -> None:
    bench = Bench(Objectives(None, 0.05))
    bench.scheduler.running = [bench.request("a", 8)]
    bench.run(step(new={"a": (8, 0, 8)}), 0.1, token("a"))
    accepted = SyntheticEngineOutput("a", [7, 7, 7])
    bench.run(step(cached={"a": (8, 4)}, speculated={"a": 3}), 0.06, accepted)
    bench.run(step(cached={"a": (11, 4)}, speculated={"a": 3}), 0.04, token("a", finish_reason=LENGTH))
    assert sum(bench.totals.gaps.counts) == 2
    assert bench.totals.output_tokens.total == 5
    assert bench.totals.requests["gaps_late"] == 1, "one gap of two"


# Faults


def test_an_engine_that_can_no_longer_be_read_is_said_to_be_down_and_scrapes_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    del bench.scheduler.kv_holding_waiting
    for _ in range(3):
        text = generate_latest(bench.exporter.registry).decode()
        assert "ridgeline_engine_exporter_up 0.0" in text
        assert "ridgeline_engine_tokens_total" in text
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("before_add", id="while a request arrives"),
        pytest.param("after_schedule", id="while scheduling"),
        pytest.param("after_update", id="while updating"),
        pytest.param("after_finish", id="while finishing"),
    ],
)
def test_a_fault_turns_the_exporter_off_and_reaches_nobody(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    caplog.set_level(logging.ERROR)
    nonsense = SyntheticSchedulerOutput(num_scheduled_tokens={"never seen": 1})
    nonsense.scheduled_new_reqs = [object()]  # type: ignore[list-item]
    for _ in range(3):
        getattr(bench.exporter, broken)(
            *{"after_update": (nonsense, {}, 0.0), "after_schedule": (nonsense, 0.0)}.get(broken, ([object()],))
        )
    assert not bench.exporter.up
    assert bench.totals.errors == 1
    assert dict(bench.exporter.gauges()["exporter_up"]) == {(): 0.0}
    assert len(caplog.records) == 1


def test_limits_still_reach_the_scheduler_after_the_accounting_failed() -> None:
    bench = Bench()
    bench.exporter.after_finish([object()])
    assert not bench.exporter.up
    bench.exporter.put_limits({"max_num_scheduled_tokens": 64})
    bench.exporter.before_schedule()
    assert bench.scheduler.max_num_scheduled_tokens == 64
