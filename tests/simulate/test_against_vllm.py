"""The simulated engine beside vLLM's real scheduler: the same requests, the same step times, the same steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engines.engine_python import SCHEDULER_SCRIPTS, answer_of
from tests.engines.engines import make_model, python
from tests.simulate.scenarios import SCENARIOS, play

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM's scheduler did in every scenario."""
    if not python().exists():
        pytest.skip(f"no engines' environment: {python()} does not exist (set RIDGELINE_VLLM)")
    folder = tmp_path_factory.mktemp("scheduler")
    make_model(folder / "model")
    scenarios = folder / "scenarios.json"
    scenarios.write_text(json.dumps({name: scenario.as_json() for name, scenario in SCENARIOS.items()}))
    played: dict[str, Any] = answer_of(SCHEDULER_SCRIPTS / "play_scenarios.py", folder / "model", scenarios)
    return played


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_step_holds_what_vllm_schedules(real: dict[str, Any], name: str) -> None:
    expected, simulated = real[name], play(SCENARIOS[name])
    for place, ((time, step), (real_time, real_step)) in enumerate(
        zip(simulated.steps, expected["steps"], strict=False)
    ):
        assert step == real_step, f"step {place} at {real_time} s"
        assert time == pytest.approx(real_time, abs=1e-6), f"step {place}"
    assert len(simulated.steps) == len(expected["steps"])
    assert simulated.preemptions == expected["preemptions"]


def test_the_scenarios_reach_the_corners_that_they_are_for(real: dict[str, Any]) -> None:
    for name in ("preemption", "preemption with a threshold", "preemption with prefix cache"):
        assert real[name]["preemptions"] > 5, name
    for name in ("shared prefixes", "evicted prefixes"):
        scheduled = sum(sum(step.values()) for _, step in real[name]["steps"])
        whole = sum(row.prompt_tokens + row.output_tokens - 1 for row in SCENARIOS[name].requests)
        assert scheduled < 0.9 * whole, f"{name}: prompts are found in the cache"
    crowded = real["budget below the sequences"]["steps"]
    assert max(len(step) for time, step in crowded if time < 1.0) > 6
    used = {sum(step.values()) for time, step in crowded if 1.1 < time < 4.0}
    assert used == {6}, "the budget is used up while the rest of the batch stands still"
