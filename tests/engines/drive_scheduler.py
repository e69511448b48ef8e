"""Drives vLLM's real scheduler without a model, under the real plug-in, and counts each position by itself.

    python drive_scheduler.py MODEL async|sync

Runs with the engines' interpreter and the exporter on PYTHONPATH, and prints both counts as JSON. It covers what the
CPU engines cannot run: vLLM switches asynchronous scheduling off without a GPU, and preemption needs a full cache.
"""

from __future__ import annotations

import json
import random
import sys
from collections import deque
from typing import Any

BLOCK, BLOCKS, REQUESTS, OUTPUTS = 32, 24, 8, 60


def build(model: str, kind: str) -> Any:
    """A scheduler with too few blocks for its requests."""
    import torch  # type: ignore[import-not-found]  # the engines bring it
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    load_general_plugins()
    config = EngineArgs(
        model=model, max_model_len=512, max_num_batched_tokens=64, max_num_seqs=REQUESTS, block_size=BLOCK,
        enforce_eager=True, enable_prefix_caching=False,
    ).create_engine_config()  # fmt: skip
    config.cache_config.num_gpu_blocks = BLOCKS
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=64, dtype=torch.float16)
    cache = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    scheduler = AsyncScheduler if kind == "async" else Scheduler
    return scheduler(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )


def requests() -> list[Any]:
    """Requests with random prompts, so that no two share a block."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    dice = random.Random(7)
    return [
        Request(
            request_id=f"r{i}",
            prompt_token_ids=[dice.randrange(2, 258) for _ in range(dice.randint(20, 150))],
            sampling_params=SamplingParams(max_tokens=OUTPUTS, ignore_eos=True),
            pooling_params=None,
        )
        for i in range(REQUESTS)
    ]


class Runner:
    """Stands in for the model runner: knows each request's tokens and samples when a chunk reaches the last one."""

    def __init__(self, batch: list[Any]) -> None:
        self.prompts = {request.request_id: request.num_prompt_tokens for request in batch}
        self.tokens = dict(self.prompts)
        self.computed: dict[str, set[int]] = {name: set() for name in self.prompts}
        self.count = dict.fromkeys(("prefill", "decode", "prefill_pairs", "decode_pairs", "steps"), 0)

    def run(self, output: Any) -> Any:
        """Compute a step, position by position."""
        from vllm.v1.outputs import ModelRunnerOutput

        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        sampled: list[list[int]] = []
        for name, tokens in output.num_scheduled_tokens.items():
            for position in range(starts[name], starts[name] + tokens):
                again = position in self.computed[name]
                phase = "prefill" if position < self.prompts[name] or again else "decode"
                self.computed[name].add(position)
                self.count[phase] += 1
                self.count[f"{phase}_pairs"] += position + 1
            reaches_the_end = starts[name] + tokens >= self.tokens[name]
            self.tokens[name] += reaches_the_end
            sampled.append([7] if reaches_the_end else [])
        self.count["steps"] += bool(output.num_scheduled_tokens)
        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)


def main(model: str, kind: str) -> None:
    """Run all requests to their end, one step ahead when asynchronous, and print what was counted."""
    scheduler = build(model, kind)
    batch = requests()
    runner = Runner(batch)
    for request in batch:
        scheduler.add_request(request)
    ahead = 2 if kind == "async" else 1
    in_flight: deque[tuple[Any, Any]] = deque()
    while scheduler.has_requests() or in_flight:
        output = scheduler.schedule()
        in_flight.append((output, runner.run(output)))
        while len(in_flight) >= ahead or (in_flight and not output.num_scheduled_tokens):
            scheduler.update_from_output(*in_flight.popleft())
    exporter = scheduler._ridgeline_exporter
    totals = exporter.totals
    print(
        "RESULT "
        + json.dumps(
            {
                "by_hand": runner.count,
                "up": exporter.up,
                "tokens": totals.tokens,
                "flops": totals.flops,
                "kv_write": {phase: kinds["kv_write"] for phase, kinds in totals.bytes.items()},
                "steps": sum(sum(histogram.counts) for histogram in totals.steps.values()),
                "outputs": totals.output_tokens.total,
                "prefills_finished": totals.prefills_finished,
                "finished": sum(totals.requests.values()),
                "preemptions": sum(request.num_preemptions for request in batch),
                "remembered": len(exporter._states),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
