"""Parameters and FLOPs against the implementations in transformers, counted by torch's FlopCounterMode.

The two must agree to the last FLOP once every difference is named (`differences`): torch counts what the plain
implementation computes, masked pairs and all, and this room what vLLM's kernels do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline_exporters.roofline.catalogue import MODELS
from ridgeline_exporters.roofline.feed_forward import MixtureOfExperts
from ridgeline_exporters.roofline.mixers import GatedDeltaNet, LatentAttention
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.windows import attended_pairs
from ridgeline_exporters.roofline.work import Phase, Sequence, step_work
from tests.engines.engine_python import answer_of
from tests.roofline.small_models import SMALL

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

SCRIPT = Path(__file__).with_name("count_with_transformers.py")

# Tokens in the cache, new tokens, positions through the LM head: as in count_with_transformers.py.
SCENARIOS: dict[str, tuple[Phase, int, int, int]] = {
    "prefill": ("prefill", 0, 70, 70),
    "first_chunk": ("prefill", 0, 40, 1),
    "chunk": ("prefill", 40, 30, 1),
    "decode": ("decode", 69, 1, 1),
}
FEWEST_ARCHITECTURES = 20


@pytest.fixture(scope="module")
def counted() -> Any:
    return answer_of(SCRIPT, jobs=[{"name": name, "config": SMALL[name]} for name in SMALL])


@pytest.fixture(scope="module")
def full_size() -> Any:
    """Models without storage: only their parameters are counted."""
    jobs = [{"name": name, "config": config, "meta": True} for name, config in MODELS.items()]
    return answer_of(SCRIPT, jobs=jobs)


def differences(shape: ModelShape, phase: Phase, cached: int, new: int, logits: int) -> dict[str, float]:
    """What torch counts of the plain implementation beyond the work of vLLM's kernels, by cause."""
    mine = shape.prefill if phase == "prefill" else shape.decode
    found = {
        # Scores of all keys are computed and then masked.
        "masked pairs": shape.prefill.flops_per_pair * (new * (cached + new) - attended_pairs(new, cached)),
        "logits of more positions than one": shape.lm_head_flops * (logits - 1),
        # The plain implementation has one form of latent attention, so its decodes up-project the whole cache too.
        "latent attention not absorbed": (shape.prefill.flops_per_pair - mine.flops_per_pair)
        * attended_pairs(new, cached)
        + (shape.prefill.flops_per_kv_token - mine.flops_per_kv_token) * cached,
    }
    for window, flops in zip(shape.windows, shape.prefill.flops_per_window_pair, strict=True):
        # Its cache keeps W - 1 tokens for a window of W, and as many for a chunk.
        seen = new * (min(cached, window.tokens - 1) + new)
        name = f"masked pairs in {'chunks' if window.chunked else 'a window'} of {window.tokens}"
        found[name] = flops * (seen - window.attended_pairs(new, cached))
    found["experts that were not chosen"] = sum(
        new * (layer.feed_forward.experts - layer.feed_forward.experts_per_token) * 6.0 * shape.decoder.hidden
        * layer.feed_forward.width
        for layer in shape.decoder.layers
        if shape.architecture == "Llama4ForCausalLM" and isinstance(layer.feed_forward, MixtureOfExperts)
    )  # fmt: skip
    found["linear attention"] = sum(
        _linear_attention(layer.mixer, phase, cached, new)
        for layer in shape.decoder.layers
        if isinstance(layer.mixer, GatedDeltaNet)
    )
    return found


def _linear_attention(mixer: GatedDeltaNet, phase: Phase, cached: int, new: int) -> float:
    keys, values, heads, chunk, kernel = (
        mixer.key_size, mixer.value_size, mixer.value_heads, mixer.CHUNK, mixer.convolution,
    )  # fmt: skip
    # The convolution also runs over its padding, and over the kept inputs where there are some.
    outputs = {"decode": new + 1, "prefill": new + kernel - 1 + (kernel if cached else 0)}[phase]
    convolution = 2.0 * kernel * mixer.convolved * (outputs - new)
    if phase == "decode":
        return convolution - new * heads * 6.0 * keys * values  # elementwise there, which torch does not count
    padded = -(-new // chunk) * chunk
    # Whole chunks of 64, and a triangular solve that torch does not count.
    return convolution + heads * (
        (padded - new) * (6.0 * keys * values + chunk * (5.0 * keys + 3.0 * values)) - padded * chunk * (keys + values)
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", SMALL)
def test_flops_equal_what_torch_counts_but_for_named_differences(counted: Any, name: str, scenario: str) -> None:
    phase, cached, new, logits = SCENARIOS[scenario]
    shape = ModelShape.from_config(SMALL[name])
    request = [Sequence(new, cached + new)]
    prefill, decode = step_work(shape, request if phase == "prefill" else [], request if phase == "decode" else [])
    explained = differences(shape, phase, cached, new, logits)
    assert sum(counted[name]["flops"][scenario].values()) == (prefill + decode).flops + sum(explained.values()), (
        explained
    )


def test_many_architectures_are_compared(counted: Any) -> None:
    assert len({SMALL[name]["architectures"][0] for name in counted}) >= FEWEST_ARCHITECTURES


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("deepseek")])
def test_the_absorbed_decode_computes_the_same_and_costs_what_is_counted(counted: Any, name: str) -> None:
    found = counted[name]["absorbed"]
    assert found["largest_difference"] < 1e-5 * found["largest_value"]
    shape = ModelShape.from_config(SMALL[name])
    mixer = shape.decoder.layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    assert found["per_pair"] == mixer.decode_flops_per_pair
    assert found["per_token"] == 2 * mixer.up_projection.parameters


@pytest.mark.parametrize("name", SMALL)
def test_parameters_and_weight_bytes_are_those_of_the_model(counted: Any, name: str) -> None:
    shape = ModelShape.from_config(SMALL[name])
    assert shape.parameters == counted[name]["parameters"]
    absorbed_copies = shape.decode.weight_bytes
    assert shape.resident_bytes - absorbed_copies == 2 * counted[name]["parameters"]


@pytest.mark.parametrize("name", SMALL)
def test_a_config_as_transformers_writes_it_means_the_same(counted: Any, name: str) -> None:
    """What the exporter sees in an engine: every default filled in, some fields under other names."""
    written = {**counted[name]["config"], "architectures": SMALL[name]["architectures"]}
    assert ModelShape.from_config(written).decoder == ModelShape.from_config(SMALL[name]).decoder


@pytest.mark.parametrize("name", MODELS)
def test_models_known_by_name_have_the_parameters_of_their_implementation(full_size: Any, name: str) -> None:
    shape = ModelShape.from_config(MODELS[name])
    assert shape.parameters == full_size[name]["parameters"]
    written = {**full_size[name]["config"], "architectures": MODELS[name]["architectures"]}
    assert ModelShape.from_config(written).decoder == shape.decoder
