"""Models known by name: the fields of their config.json that the roofline needs, from their repositories on the Hub.

A name stands for the base model and for its instruct variants, which have the same sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

Config = Mapping[str, object]


def _dense(
    architecture: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int, int],
    feed_forward: int,
    vocabulary: int,
    tied: bool = False,
) -> Config:
    query_heads, kv_heads, head_size = heads
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": query_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_size,
        "intermediate_size": feed_forward,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
    }


# architecture, layers, hidden, (query heads, KV heads, head size), feed-forward, vocabulary, embeddings tied
MODELS: Mapping[str, Config] = {
    "llama-2-7b": _dense("Llama", 32, 4096, (32, 32, 128), 11008, 32000),
    "llama-2-13b": _dense("Llama", 40, 5120, (40, 40, 128), 13824, 32000),
    "llama-2-70b": _dense("Llama", 80, 8192, (64, 8, 128), 28672, 32000),
    "llama-3.1-8b": _dense("Llama", 32, 4096, (32, 8, 128), 14336, 128256),
    "llama-3.1-70b": _dense("Llama", 80, 8192, (64, 8, 128), 28672, 128256),
    "llama-3.1-405b": _dense("Llama", 126, 16384, (128, 8, 128), 53248, 128256),
    "llama-3.2-1b": _dense("Llama", 16, 2048, (32, 8, 64), 8192, 128256, tied=True),
    "llama-3.2-3b": _dense("Llama", 28, 3072, (24, 8, 128), 8192, 128256, tied=True),
    "llama-3.3-70b": _dense("Llama", 80, 8192, (64, 8, 128), 28672, 128256),
    "yi-34b": _dense("Llama", 60, 7168, (56, 8, 128), 20480, 64000),
    "mistral-7b": _dense("Mistral", 32, 4096, (32, 8, 128), 14336, 32000),  # v0.2: v0.1 has a sliding window
    "mistral-nemo-12b": _dense("Mistral", 40, 5120, (32, 8, 128), 14336, 131072),
    "mistral-small-24b": _dense("Mistral", 40, 5120, (32, 8, 128), 32768, 131072),
    "mistral-large-123b": _dense("Mistral", 88, 12288, (96, 8, 128), 28672, 32768),
    "qwen2.5-0.5b": _dense("Qwen2", 24, 896, (14, 2, 64), 4864, 151936, tied=True),
    "qwen2.5-1.5b": _dense("Qwen2", 28, 1536, (12, 2, 128), 8960, 151936, tied=True),
    "qwen2.5-3b": _dense("Qwen2", 36, 2048, (16, 2, 128), 11008, 151936, tied=True),
    "qwen2.5-7b": _dense("Qwen2", 28, 3584, (28, 4, 128), 18944, 152064),
    "qwen2.5-14b": _dense("Qwen2", 48, 5120, (40, 8, 128), 13824, 152064),
    "qwen2.5-32b": _dense("Qwen2", 64, 5120, (40, 8, 128), 27648, 152064),
    "qwen2.5-72b": _dense("Qwen2", 80, 8192, (64, 8, 128), 29568, 152064),
    "qwen3-0.6b": _dense("Qwen3", 28, 1024, (16, 8, 128), 3072, 151936, tied=True),
    "qwen3-4b": _dense("Qwen3", 36, 2560, (32, 8, 128), 9728, 151936, tied=True),
    "qwen3-8b": _dense("Qwen3", 36, 4096, (32, 8, 128), 12288, 151936),
    "qwen3-14b": _dense("Qwen3", 40, 5120, (40, 8, 128), 17408, 151936),
    "qwen3-32b": _dense("Qwen3", 64, 5120, (64, 8, 128), 25600, 151936),
    "phi-4": _dense("Phi3", 40, 5120, (40, 10, 128), 17920, 100352),
    "granite-3.1-8b": _dense("Granite", 40, 4096, (32, 8, 128), 12800, 49155, tied=True),
    "minitron-4b": _dense("Nemotron", 32, 3072, (24, 8, 128), 9216, 256000),
}


class UnknownModel(KeyError):  # noqa: N818 - names what is wrong, as the conditions of a fleet do
    """No model has this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.message = (
            f"model {name!r} is not known by name; known are {', '.join(MODELS)}; "
            "use one of these, or give the folder or file of the model's config.json"
        )
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message  # KeyError would print the repr


def find_model(name: str) -> Config:
    """The config of the model with this name or Hub id (meta-llama/Llama-3.1-8B-Instruct), in any case.

    Raises:
        UnknownModel: with the names that are known.
    """
    plain = name.lower().rpartition("/")[2].removeprefix("meta-").removesuffix("-instruct")
    try:
        return MODELS[plain]
    except KeyError:
        raise UnknownModel(name) from None
