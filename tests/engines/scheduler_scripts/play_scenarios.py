"""Drives vLLM's real scheduler through scenarios on a virtual clock, and prints what each step held.

    python play_scenarios.py MODEL SCENARIOS.json

Runs with the engines' interpreter. No model is computed: a step takes what the scenario's formula says,

    seconds = fixed + token · tokens of the step + context · sum over requests of (tokens computed after the step)

and each request that reaches its last known token samples one.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from real_scheduler import real_scheduler  # type: ignore[import-not-found]  # beside this script


def prompt(row: Mapping[str, Any], number: int, hash_tokens: int) -> list[int]:
    """Tokens such that prompts share what their hashes share, and nothing else."""
    tokens: list[int] = []
    for name in row["block_hashes"]:
        dice = random.Random(1_000_000 + name)
        tokens += [dice.randrange(2, 500) for _ in range(hash_tokens)]
    tokens = tokens[: row["prompt_tokens"]]
    dice = random.Random(number)
    return tokens + [dice.randrange(2, 500) for _ in range(row["prompt_tokens"] - len(tokens))]


def run(model: str, scenario: Mapping[str, Any]) -> dict[str, Any]:
    """Play one scenario."""
    from vllm import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    engine, cost = scenario["engine"], scenario["cost"]
    scheduler = real_scheduler(
        model, engine["kv_blocks"] + 1, engine["block_tokens"], max_model_len=4096,
        max_num_batched_tokens=engine["max_num_batched_tokens"], max_num_seqs=engine["max_num_seqs"],
        enable_prefix_caching=engine["prefix_caching"], enable_chunked_prefill=True,
        long_prefill_token_threshold=engine["long_prefill_token_threshold"],
    )  # fmt: skip
    hasher = None
    if engine["prefix_caching"]:
        function = get_hash_fn_by_name("sha256")
        init_none_hash(function)
        hasher = get_request_block_hasher(engine["block_tokens"], function)
    rows, limits = list(enumerate(scenario["requests"])), list(scenario["limits"])
    requests: dict[str, Any] = {}
    steps: list[Any] = []
    now = 0.0
    while rows or scheduler.has_requests():
        if not scheduler.has_requests():
            now = max(now, rows[0][1]["seconds"])
        while rows and rows[0][1]["seconds"] <= now:
            number, row = rows.pop(0)
            request = Request(
                request_id=str(number), prompt_token_ids=prompt(row, number, engine["hash_tokens"]),
                sampling_params=SamplingParams(max_tokens=row["output_tokens"], ignore_eos=True),
                pooling_params=None, block_hasher=hasher,
            )  # fmt: skip
            requests[request.request_id] = request
            scheduler.add_request(request)
        while limits and limits[0][0] <= now:
            scheduler.max_num_scheduled_tokens = limits.pop(0)[1]
        output = scheduler.schedule()
        scheduled = output.num_scheduled_tokens
        if scheduled:  # a last call only tells the workers who has finished
            steps.append([now, dict(scheduled)])
            now += cost["fixed"]
        ends = {name: requests[name].num_computed_tokens for name in scheduled}  # already advanced by schedule()
        now += cost["token"] * sum(scheduled.values()) + cost["context"] * sum(ends.values())
        names = list(scheduled)
        sampled = [[2 + int(name) % 400] if ends[name] >= requests[name].num_tokens else [] for name in names]
        scheduler.update_from_output(
            output, ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)
        )
    return {
        "steps": steps,
        "preemptions": sum(request.num_preemptions for request in requests.values()),
    }


def main(model: str, scenarios: str) -> None:
    """Play all scenarios and print what happened."""
    played = {name: run(model, scenario) for name, scenario in json.loads(Path(scenarios).read_text()).items()}
    print("RESULT " + json.dumps(played))


if __name__ == "__main__":
    main(*sys.argv[1:])
