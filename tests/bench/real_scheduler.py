"""Times the exporter's hooks on vLLM's real scheduler.

    python real_scheduler.py MODEL

Runs with the engines' interpreter and the exporter on PYTHONPATH; prints medians as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

REQUESTS, CONTEXT, STEPS, BLOCK = 256, 4096, 600, 32


def build(model: str) -> Any:
    """A scheduler with room for all requests."""
    import torch  # type: ignore[import-not-found]  # the engines bring it
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    load_general_plugins()
    blocks = REQUESTS * (CONTEXT + STEPS) // BLOCK + REQUESTS + 1
    config = EngineArgs(
        model=model, max_model_len=8192, max_num_batched_tokens=8192, max_num_seqs=REQUESTS, block_size=BLOCK,
        enforce_eager=True, enable_prefix_caching=False,
    ).create_engine_config()  # fmt: skip
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=64, dtype=torch.float16)
    cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    return Scheduler(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )


def main(model: str) -> None:
    """Prefill all requests, then decode them together."""
    from vllm import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    scheduler = build(model)
    exporter = scheduler._ridgeline_exporter
    known: dict[str, int] = {}
    for i in range(REQUESTS):
        parameters = SamplingParams(max_tokens=STEPS + 50, ignore_eos=True)
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
