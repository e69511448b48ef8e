"""Engines of different models, GPUs and sizes for the tests of the cost model."""

from __future__ import annotations

from ridgeline.cost.step_cost import EngineCost
from ridgeline_exporters.roofline import catalogue, hardware
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import Parallelism


def engine(
    model: str = "llama-3.1-8b", gpu: str = "h100", tensor_parallel: int = 1, weights: str | None = None
) -> EngineCost:
    shape = ModelShape.from_config(catalogue.find_model(model), weights, parallelism=Parallelism(tensor_parallel))
    return EngineCost(shape, hardware.find(gpu))
