"""What is known of each accelerator's efficiency, and where from.

H100 SXM is measured:

- *Kernels*: times of GEMMs (BF16 and FP8, 1 to 8,192 tokens, three shapes), decode attention (1 to 128 sequences of
  1,024 to 32,768 tokens), prefill attention (1,024 to 16,384 tokens) and all-reduces, published with
  ai-dynamo/aiconfigurator (Apache-2.0) for the kernels of vLLM 0.24. The terms of `step_cost` fit the GEMMs within
  5 %, decode attention within 7 % and prefill attention within 3 % on average.
- *Engine*: `layer_seconds` and `REQUEST_SECONDS` are fitted to mean latencies of serving runs of vLLM 0.15, published
  by inference-sim/sim-to-real-accuracy-validation. The kernels alone explain 25 microseconds of a layer (four GEMMs of
  3, attention of 13); norms, rotary embedding and gaps between kernels are the rest. `step_seconds` and
  `sequence_seconds` are fits published by inference-sim/inference-sim.

- *Experts*: `expert_bandwidth` and `expert_layer_seconds` rest on serving runs of one model alone, Llama-4-Scout in FP8
  on two GPUs (same source), and on uniform routing: real routers prefer some experts, and so read fewer.

`python -m tests.bench.fit_cost_model --points FILE.csv` fits them anew, leaving out one model at a time.

Other accelerators take an H100's value wherever nobody measured theirs, and their `source` says which they have of
their own. Time that no peak explains is the host's and the kernels' start: it does not get shorter with the peaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.cost.efficiency import KIBI, MEBI, MICRO, AllReduce, Curve, Efficiency
from ridgeline_exporters.roofline.hardware import Accelerator

REQUEST_SECONDS = 0.012
"""What a request takes beside its steps until its first token is with the client: HTTP, tokenisation, the ways between
processes, detokenisation. No step gets longer by it."""

_SIZES = (16 * KIBI, 256 * KIBI, MEBI, 8 * MEBI, 64 * MEBI)
NVLINK_4 = AllReduce(
    {
        gpus: Curve(_SIZES, tuple(micro * MICRO for micro in micros))
        for gpus, micros in {
            2: (4.4, 6.3, 12.4, 81.0, 469.0),
            4: (4.9, 11.4, 18.6, 99.0, 619.0),
            8: (5.6, 12.0, 19.4, 92.0, 577.0),
        }.items()
    }
)
"""H100 SXM with NVSwitch, 450 GB/s one way: vLLM's custom all-reduce under CUDA graphs (aiconfigurator)."""


def _link(gigabytes_per_second: float) -> AllReduce:
    """Over a link of this speed, one way and per GPU: the bytes take longer or shorter, the start does not."""
    return NVLINK_4.slower_link(450.0 / gigabytes_per_second)


H100 = Efficiency(
    source="measured: kernels (aiconfigurator), serving (inference-sim)",
    gemm_compute=0.82,
    gemm_compute_fp8=0.58,
    weight_bandwidth=0.88,
    weight_bandwidth_narrow=0.80,
    expert_bandwidth=0.95,
    attention_compute=0.75,
    attention_ramp_keys=960.0,
    kv_bandwidth=0.90,
    layer_seconds=36 * MICRO,
    expert_layer_seconds=100 * MICRO,
    step_seconds=126 * MICRO,
    sequence_seconds=4.4 * MICRO,
    all_reduce=NVLINK_4,
)
H100_PCIE = replace(
    H100,
    source="as H100 SXM; all-reduce over PCIe Gen5, by the ratio of the links",
    all_reduce=_link(64),
)
H200 = replace(
    H100,
    source="as H100 SXM, whose GPU and links it shares; 16-bit GEMM measured (769 to 798 of 989 TFLOPS)",
    gemm_compute=0.80,
)
B200 = replace(
    H100,
    source="as H100 SXM, nobody's measurements of its own; all-reduce by the ratio of the links",
    all_reduce=_link(900),
)
A100 = replace(
    H100,
    source="GEMM and weights measured (microsoft/vidur); the rest as H100 SXM, all-reduce by the ratio of the links",
    gemm_compute=0.77,
    weight_bandwidth=0.79,
    all_reduce=_link(300),
)
L40S = replace(
    H100,
    source="GEMM by the ratio of fitted utilisations to an H100's (inference-sim: 0.32 to 0.45); the rest as H100 SXM, "
    "all-reduce over PCIe Gen4 by the ratio of the links",
    gemm_compute=0.58,
    gemm_compute_fp8=0.41,
    attention_compute=0.53,
    all_reduce=_link(32),
)

VLLM_2023 = Efficiency(
    source="fitted to Llama-2-70B on DGX-H100 under vLLM of 2023 (Mutinifni/splitwise-sim): no CUDA graphs, NCCL rings, "
    "attention of that time; to read its measurements, not to plan with",
    gemm_compute=0.634,
    gemm_compute_fp8=H100.gemm_compute_fp8,
    weight_bandwidth=0.636,
    weight_bandwidth_narrow=0.636,
    expert_bandwidth=0.636,
    attention_compute=0.347,
    attention_ramp_keys=H100.attention_ramp_keys,
    kv_bandwidth=H100.kv_bandwidth,
    layer_seconds=H100.layer_seconds,
    expert_layer_seconds=H100.expert_layer_seconds,
    step_seconds=H100.step_seconds,
    sequence_seconds=275 * MICRO,
    all_reduce=AllReduce.ring(76e9, 10 * MICRO),
    launch_seconds=368 * MICRO,
)

_ROWS: Mapping[str, Efficiency] = {
    "H100-SXM5-80GB": H100,
    "GH200-96GB": H100,
    "H20-SXM-96GB": H100,
    "H100-PCIe-80GB": H100_PCIE,
    "H100-NVL-94GB": H100_PCIE,
    "H200-SXM-141GB": H200,
    "H200-NVL-141GB": replace(H200, source=H100_PCIE.source, all_reduce=H100_PCIE.all_reduce),
    "B200-SXM-180GB": B200,
    "GB200-186GB": B200,
    "A100-SXM4-80GB": A100,
    "A100-SXM4-40GB": A100,
    "A100-PCIe-80GB": replace(A100, all_reduce=_link(32)),
    "A100-PCIe-40GB": replace(A100, all_reduce=_link(32)),
    "L40S-48GB": L40S,
    "L4-24GB": replace(L40S, source="as L40S, the larger GPU of its generation"),
    "A10-24GB": replace(A100, source="as A100, of its generation; all-reduce over PCIe", all_reduce=_link(32)),
    "A10G-24GB": replace(A100, source="as A100, of its generation; all-reduce over PCIe", all_reduce=_link(32)),
}


def efficiency_of(accelerator: Accelerator) -> Efficiency:
    """What is known of this accelerator; of one that is not in the list, an H100's over PCIe, the slower link."""
    return _ROWS.get(accelerator.name, H100_PCIE)
