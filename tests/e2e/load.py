"""Load for the cluster tests: a slice of a public trace, scaled to a small model on a small machine.

The trace is Azure's conversation trace of 2023 where the data lies beside the project. Without it, rows with
its published statistics are drawn from a seeded generator, and the summary says so.

Lengths are scaled to the model's context, times to the machine. Prompts that are long in the trace are
gathered into bursts, everything else arrives when the trace says: steady decodes, which bursts of prefills disturb.
"""

from __future__ import annotations

import asyncio
import csv
import json
import math
import os
import random
import string
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp

TRACE = Path(os.environ.get("RIDGELINE_TRACES", Path(__file__).resolve().parents[3] / "shared" / "traces"))
CONVERSATION = "azure-2023-conv.csv"


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace: seconds since its start, tokens in and out."""

    at: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Planned:
    """One request to send: seconds since the start of the load, tokens in and out."""

    at: float
    prompt_tokens: int
    output_tokens: int


def trace_rows(seconds: float, skip_seconds: float = 600) -> tuple[list[Row], str]:
    """A slice of the conversation trace and a sentence that says where it came from."""
    path = TRACE / CONVERSATION
    if not path.exists():
        return generated_rows(
            seconds
        ), "generated with the published statistics of Azure's 2023 conversation trace (the trace itself is not here)"
    rows: list[Row] = []
    with path.open(newline="") as file:
        start: datetime | None = None
        for record in csv.DictReader(file):
            at = datetime.fromisoformat(record["TIMESTAMP"][:26])
            start = start or at
            since = (at - start).total_seconds() - skip_seconds
            if 0 <= since < seconds:
                rows.append(Row(since, int(record["ContextTokens"]), int(record["GeneratedTokens"])))
    return rows, f"{len(rows)} requests of Azure's 2023 conversation trace, from second {skip_seconds:.0f}"


def generated_rows(seconds: float, seed: int = 7) -> list[Row]:
    """Poisson arrivals at 5.5 a second; lengths by the published percentiles of the trace, interpolated."""
    draw = random.Random(seed)
    shares = (0.0, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)
    prompts = (20, 207, 396, 1020, 1189, 2734, 4080, 4142, 6000)
    outputs = (5, 54, 85, 129, 395, 424, 451, 601, 1000)

    def interpolate(u: float, values: Sequence[int]) -> int:
        upper = next(i for i in range(1, len(shares)) if u <= shares[i])
        low, high = shares[upper - 1], shares[upper]
        return round(values[upper - 1] + (u - low) / (high - low) * (values[upper] - values[upper - 1]))

    rows, at = [], 0.0
    while (at := at + draw.expovariate(5.53)) < seconds:
        rows.append(Row(at, interpolate(draw.random(), prompts), interpolate(draw.random(), outputs)))
    return rows


@dataclass(frozen=True, slots=True)
class Shape:
    """How a trace becomes a load for the test fleet."""

    seconds: float
    chats_per_second: float
    """Rate of the steady requests."""
    chat_prompt_tokens: int = 48
    """Their longest prompt."""
    chat_output_tokens: int = 96
    """Their longest output."""
    burst_every_seconds: float = 0.0
    """Distance of the bursts; 0 is a calm load without any."""
    burst_prompts: int = 2
    burst_prompt_tokens: int = 1024
    """Longest prompt of a burst."""
    burst_output_tokens: int = 8


def plan(rows: Sequence[Row], shape: Shape, long_tokens: int = 1500) -> list[Planned]:
    """Scale a trace to a load: rows above `long_tokens` feed the bursts, the others the steady part."""
    chats = [r for r in rows if r.prompt_tokens <= long_tokens]
    longs = [r for r in rows if r.prompt_tokens > long_tokens]
    if not chats or (shape.burst_every_seconds and not longs):
        raise ValueError("the slice of the trace is too short: it needs short and long prompts")
    # Time is stretched so that the trace's own gaps give the wanted mean rate.
    stretch = len(chats) / chats[-1].at / shape.chats_per_second
    prompt_scale = shape.chat_prompt_tokens / max(r.prompt_tokens for r in chats)
    output_scale = shape.chat_output_tokens / max(r.output_tokens for r in chats)
    planned = [
        Planned(
            r.at * stretch,
            max(8, round(r.prompt_tokens * prompt_scale)),
            max(12, round(r.output_tokens * output_scale)),
        )
        for r in chats
        if r.at * stretch < shape.seconds
    ]
    if shape.burst_every_seconds:
        scale = shape.burst_prompt_tokens / max(r.prompt_tokens for r in longs)
        for burst in range(1, math.ceil(shape.seconds / shape.burst_every_seconds)):
            for index in range(shape.burst_prompts):
                row = longs[(burst * shape.burst_prompts + index) % len(longs)]
                tokens = max(shape.burst_prompt_tokens // 2, round(row.prompt_tokens * scale))
                planned.append(
                    Planned(burst * shape.burst_every_seconds + index * 0.05, tokens, shape.burst_output_tokens)
                )
    return sorted(planned, key=lambda p: p.at)


# ---------------------------------------------------------------- sending


@dataclass(slots=True)
class Sent:
    """What became of one request, as its client saw it; times are Unix seconds."""

    planned: Planned
    started: float
    token_times: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str | None = None

    @property
    def complete(self) -> bool:
        """Whether all tokens that were asked for came."""
        return self.error is None and self.tokens == self.planned.output_tokens

    @property
    def first_token_seconds(self) -> float | None:
        return self.token_times[0] - self.started if self.token_times else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between the tokens."""
        return [b - a for a, b in zip(self.token_times, self.token_times[1:], strict=False)]


