"""Bytes of the weights that an engine really loaded, asked from its workers.

A formula knows a checkpoint's shapes; the workers know what quantization, padding, sharding and replication made of
them. Each worker sums up its own parameters, and the EngineCore asks all of them once, before it serves.

The question is a method that the plug-in adds to vLLM's worker class, because each worker loads the plug-in too. It
never raises: an answer that failed on one worker only would leave those of the others in their queues. For the same
reason only workers on this node are asked, which have the same plug-in for certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

METHOD = "ridgeline_weight_bytes"
LOCAL_EXECUTORS = ("mp", "uni")
_TABLE, _HEAD, _EXPERTS = "VocabParallelEmbedding", "ParallelLMHead", "RoutedExperts"


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Bytes of the weights of a language model over all GPUs of an engine."""

    resident: int
    """All of them."""
    looked_up: int
    """Of these, embedding tables that are not the output head too: a step reads a few rows."""
    experts: int
    """Of these, routed experts: a step reads those that its tokens choose."""

    @property
    def streamed(self) -> int:
        """What a step reads, where every expert is chosen."""
        return self.resident - self.looked_up


def weight_bytes(model: Any) -> dict[str, int]:
    """Sum up the parameters of one worker's part of a model (`torch.nn.Module`).

    A parameter that several modules share is counted once. Vision and audio towers are left out: no step of the
    language model reads them. vLLM's CPU kernels keep a packed copy of a matrix and leave an empty parameter; then the
    layer's own sizes say how large it is.

    Returns:
        The fields of `LoadedWeights`.
    """
    language_model = getattr(model, "get_language_model", None)
    if callable(language_model):
        model = language_model()
    modules = list(model.named_modules(remove_duplicate=False))
    heads = {
        parameter.data_ptr()
        for name, module in modules
        if _is(module, _HEAD) or name.rpartition(".")[2] == "lm_head"
        for parameter in module.parameters(recurse=False)
    }
    sums = {"resident": 0, "looked_up": 0, "experts": 0}
    counted: set[int] = set()
    for module in {id(module): module for _, module in modules}.values():
        for name, parameter in module.named_parameters(recurse=False):
            size, where = parameter.numel() * parameter.element_size(), parameter.data_ptr()
            if not size and name == "weight" and hasattr(module, "cpu_linear"):
                size = module.output_size_per_partition * module.input_size_per_partition * parameter.element_size()
            elif where in counted:
                continue
            counted.add(where)
            sums["resident"] += size
            if _is(module, _EXPERTS):
                sums["experts"] += size
            elif _is(module, _TABLE) and not _is(module, _HEAD) and where not in heads:
                sums["looked_up"] += size
    return sums


def answer(worker: Any) -> dict[str, int] | None:
    """What a worker answers to `METHOD`; None when it cannot tell."""
    try:
        return weight_bytes(worker.get_model())
    except Exception:  # see the module's first lines
        return None


def ask(core: Any) -> LoadedWeights | None:
    """Ask all workers of an `EngineCore`. None where they are not all on this node, or one cannot tell."""
    parallel = core.vllm_config.parallel_config
    if parallel.distributed_executor_backend not in LOCAL_EXECUTORS or getattr(parallel, "nnodes", 1) != 1:
        return None
    return total(core.collective_rpc(METHOD))


def total(answers: Iterable[Mapping[str, int] | None]) -> LoadedWeights | None:
    """Sum of the workers' answers; None where one is missing or nothing was loaded."""
    parts = list(answers)
    if not parts or any(part is None for part in parts):
        return None
    loaded = LoadedWeights(**{name: sum(part[name] for part in parts if part) for name in LoadedWeights.__slots__})
    return loaded if loaded.streamed > 0 else None


def _is(module: Any, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(module).__mro__)
