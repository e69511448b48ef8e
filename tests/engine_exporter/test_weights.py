"""What a worker answers when it is asked for its weights, on synthetic modules: torch is in the engines only."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline_exporters.engine.weights import LoadedWeights, answer, total, weight_bytes


class SyntheticParameter:
    """As torch.nn.Parameter: so many elements somewhere in memory."""

    addresses = iter(range(1, 10**6))

    def __init__(self, elements: int, size: int = 2) -> None:
        self.elements, self.size = elements, size
        self.address = next(self.addresses) if elements else 0

    def numel(self) -> int:
        return self.elements

    def element_size(self) -> int:
        return self.size

    def data_ptr(self) -> int:
        return self.address


class SyntheticModule:
    """As torch.nn.Module: parameters, and modules by name."""

    def __init__(self, parameters: dict[str, SyntheticParameter] | None = None, **modules: SyntheticModule) -> None:
        self.own, self.modules = parameters or {}, modules

    def named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, SyntheticParameter]]:
        assert not recurse
        yield from self.own.items()

    def parameters(self, recurse: bool = True) -> Iterator[SyntheticParameter]:
        assert not recurse
        yield from self.own.values()

    def named_modules(self, prefix: str = "", remove_duplicate: bool = True) -> Iterator[tuple[str, SyntheticModule]]:
        assert not remove_duplicate
        yield prefix, self
        for name, module in self.modules.items():
            yield from module.named_modules(f"{prefix}.{name}".lstrip("."), remove_duplicate=False)


class VocabParallelEmbedding(SyntheticModule):
    """Named as vLLM's."""


class ParallelLMHead(VocabParallelEmbedding):
    """Named as vLLM's."""


class RoutedExperts(SyntheticModule):
    """Named as vLLM's."""


def linear(elements: int, size: int = 2) -> SyntheticModule:
    return SyntheticModule({"weight": SyntheticParameter(elements, size)})


def test_a_table_that_is_only_looked_up_is_no_part_of_a_step() -> None:
    table = VocabParallelEmbedding({"weight": SyntheticParameter(100)})
    head = ParallelLMHead({"weight": SyntheticParameter(100)})
    model = SyntheticModule(embed_tokens=table, layer=linear(1000), lm_head=head)
    loaded = LoadedWeights(**weight_bytes(model))
    assert (loaded.resident, loaded.looked_up, loaded.streamed) == (2400, 200, 2200)


@pytest.mark.parametrize("as_module", [True, False], ids=["the same module", "the same parameter"])
def test_a_table_that_is_the_head_too_is_read_and_counted_once(as_module: bool) -> None:
    shared = SyntheticParameter(100)
    table = VocabParallelEmbedding({"weight": shared})
    head = table if as_module else ParallelLMHead({"weight": shared})
    loaded = LoadedWeights(**weight_bytes(SyntheticModule(embed_tokens=table, layer=linear(1000), lm_head=head)))
    assert (loaded.resident, loaded.looked_up) == (2200, 0)


def test_quantized_weights_count_with_their_scales_and_experts_apart() -> None:
    scaled = SyntheticModule({"weight": SyntheticParameter(1000, 1), "weight_scale": SyntheticParameter(10, 4)})
    experts = RoutedExperts({"w13_weight": SyntheticParameter(4000, 1), "w2_weight": SyntheticParameter(2000, 1)})
    assert weight_bytes(SyntheticModule(scaled=scaled, experts=experts)) == {
        "resident": 1000 + 40 + 6000, "looked_up": 0, "experts": 6000,
    }  # fmt: skip


def test_a_matrix_that_the_cpu_packed_has_the_size_that_its_layer_tells() -> None:
    packed: Any = SyntheticModule({"weight": SyntheticParameter(0), "bias": SyntheticParameter(8)})
    packed.cpu_linear, packed.output_size_per_partition, packed.input_size_per_partition = object(), 8, 16
    unused = SyntheticModule({"g_idx": SyntheticParameter(0)})
    assert weight_bytes(SyntheticModule(packed=packed, unused=unused))["resident"] == 2 * (8 * 16 + 8)


def test_of_a_model_that_sees_only_its_language_model_counts() -> None:
    model: Any = SyntheticModule(tower=linear(5000))
    model.get_language_model = lambda: SyntheticModule(layer=linear(1000))
    assert weight_bytes(model)["resident"] == 2000


def test_a_worker_never_raises() -> None:
    assert answer(SimpleNamespace(get_model=lambda: SyntheticModule(layer=linear(10)))) == {
        "resident": 20, "looked_up": 0, "experts": 0,
    }  # fmt: skip
    assert answer(SimpleNamespace(get_model=lambda: object())) is None
    assert answer(object()) is None


def test_shards_add_up_and_one_that_is_missing_makes_all_unknown() -> None:
    part = {"resident": 10, "looked_up": 2, "experts": 3}
    assert total([part, part]) == LoadedWeights(20, 4, 6)
    assert total([part, None]) is None
    assert total([]) is None
