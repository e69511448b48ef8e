"""Writes down, position by position, what the model runner computes: the ground that the counters are compared with.

It looks at the inputs of the model itself, after the runner prepared them, and at nothing that the exporter reads.
One JSON line a step: for each request its name, the length of its prompt, the tokens that are known of it, whether it
comes back from a preemption, the positions that are computed, and those whose logits are taken.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

FOLDER = "RIDGELINE_TEST_RECORD"


def register() -> None:
    """Wrap the model runner, where a folder to write to is given."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    prepare = GPUModelRunner._prepare_inputs

    @functools.wraps(prepare)
    def recorded(self: Any, scheduler_output: Any, *arguments: Any, **named: Any) -> Any:
        prepared = prepare(self, scheduler_output, *arguments, **named)
        _mend_pipeline(self)
        with _file(self, Path(folder)).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(_step(self, scheduler_output, prepared[0])) + "\n")
        return prepared

    GPUModelRunner._prepare_inputs = recorded


def _file(runner: Any, folder: Path) -> Path:
    """One file for each data-parallel rank and pipeline stage."""
    from vllm.distributed import get_pp_group

    return folder / f"{runner.parallel_config.data_parallel_index}-{get_pp_group().rank_in_group}.jsonl"


def _mend_pipeline(runner: Any) -> None:
    """Make the buffer between pipeline stages, which vLLM makes in a trial run that its CPU worker leaves out."""
    from vllm.distributed import get_pp_group

    if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
        )


def _step(runner: Any, scheduler_output: Any, logits_rows: Any) -> list[dict[str, Any]]:
    batch = runner.input_batch
    bounds = runner.query_start_loc.np[: batch.num_reqs + 1].tolist()
    positions = runner.positions[: bounds[-1]].tolist()
    rows = set(logits_rows.tolist())
    return [
        {
            "request": name,
            "prompt": int(batch.num_prompt_tokens[i]),
            "known": int(batch.num_tokens_no_spec[i]),
            "again": name in scheduler_output.scheduled_cached_reqs.resumed_req_ids,
            "positions": positions[bounds[i] : bounds[i + 1]],
            "logits": [positions[row] for row in range(bounds[i], bounds[i + 1]) if row in rows],
        }
        for i, name in enumerate(batch.req_ids[: batch.num_reqs])
    ]
