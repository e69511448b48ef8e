"""Policies by their names, as `ridgeline replay --policies` takes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgeline.cost.step_cost import EngineCost
from ridgeline.simulate.controller import Controller, StaticMixed, StaticSplit
from ridgeline.simulate.ridgeline_policy import RidgelinePolicy
from ridgeline.simulate.rivals.arrow import Arrow
from ridgeline.simulate.rivals.clairvoyant import Clairvoyant
from ridgeline.simulate.rivals.dynamo import Dynamo
from ridgeline.simulate.rivals.heteroscale import HeteroScale
from ridgeline.simulate.rivals.overflow import Overflow
from ridgeline.simulate.rivals.wva import Wva
from ridgeline.simulate.scheduler import BUDGET_TOKENS

if TYPE_CHECKING:
    from ridgeline.simulate.replay import Plant


@dataclass(frozen=True, slots=True)
class Kind:
    """One policy, or one for each number."""

    name: str
    """As a person writes it; a word in capitals stands for a number."""
    meaning: str
    make: Callable[[int, Plant], Controller | None]
    """Of the number (0 without one) and the fleet; None: not with these."""


def _rival(make: Callable[[Plant], Controller]) -> Callable[[int, Plant], Controller | None]:
    """Rivals divide the engines in two pools."""
    return lambda number, plant: make(plant) if plant.engines > 1 else None


def _split(make: Callable[[int], Controller]) -> Callable[[int, Plant], Controller | None]:
    return lambda prefill, plant: make(prefill) if 0 < prefill < plant.engines else None


def _objectives(plant: Plant) -> tuple[float, float]:
    """Of the first token and between tokens, in seconds."""
    return plant.first_token_objective_milliseconds / 1000.0, plant.inter_token_objective_milliseconds / 1000.0


KINDS = (
    Kind("ridgeline", "this operator", lambda number, plant: RidgelinePolicy(plant.spec())),
    Kind(
        "mixed:TOKENS",
        f"token budget, at most {BUDGET_TOKENS}",
        lambda tokens, plant: StaticMixed(tokens) if 0 < tokens <= BUDGET_TOKENS else None,
    ),
    Kind("split:PREFILL", "prefill engines, at least one and fewer than all", _split(StaticSplit)),
    Kind("overflow:PREFILL", "the same, and decode engines help when prefill is backed up", _split(Overflow)),
    Kind("dynamo", "like NVIDIA Dynamo's planner", _rival(lambda plant: Dynamo(*_objectives(plant)))),
    Kind("wva", "like llm-d's autoscaler", _rival(lambda plant: Wva())),
    Kind("heteroscale", "like ByteDance's autoscaler", _rival(lambda plant: HeteroScale(_objectives(plant)[1]))),
    Kind(
        "arrow",
        "labels that follow each request",
        _rival(
            lambda plant: Arrow(EngineCost(plant.shape, plant.accelerator), *_objectives(plant), plant.kv_tokens),
        ),
    ),
    Kind("clairvoyant", "the best choice every two minutes, from the true future", _rival(lambda plant: Clairvoyant())),
)


def find(name: str, plant: Plant) -> Controller | None:
    """The policy of this name; None when there is none, or not for this fleet."""
    word, colon, number = name.partition(":")
    for kind in KINDS:
        known, known_colon, _ = kind.name.partition(":")
        if (word, colon) == (known, known_colon) and (not colon or re.fullmatch(r"[0-9]+", number)):
            return kind.make(int(number or 0), plant)
    return None


def names() -> str:
    """All names with their meanings, for help and errors."""
    every = [f"{kind.name} ({kind.meaning})" for kind in KINDS]
    return ", ".join(every[:-1]) + " or " + every[-1]
