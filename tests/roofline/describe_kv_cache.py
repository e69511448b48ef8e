"""Says what vLLM allocates for the KV cache of a model. Runs with the engines' interpreter.

    python describe_kv_cache.py FOLDER < models.json

For each model of the list ({"name", "config", "cache_dtype"?}) vLLM reads the config, builds the model without weights
that anybody would use, and is asked for the cache specification of every layer. No engine runs. Prints JSON after
"RESULT ".
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from count_with_transformers import model_type  # type: ignore[import-not-found]  # beside this script

os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

BLOCK = 32


def layers(folder: Path, job: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry per layer that keeps anything between steps."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model

    folder.mkdir()
    named = {**job["config"], "model_type": model_type(job["config"]["architectures"][0])}
    (folder / "config.json").write_text(json.dumps(named))
    config = EngineArgs(
        model=str(folder), load_format="dummy", dtype="bfloat16", max_model_len=512, enforce_eager=True,
        block_size=BLOCK, skip_tokenizer_init=True, kv_cache_dtype=job.get("cache_dtype", "auto"),
    ).create_engine_config()  # fmt: skip
    with set_current_vllm_config(config):
        initialize_model(config)
    found = []
    for name, layer in config.compilation_config.static_forward_context.items():
        spec = layer.get_kv_cache_spec(config) if isinstance(layer, AttentionLayerBase) else None
        if spec is None:
            continue
        found.append(
            {
                "layer": name,
                "kind": type(spec).__name__,
                "page_bytes": spec.page_size_bytes,
                "block_tokens": spec.block_size,
                "window": getattr(spec, "sliding_window", None),
                "chunk": getattr(spec, "attention_chunk_size", None),
                "shards": getattr(spec, "max_tp_shards", None),
            }
        )
    return found


def main(folder: Path) -> None:
    """Ask for every model."""
    import torch  # type: ignore[import-not-found]  # the engines bring it
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{folder / 'rendezvous'}", 0, backend="gloo")
        initialize_model_parallel()
    torch.set_default_dtype(torch.bfloat16)
    results: dict[str, Any] = {}
    for i, job in enumerate(json.load(sys.stdin)):
        try:
            results[job["name"]] = layers(folder / str(i), job)
        except Exception as problem:
            results[job["name"]] = f"{type(problem).__name__}: {problem}"
            traceback.print_exc()
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
