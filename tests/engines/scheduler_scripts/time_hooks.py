"""Times the exporter's hooks on vLLM's real scheduler.

    python time_hooks.py MODEL

Runs with the engines' interpreter and the exporter on PYTHONPATH; prints medians as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from real_scheduler import real_scheduler  # type: ignore[import-not-found]  # beside this script

REQUESTS, CONTEXT, STEPS, BLOCK, BUDGET = 256, 4096, 600, 32, 8192
OUTPUTS = STEPS + 2 * REQUESTS * CONTEXT // BUDGET
"""Tokens of each request: the first decode for as long as the last are prefilled, beside the decodes."""


def main(model: str) -> None:
    """Prefill all requests, then decode them together."""
    from vllm import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    blocks = REQUESTS * (CONTEXT + OUTPUTS) // BLOCK + REQUESTS + 1  # room for all of them
    scheduler = real_scheduler(
        model, blocks, BLOCK, max_model_len=8192, max_num_batched_tokens=BUDGET, max_num_seqs=REQUESTS,
        enable_prefix_caching=False,
    )  # fmt: skip
    exporter = scheduler._ridgeline_exporter
    known: dict[str, int] = {}
    for i in range(REQUESTS):
        parameters = SamplingParams(max_tokens=OUTPUTS, ignore_eos=True)
        name = f"cmpl-{i:032x}-0"
        known[name] = CONTEXT
        scheduler.add_request(Request(
            request_id=name, prompt_token_ids=[7] * CONTEXT, sampling_params=parameters, pooling_params=None,
        ))  # fmt: skip
    hooks: list[float] = []
    whole: list[float] = []
    while len(hooks) < STEPS:
        before, begun = exporter.totals.exporter_seconds, time.perf_counter()
        output = scheduler.schedule()
        scheduled = time.perf_counter() - begun
        names = list(output.num_scheduled_tokens)
        assert names, f"the requests ended after {len(hooks)} steps of all of them together"
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        ends = {name: starts[name] + output.num_scheduled_tokens[name] for name in names}
        sampled = [[7] if ends[name] >= known[name] else [] for name in names]
        result = ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)
        begun = time.perf_counter()
        scheduler.update_from_output(output, result)
        updated = time.perf_counter() - begun
        for name, tokens in zip(names, sampled, strict=True):
            known[name] += len(tokens)
        if output.total_num_scheduled_tokens == REQUESTS == len(names):
            taken = exporter.totals.exporter_seconds - before
            hooks.append(taken)
            whole.append(scheduled + updated - taken)
    assert exporter.up
    skip = STEPS // 10
    print("RESULT " + json.dumps({
        "steps": STEPS - skip, "hooks": statistics.median(hooks[skip:]), "scheduler": statistics.median(whole[skip:]),
    }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
