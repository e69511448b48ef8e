"""Counts what the implementations in transformers have and compute. Runs with the engines' interpreter.

    python count_with_transformers.py < models.json

`models.json` is a list of {"name", "config", "meta"?}. A model is made from its config with random weights, run for
each of `SCENARIOS` under `FlopCounterMode`, and what was counted is printed as JSON after "RESULT ". With "meta" true
only the parameters are counted, of a model without storage, so that models of any size can be.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch  # type: ignore[import-not-found]  # the engines bring it
from torch.utils.flop_counter import FlopCounterMode  # type: ignore[import-not-found]
from transformers import (  # type: ignore[import-not-found]
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    DynamicCache,
)
from transformers.models.auto.modeling_auto import (  # type: ignore[import-not-found]
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)

# Tokens in the cache, new tokens, positions that go through the LM head.
SCENARIOS = {"prefill": (0, 70, 70), "first_chunk": (0, 40, 1), "chunk": (40, 30, 1), "decode": (69, 1, 1)}
LONG_BIAS = "e_score_correction_bias"
"""A buffer in transformers, a tensor in checkpoints."""


def model_type(architecture: str) -> str:
    """What transformers calls the family of an architecture: that of the text part, where there are others."""
    found = [str(name) for name, model in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if model == architecture]
    if not found:
        raise ValueError(f"transformers does not know {architecture}")
    return next((name for name in found if name.endswith("_text")), found[0])


def make(config: dict[str, Any]) -> Any:
    """A model of the architecture that the config names, in float32."""
    fields = {name: value for name, value in config.items() if name not in {"architectures", "quantization_config"}}
    made = CONFIG_MAPPING[model_type(config["architectures"][0])](**fields)
    made.architectures = list(config["architectures"])
    model = AutoModelForCausalLM.from_config(made, attn_implementation="eager", experts_implementation="eager")
    return model.eval()


def count(model: Any) -> dict[str, dict[str, int]]:
    """FLOPs of each scenario, by operator."""
    result = {}
    for name, (cached, new, logits) in SCENARIOS.items():
        tokens = torch.randint(0, model.config.vocab_size, (1, cached + new))
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            if cached:
                model(tokens[:, :cached], past_key_values=cache, use_cache=True)
            with FlopCounterMode(display=False) as counter:
                out = model(tokens[:, cached:], past_key_values=cache, use_cache=True, logits_to_keep=logits)
        assert out.logits.shape[1] == logits
        result[name] = {str(op).removeprefix("aten."): n for op, n in counter.get_flop_counts()["Global"].items()}
    return result


def absorbed(model: Any) -> dict[str, Any]:
    """The absorbed decode of the first latent attention layer: FLOPs by part, and how far it is from transformers' own.

    Written as in vLLM's `mla_attention.py`: the query is carried into the latent space, attends to the latent itself,
    and the result is carried to the values.
    """
    attention = model.model.layers[0].self_attn
    heads, nope, rank = attention.num_heads, attention.qk_nope_head_dim, attention.kv_lora_rank
    rope, value, context = attention.qk_rope_head_dim, attention.v_head_dim, 70
    up_key, up_value = attention.kv_b_proj.weight.view(heads, nope + value, rank).split([nope, value], dim=1)
    latent, key_rope = torch.randn(context, rank), torch.randn(context, rope)
    query, query_rope = torch.randn(heads, 1, nope), torch.randn(heads, 1, rope)
    scale = attention.scaling
    with torch.no_grad():
        with FlopCounterMode(display=False) as projections:
            into_latent = torch.bmm(query, up_key)
        with FlopCounterMode(display=False) as scores:
            weights = torch.bmm(into_latent, latent.T.expand(heads, -1, -1))
            weights = weights + torch.bmm(query_rope, key_rope.T.expand(heads, -1, -1))
            weights = (scale * weights).softmax(-1)
            mixed = torch.bmm(weights, latent.expand(heads, -1, -1))
        with FlopCounterMode(display=False) as out:
            result = torch.bmm(mixed, up_value.transpose(1, 2))
        keys, values = attention.expand_kv(latent[None, None], key_rope[None, None])
        plain = torch.cat([query, query_rope], dim=-1)[None] @ keys.transpose(2, 3)
        expected = (scale * plain).softmax(-1) @ values
    return {
        "context": context,
        "per_token": projections.get_total_flops() + out.get_total_flops(),
        "per_pair": scores.get_total_flops() / context,
        "largest_difference": float((result - expected[0]).abs().max()),
        "largest_value": float(expected.abs().max()),
    }


def main() -> None:
    """Read the models, count, print."""
    torch.manual_seed(7)
    torch.set_num_threads(1)
    results = {}
    for job in json.load(sys.stdin):
        with torch.device("meta" if job.get("meta") else "cpu"):
            model = make(job["config"])
        buffers = [tensor for name, tensor in model.named_buffers() if name.endswith(LONG_BIAS)]
        found: dict[str, Any] = {
            "parameters": sum(tensor.numel() for tensor in [*model.parameters(), *buffers]),
            "config": model.config.to_dict(),
        }
        if not job.get("meta"):
            found["flops"] = count(model)
            if job["config"].get("kv_lora_rank"):
                found["absorbed"] = absorbed(model)
        results[job["name"]] = found
    print("RESULT " + json.dumps(results, default=str))


if __name__ == "__main__":
    main()