def quantile(values: Sequence[float], share: float) -> float | None:
    """Nearest-rank quantile; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def stall(gaps: Sequence[float]) -> float | None:
    """What a client can tell of the decode stall: time in long gaps beyond the median gap, as a share of all gaps."""
    typical = quantile(gaps, 0.5)
    if typical is None:
        return None
    return sum(gap - typical for gap in gaps if gap > 2 * typical) / sum(gaps)


@dataclass(frozen=True, slots=True)
class Summary:
    """What clients saw between two moments."""

    requests: int
    failed: int
    missed_ratio: float
    first_token_p95: float | None
    gap_p50: float | None
    gap_p95: float | None
    gap_p99: float | None
    late_gaps_ratio: float
    """Share of the gaps that are beyond the objective."""
    stall_ratio: float | None
    """Share of the time between tokens that is beyond a typical gap, of gaps more than twice as long as that."""

    def __str__(self) -> str:
        def ms(seconds: float | None) -> str:
            return "-" if seconds is None else f"{seconds * 1000:.0f} ms"

        return (
            f"{self.requests} requests, {self.failed} failed, {self.missed_ratio:.1%} missed their objectives; first token p95 {ms(self.first_token_p95)}, "
            f"inter-token p50 {ms(self.gap_p50)}, p95 {ms(self.gap_p95)}, p99 {ms(self.gap_p99)}, "
            f"{self.late_gaps_ratio:.2%} of the gaps late, "
            f"stalled {'-' if self.stall_ratio is None else format(self.stall_ratio, '.1%')}"
        )


def missed(sent: Sent, first_token_seconds: float, gap_seconds: float) -> bool:
    """The fleet's own definition: a late first token, or more than 5 % of the gaps late."""
    first = sent.first_token_seconds
    late = sum(gap > gap_seconds for gap in sent.gaps)
    return first is None or first > first_token_seconds or late > 0.05 * len(sent.gaps)


class Load:
    """Sends planned requests to a router and keeps what came back, until all are answered."""

    def __init__(self, url: str, model: str, seed: int = 1) -> None:
        self.url, self.model = url, model
        self.sent: list[Sent] = []
        self._random = random.Random(seed)

    async def run(self, planned: Sequence[Planned]) -> None:
        """Send every request at its time; returns when the last answer is complete."""
        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=512)) as session:
            start = time.time()
            async with asyncio.TaskGroup() as tasks:
                for request in planned:
                    await asyncio.sleep(max(0.0, start + request.at - time.time()))
                    tasks.create_task(self._send(session, request))

    async def _send(self, session: aiohttp.ClientSession, request: Planned) -> None:
        sent = Sent(request, time.time())
        self.sent.append(sent)
        body = {
            "model": self.model,
            # The model's tokenizer makes one token of each letter; no two prompts share a prefix.
            "prompt": "".join(self._random.choices(string.ascii_lowercase, k=request.prompt_tokens)),
            "max_tokens": request.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            async with session.post(f"{self.url}/v1/completions", json=body) as response:
                if response.status != 200:
                    sent.error = f"{response.status} {(await response.text())[:300]}"
                    return
                async for event in events(response):
                    if "error" in event:
                        sent.error = str(event["error"])[:300]
                    if event.get("choices"):
                        sent.token_times.append(time.time())
                    if event.get("usage"):
                        sent.tokens = int(event["usage"]["completion_tokens"])
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            sent.error = f"{type(error).__name__}: {error}"

    @property
    def failed(self) -> list[Sent]:
        """Requests that were refused, cut or left incomplete."""
        return [s for s in self.sent if not s.complete]

    def summary(self, since: float, until: float, first_token_seconds: float, gap_seconds: float) -> Summary:
        """What clients saw of the requests that started in [since, until)."""
        chosen = [s for s in self.sent if since <= s.started < until]
        if not chosen:
            raise ValueError("no request started between these moments")
        gaps = [gap for s in chosen for gap in s.gaps]
        firsts = [f for s in chosen if (f := s.first_token_seconds) is not None]
        late = sum(missed(s, first_token_seconds, gap_seconds) for s in chosen)
        return Summary(
            requests=len(chosen),
            failed=sum(not s.complete for s in chosen),
            missed_ratio=late / len(chosen),
            first_token_p95=quantile(firsts, 0.95),
            gap_p50=quantile(gaps, 0.50),
            gap_p95=quantile(gaps, 0.95),
            gap_p99=quantile(gaps, 0.99),
            late_gaps_ratio=sum(gap > gap_seconds for gap in gaps) / max(1, len(gaps)),
            stall_ratio=stall(gaps),
        )


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON events of a server-sent stream."""
    async for line in response.content:
        text = line.decode().strip()
        if text.startswith("data:") and text != "data: [DONE]":
            yield json.loads(text[5:])
