"""Makes a small Llama with random weights and a byte-level tokenizer, for engines without a GPU.

    python tests/models/make_model.py FOLDER [--hidden 256 --layers 2 ...]

Runs with the interpreter of the engines (it needs transformers, tokenizers and torch) and downloads nothing. The same
arguments give the same files, so engines in different places agree on the model.

Why float16: with bfloat16 on a processor that has AMX, vLLM 0.32's CPU attention uses AMX tiles, and an engine whose
very first step decodes a prompt that came by transfer is killed (SIGILL); float16 takes the plain vector code.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """The command's arguments; sizes default to a model that answers in a few milliseconds a token on a CPU."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--hidden", type=int, default=256)
    arguments.add_argument("--layers", type=int, default=2)
    arguments.add_argument("--heads", type=int, default=4)
    arguments.add_argument("--kv-heads", type=int, default=2)
    arguments.add_argument("--head-size", type=int, default=64)
    arguments.add_argument("--feed-forward", type=int, default=512)
    arguments.add_argument("--vocabulary", type=int, default=512)
    arguments.add_argument("--positions", type=int, default=4096)
    arguments.add_argument("--dtype", choices=("float16", "bfloat16", "float32"), default="float16")
    arguments.add_argument("--seed", type=int, default=0)
    return arguments


def make(options: argparse.Namespace) -> None:
    """Write model and tokenizer into the folder."""
    import torch  # type: ignore[import-not-found]  # the engines bring it
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # type: ignore[import-not-found]
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # type: ignore[import-not-found]

    # One token a byte (256), the two special ones, and fillers up to the vocabulary, so that every id decodes.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<s>", "</s>", *alphabet])}
    for i in range(len(vocabulary), options.vocabulary):
        vocabulary[f"<filler-{i}>"] = i
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    options.folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(options.folder)

    torch.manual_seed(options.seed)
    config = LlamaConfig(
        hidden_size=options.hidden,
        intermediate_size=options.feed_forward,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        head_dim=options.head_size,
        vocab_size=options.vocabulary,
        max_position_embeddings=options.positions,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        dtype=options.dtype,
    )
    LlamaForCausalLM(config).to(getattr(torch, options.dtype)).save_pretrained(options.folder)
    for path in options.folder.iterdir():
        path.chmod(0o644)  # weights come out readable by their owner only, and engines run as other users


if __name__ == "__main__":
    make(parser().parse_args())
