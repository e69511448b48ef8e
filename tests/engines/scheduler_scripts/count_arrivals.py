"""Gives vLLM's real scheduler requests of every kind, and prints which of them the exporter counted as arrivals.

    python count_arrivals.py MODEL

Runs with the engines' interpreter and the exporter on PYTHONPATH. Streaming sessions have no HTTP client in vLLM's
OpenAI server, so that only here their turns and their end can be given to a scheduler.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from real_scheduler import real_scheduler  # type: ignore[import-not-found]  # beside this script

OUTPUTS = 3


class Arrivals:
    """A scheduler, and what arrived at it since it was last asked."""

    def __init__(self, model: str) -> None:
        self.scheduler = real_scheduler(
            model, 64, 32, max_model_len=512, max_num_batched_tokens=64, max_num_seqs=8, enable_prefix_caching=False,
        )  # fmt: skip
        self._before = (0, 0.0)

    def give(self, name: str, tokens: int, transfer: dict[str, Any] | None = None, **fields: Any) -> None:
        """Give it a request."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        extra = None if transfer is None else {"kv_transfer_params": transfer}
        parameters = SamplingParams(max_tokens=OUTPUTS, ignore_eos=True, extra_args=extra)
        request = Request(
            request_id=name, prompt_token_ids=[7] * tokens, sampling_params=parameters, pooling_params=None, **fields
        )
        self.scheduler.add_request(request)

    def run(self, steps: int | None = None) -> None:
        """Compute so many steps, or until there is nothing to compute."""
        from vllm.v1.outputs import ModelRunnerOutput

        scheduler, done = self.scheduler, 0
        while steps is None or done < steps:
            output = scheduler.schedule()
            names = list(output.num_scheduled_tokens)
            ready = [scheduler.requests[name] for name in names]
            sampled = [[7] if request.num_computed_tokens >= request.num_tokens else [] for request in ready]
            scheduler.update_from_output(
                output, ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)
            )
            done += 1
            if steps is None and not names:
                return

    def counted(self) -> tuple[int, float]:
        """Requests that arrived since the last call, and the tokens of their prompts."""
        prompts = self.scheduler._ridgeline_exporter.totals.prompt_tokens
        before, self._before = self._before, (sum(prompts.counts), prompts.total)
        return self._before[0] - before[0], self._before[1] - before[1]


def main(model: str) -> None:
    """Give requests of each kind, and print what was counted of each."""
    arrivals = Arrivals(model)
    counted: dict[str, tuple[int, float]] = {}
    arrivals.give("plain", 100)
    counted["plain, before any step"] = arrivals.counted()
    arrivals.give("first leg", 90, {"do_remote_decode": True, "do_remote_prefill": False})
    counted["first leg"] = arrivals.counted()
    arrivals.give("second leg", 90, {"do_remote_decode": False, "do_remote_prefill": True})
    counted["second leg"] = arrivals.counted()
    arrivals.run()
    finished = sum(arrivals.scheduler._ridgeline_exporter.totals.requests.values())
    counted["computing them"] = arrivals.counted()

    arrivals.give("session", 40, resumable=True)
    counted["first turn"] = arrivals.counted()
    arrivals.run()
    arrivals.give("session", 20, resumable=True)
    counted["turn of a session that waits for it"] = arrivals.counted()
    arrivals.run(1)
    arrivals.give("session", 10, resumable=True)
    counted["turn of a session that still runs"] = arrivals.counted()
    arrivals.run()
    arrivals.give("session", 1, resumable=False)
    arrivals.run()
    counted["end of a session"] = arrivals.counted()
    exporter = arrivals.scheduler._ridgeline_exporter
    print("RESULT " + json.dumps({
        "counted": counted, "up": exporter.up, "requests": len(arrivals.scheduler.requests),
        "turns finished": sum(exporter.totals.requests.values()) - finished,
    }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
