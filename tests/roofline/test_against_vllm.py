"""KV bytes against the cache specification that vLLM builds for each layer of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline_exporters.roofline.mixers import GatedDeltaNet
from ridgeline_exporters.roofline.model import ModelShape
from tests.engines.engine_python import answer_of
from tests.roofline.small_models import SMALL

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

SCRIPT = Path(__file__).with_name("describe_kv_cache.py")

# vLLM refuses windows in some layers of Qwen2, and cannot load its classes of Qwen3.5's text part on a CPU.
NOT_BUILT = {"qwen2 with a window", "qwen3.5", "qwen3.5 moe"}
BUILT = [name for name in SMALL if name not in NOT_BUILT]
IN_FP8 = ["llama", "deepseek v3"]


@pytest.fixture(scope="module")
def allocated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    jobs = [{"name": name, "config": SMALL[name]} for name in BUILT]
    jobs += [{"name": f"{name} in fp8", "config": SMALL[name], "cache_dtype": "fp8"} for name in IN_FP8]
    return answer_of(SCRIPT, tmp_path_factory.mktemp("models"), jobs=jobs)


@pytest.mark.parametrize(("name", "cache"), [*((name, "auto") for name in BUILT), *((name, "fp8") for name in IN_FP8)])
def test_each_layer_keeps_what_vllm_allocates(allocated: Any, name: str, cache: str) -> None:
    layers = allocated[name if cache == "auto" else f"{name} in fp8"]
    assert isinstance(layers, list), layers
    shape = ModelShape.from_config(SMALL[name], kv_cache=cache)
    assert len(layers) == len(shape.decoder.layers)
    per_token = 0.0
    for found, layer in zip(layers, shape.decoder.layers, strict=True):
        mixer = layer.mixer
        if isinstance(mixer, GatedDeltaNet):
            # vLLM keeps recurrent states in 32 bit on a CPU (platforms/cpu.py), in the model's format elsewhere.
            assert found["page_bytes"] == mixer.state_bytes(2.0, 4.0)
            continue
        each = found["page_bytes"] / found["block_tokens"]
        per_token += each
        assert each == mixer.kv_elements * shape.kv_bytes_per_element
        seen = mixer.window
        assert found["window"] == (seen.tokens if seen is not None and not seen.chunked else None)
        assert found["chunk"] == (seen.tokens if seen is not None and seen.chunked else None)
        if found["shards"] is not None:
            assert found["shards"] == mixer.kv_shards
    assert per_token == shape.kv_bytes_per_token
