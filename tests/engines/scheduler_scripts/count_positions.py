"""Drives vLLM's real scheduler without a model, under the real plug-in, and counts each position by itself.

    python count_positions.py MODEL sync|async|async-drafts|async-delivery

Runs with the engines' interpreter and the exporter on PYTHONPATH, and prints both counts as JSON. It covers what the
CPU engines cannot run: vLLM switches asynchronous scheduling off without a GPU. With drafts, a step is then scheduled
before it is known how many of the last step's were accepted. With a delivery (as connectors that hand KV to other
engines ask for), what a preempted request has in flight is thrown away.
"""

from __future__ import annotations

import json
import random
import sys
from collections import deque
from typing import Any

from real_scheduler import real_scheduler  # type: ignore[import-not-found]  # beside this script

BLOCK, BLOCKS, REQUESTS, OUTPUTS, DRAFTS = 32, 24, 8, 60, 3


def build(model: str, kind: str) -> Any:
    """A scheduler with too few blocks for its requests."""
    drafts = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 3}
    scheduler = real_scheduler(
        model, BLOCKS, BLOCK, asynchronous=kind != "sync",
        max_model_len=512, max_num_batched_tokens=64, max_num_seqs=REQUESTS, enable_prefix_caching=False,
        speculative_config=drafts if kind == "async-drafts" else None,
    )  # fmt: skip
    scheduler.requires_kv_delivery = kind == "async-delivery"
    return scheduler


def requests() -> list[Any]:
    """Requests with random prompts, so that no two share a block."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    dice = random.Random(7)
    return [
        Request(
            request_id=f"r{i}",
            prompt_token_ids=[dice.randrange(2, 258) for _ in range(dice.randint(20, 150))],
            sampling_params=SamplingParams(max_tokens=OUTPUTS, ignore_eos=True),
            pooling_params=None,
        )
        for i in range(REQUESTS)
    ]


class Runner:
    """Stands in for the model runner: knows each request's tokens, and where it is in them, by itself.

    Where a request starts it is told; from there on it goes by its own count, as a GPU does that knows how many drafts
    it accepted before the scheduler does.
    """

    def __init__(self, scheduler: Any, batch: list[Any]) -> None:
        self.scheduler = scheduler
        self.dice = random.Random(11)
        self.prompts = {request.request_id: request.num_prompt_tokens for request in batch}
        self.tokens = dict(self.prompts)
        self.next = dict.fromkeys(self.prompts, 0)
        self.computed: dict[str, set[int]] = {name: set() for name in self.prompts}
        """Positions whose KV is valid, or was when the request was preempted."""
        names = ("prefill", "decode", "prefill_pairs", "decode_pairs", "logits", "rejected", "optimistic", "steps")
        self.count = dict.fromkeys(names, 0)

    def run(self, output: Any) -> Any:
        """Compute a step, position by position."""
        from vllm.v1.outputs import ModelRunnerOutput

        cached = output.scheduled_cached_reqs
        told = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        for name, start in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if name in cached.resumed_req_ids:
                told[name] = start
                self.tokens[name] = self.scheduler.requests[name].num_tokens
                self.computed[name] = {p for p in self.computed[name] if p < max(1, self.tokens[name] - 1)}
            else:
                self.count["optimistic"] += start > self.next[name]
        self.next |= told
        names = list(output.num_scheduled_tokens)
        drafted = output.scheduled_spec_decode_tokens
        sampled = [self._run(n, output.num_scheduled_tokens[n], len(drafted.get(n, ()))) for n in names]
        self.count["steps"] += bool(names)
        return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)

    def _run(self, name: str, tokens: int, drafts: int) -> list[int]:
        """Compute positions of one request; returns the tokens that it gets."""
        start, valid = self.next[name], self.computed[name]
        for position in range(start, start + tokens):
            phase = "prefill" if position < self.prompts[name] or position in valid else "decode"
            self.count[phase] += 1
            self.count[f"{phase}_pairs"] += position + 1
        self.next[name] = start + tokens
        valid.update(range(start, start + tokens))
        if start + tokens < self.tokens[name]:
            return []
        # No more than the request may have: what an engine cuts off at the end is handed out to nobody, so that the
        # context of a step that is still in flight for it is known to nobody but the GPU.
        left = self.prompts[name] + OUTPUTS - self.tokens[name]
        accepted = min(self.dice.randint(0, drafts), max(0, left - 1))
        self.count["logits"] += 1 + drafts
        self.count["rejected"] += drafts - accepted
        self.tokens[name] += 1 + accepted
        self.next[name] = self.tokens[name] - 1
        valid.difference_update(range(self.next[name], start + tokens))
        return [7] * (1 + accepted)


def main(model: str, kind: str) -> None:
    """Run all requests to their end, one step ahead when asynchronous, and print what was counted."""
    scheduler = build(model, kind)
    batch = requests()
    runner = Runner(scheduler, batch)
    for request in batch:
        scheduler.add_request(request)
    ahead = 1 if kind == "sync" else 2
    in_flight: deque[tuple[Any, Any]] = deque()
    while scheduler.has_requests() or in_flight:
        output = scheduler.schedule()
        in_flight.append((output, runner.run(output)))
        while len(in_flight) >= ahead or (in_flight and not output.num_scheduled_tokens):
            scheduler.update_from_output(*in_flight.popleft())
    exporter = scheduler._ridgeline_exporter
    totals = exporter.totals
    print(
        "RESULT "
        + json.dumps(
            {
                "by_hand": runner.count,
                "up": exporter.up,
                "tokens": totals.tokens,
                "flops": totals.flops,
                "kv_write": {phase: kinds["kv_write"] for phase, kinds in totals.bytes.items()},
                "steps": sum(sum(histogram.counts) for histogram in totals.steps.values()),
                "outputs": totals.output_tokens.total,
                "prefills_finished": totals.prefills_finished,
                "arrived": [sum(totals.prompt_tokens.counts), totals.prompt_tokens.total],
                "prompts": sum(runner.prompts.values()),
                "finished": sum(totals.requests.values()),
                "preemptions": sum(request.num_preemptions for request in batch),
                "remembered": len(exporter._states),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
