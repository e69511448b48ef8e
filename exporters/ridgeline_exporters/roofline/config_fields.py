"""Fields of a config.json: sizes, switches, which layer has which attention, and features that a family may not know.

Which layers slide or skip is said in `layer_types` by newer configs; older ones leave it to the implementation, whose
rules are written out here (transformers 5.19, `models/*/configuration_*.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline_exporters.roofline.formats import UnsupportedModel

Config = Mapping[str, object]

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")

# Fields that stand for a feature when they are above 1.
FOREIGN_FIELDS = {
    "num_experts": "mixture of experts",
    "num_local_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "num_experts_per_tok": "mixture of experts",
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "index_topk": "sparse attention with an indexer",
    "linear_num_value_heads": "linear attention",
    "ssm_state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
    "attention_chunk_size": "chunked attention",
    "num_kv_shared_layers": "layers that share their KV cache",
    "hidden_size_per_layer_input": "embeddings per layer",
    "zero_expert_num": "experts that compute nothing",
}

_KINDS = {"full_attention", "sliding_attention", "chunked_attention", "linear_attention"}
_GEMMA3_PATTERN = 6
_LLAMA4_NOPE_INTERVAL = 4
_HYBRID_INTERVAL = 4


def size(config: Config, name: str, default: int | None = None) -> int:
    """A whole number above 0.

    Raises:
        UnsupportedModel: it is missing (and there is no default), or something else.
    """
    value = config.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnsupportedModel(
            f"config.json with {name} = {value!r}", "a whole number above 0 is needed", "check the model's config.json"
        )
    return value


def size_or_none(config: Config, name: str) -> int | None:
    """A whole number above 0, or None where the field is missing, null or 0."""
    return size(config, name) if config.get(name) else None


def flag(config: Config, name: str) -> bool:
    """Whether a switch is on; off where the field is missing."""
    return config.get(name) is True


def expert_count(config: Config) -> str:
    """Name of the field with the number of routed experts: transformers 5 writes some under another name than before."""
    return next((name for name in EXPERT_COUNTS if config.get(name) is not None), EXPERT_COUNTS[0])


def text_config(config: Config) -> Config:
    """The part that describes the decoder of text, for models that see images too."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def refuse_foreign_features(config: Config, architecture: str, known: tuple[str, ...], cure: str) -> None:
    """Refuse a config with a feature that the architecture's reader does not know.

    Raises:
        UnsupportedModel: naming both.
    """
    for name, feature in FOREIGN_FIELDS.items():
        value = config.get(name)
        if isinstance(value, int) and value > 1 and name not in known:
            raise UnsupportedModel(
                f"{architecture} with {feature}", f"{name} = {value}, whose roofline is not known here", cure
            )


def layer_kinds(config: Config, architecture: str, rule: str, cure: str) -> list[str]:
    """Kind of attention of each layer, in the words of `layer_types`.

    Raises:
        UnsupportedModel: a layer is of no known kind.
    """
    count = size(config, "num_hidden_layers")
    listed = config.get("layer_types")
    kinds = [str(kind) for kind in listed] if isinstance(listed, list | tuple) else _by_rule(config, rule, count)
    for kind in kinds:
        if kind not in _KINDS or (kind == "linear_attention" and rule != "hybrid"):
            raise UnsupportedModel(
                f"{architecture} with {kind.replace('_', ' ')} layers", "their roofline is not known", cure
            )
    if len(kinds) != count:
        raise UnsupportedModel(
            f"config.json with {len(kinds)} layer_types for {count} layers",
            "each layer needs one",
            "check the model's config.json",
        )
    if not _window_bites(config):
        kinds = ["full_attention" if kind == "sliding_attention" else kind for kind in kinds]
    if not config.get("attention_chunk_size"):
        kinds = ["full_attention" if kind == "chunked_attention" else kind for kind in kinds]
    return kinds


def _by_rule(config: Config, rule: str, count: int) -> list[str]:
    """Kinds by the rule of the architecture, written as the numbers of layers that see the whole context."""
    layers = range(count)
    other, full = "sliding_attention", set(layers)
    if rule == "uniform":
        full = set()
    elif rule == "qwen":  # the first layers see everything; the window is off unless it is switched on
        on = flag(config, "use_sliding_window")
        full = set(range(size_or_none(config, "max_window_layers") or 0)) if on else set(layers)
    elif rule in {"gemma2", "gpt_oss"}:
        full = set(layers[1::2])
    elif rule == "gemma3":
        pattern = size(config, "sliding_window_pattern", _GEMMA3_PATTERN)
        full = set(layers[pattern - 1 :: pattern])
    elif rule == "llama4":
        other, full = "chunked_attention", _without_rotary(config, count)
    elif rule == "hybrid":
        interval = size(config, "full_attention_interval", _HYBRID_INTERVAL)
        other, full = "linear_attention", set(layers[interval - 1 :: interval])
    return ["full_attention" if layer in full else other for layer in layers]


def _without_rotary(config: Config, count: int) -> set[int]:
    """Layers of Llama 4 without rotary embeddings (NoPE): a 0 in `no_rope_layers`, or each n-th."""
    listed = config.get("no_rope_layers")
    if isinstance(listed, list | tuple) and listed:
        return {layer for layer, rotary in enumerate(listed) if not rotary}
    interval = size(config, "no_rope_layer_interval", _LLAMA4_NOPE_INTERVAL)
    return set(range(interval - 1, count, interval))


def _window_bites(config: Config) -> bool:
    """Whether there is a window, and one that a context can outgrow.

    Qwen carries one that `use_sliding_window: false` switches off; one no shorter than the longest context never
    closes, as in Phi-3's long-context checkpoints.
    """
    window, limit = config.get("sliding_window"), config.get("max_position_embeddings")
    if not window or config.get("use_sliding_window") is False:
        return False
    return not (isinstance(window, int) and isinstance(limit, int) and window >= limit)
