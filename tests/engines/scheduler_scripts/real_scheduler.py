"""vLLM's real scheduler, without a model: what the scripts beside this file drive."""

from __future__ import annotations

from typing import Any


def real_scheduler(model: str, blocks: int, block_tokens: int, *, asynchronous: bool = False, **arguments: Any) -> Any:
    """The scheduler of an engine, with the plug-ins that are installed.

    Args:
        model: folder of the model, for its sizes.
        blocks: of the KV cache, the null block among them.
        block_tokens: tokens of a block.
        asynchronous: whether steps are scheduled before the last one is known.
        arguments: of the engine (`EngineArgs`).
    """
    import torch  # type: ignore[import-not-found]  # the engines bring it
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    load_general_plugins()
    config = EngineArgs(model=model, block_size=block_tokens, enforce_eager=True, **arguments).create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=block_tokens, num_kv_heads=2, head_size=64, dtype=torch.float16)
    return (AsyncScheduler if asynchronous else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_tokens,
        log_stats=True,
    )
