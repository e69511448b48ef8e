"""Candidates are asked no more than a decision needs, and answer as if all had been."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.api.fleet import FleetStatus
from ridgeline.decide.candidates import CALM_LOAD, Assessment, forecast
from ridgeline.decide.plan import History
from ridgeline.decide.question import Question
from tests.decide.fleets import NOW, chat, engines, snapshot, spec


@settings(deadline=None, max_examples=40)
@given(rate=st.floats(0.5, 120.0), split=st.booleans())
def test_the_least_that_mixed_engines_miss_when_it_is_busier_is_the_least_of_all_of_them(
    rate: float, split: bool
) -> None:
    fleet = engines("ppppdddd" if split else "mmmmmmmm", limit=512, maximum=8192)
    seen = snapshot(fleet, chat(rate), link_bytes_per_second=48e9)
    question = Question(seen, spec(8), FleetStatus(), History(), NOW)
    load = question.load()
    assert load is not None
    scores = Assessment(question, load)
    busier = replace(load, requests_per_second=CALM_LOAD * rate)
    every = [forecast(busier, candidate.topology, question.budget).missed for candidate in scores.mixed]
    assert scores.mixed_when_busier == min(every)
