"""Long answers take over from long prompts: a split made for prompts is full within half a minute."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from ridgeline.simulate.load import CHAT, LONG_PROMPTS, Stream, poisson
from ridgeline.simulate.replay import Plant, play
from ridgeline_exporters.roofline import catalogue, hardware
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import Parallelism
from tests.bench.mixes import REASON

TURN_SECONDS, SECONDS = 240.0, 480.0
LEADING = {"prompts": 4.5, "reason": 33.0}
"""Requests per second of each class while it leads."""
FOLLOWING = {"chat": 3.6, "prompts": 0.25, "reason": 1.8}
"""Of the others meanwhile."""
CLASSES = {"chat": CHAT, "prompts": LONG_PROMPTS, "reason": REASON}


@cache
def played() -> dict[str, Any]:
    shape = ModelShape.from_config(catalogue.find_model("llama-3.1-70b"), "fp8", parallelism=Parallelism(4))
    plant = Plant(shape, hardware.find("H100-SXM5-80GB"), 8, 10_000, 50)

    def stream(name: str) -> Stream:
        def per_second(now: float) -> float:
            leader = "prompts" if now < TURN_SECONDS else "reason"
            return LEADING[name] if name == leader else FOLLOWING[name]

        return Stream(per_second, CLASSES[name].draw)

    peak = LEADING["reason"] + sum(FOLLOWING.values())
    return play("ridgeline", plant, poisson([stream(name) for name in CLASSES], SECONDS, peak, random.Random(1)))


def test_a_fleet_split_for_prompts_is_merged_before_long_answers_fill_it() -> None:
    timeline, decisions = played()["timeline"], played()["decisions"]
    before = [minute for minute in timeline if minute["end_seconds"] <= TURN_SECONDS]
    after = [minute for minute in timeline if minute["start_seconds"] >= TURN_SECONDS]
    assert before[-1]["prefill"] == 6, "the load before asks for a split"
    later = [event for event in decisions if event["seconds"] >= TURN_SECONDS]
    assert later[0]["action"] == "Merge"
    assert later[0]["seconds"] < TURN_SECONDS + 45.0
    assert sum(m["outcomes"]["met"] for m in after) > 0.97 * sum(m["arrived"] for m in after)
