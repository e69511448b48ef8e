"""What the next step of an engine holds: the rules of vLLM 0.32's V1 scheduler (`v1/core/sched/scheduler.py`).

1. Requests that run come first, in the order in which they were admitted: a decode gets one token, a prefill what is
   left of the token budget (at most `long_prefill_token_threshold`, unless it is the only request). A request for
   which no KV block is left preempts the last of them, again and again, at worst itself; a preempted request loses its
   blocks, waits first in line and computes its prompt and its output anew.
2. Then, if nobody was preempted, requests that wait are admitted in the order of arrival while token budget and
   sequences are left and the KV of all their tokens fits. The first that cannot be admitted ends it. Requests whose KV
   has arrived from another engine go before all others. One that still has to pull its KV takes all its blocks, starts
   the transfer and is no obstacle to those behind it.

Synchronous scheduling; no speculation, no priorities, one group of full-attention layers, no watermark (its default).
Decodes are not walked through one by one: as a rule all of them fit, and then their group gets its step as a whole.
The exceptions (no block left, a budget smaller than the number of sequences, a prefill that was admitted before a
decode) are decided request by request, in the order of admission.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.simulate.decodes import Decodes
from ridgeline.simulate.kv_cache import BLOCK_TOKENS, Allocation, KvCache, Match
from ridgeline.simulate.request import Request
from ridgeline.simulate.traces import MOONCAKE_HASH_TOKENS

BUDGET_TOKENS = 8192
"""vLLM's token budget on an H100 unless told otherwise."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine was started."""

    kv_blocks: int
    """Blocks for requests: vLLM's `num_gpu_blocks` less one, the null block."""
    block_tokens: int = BLOCK_TOKENS
    max_num_batched_tokens: int = BUDGET_TOKENS
    """Token budget at start; no limit can be above it."""
    max_num_seqs: int = 1024
    long_prefill_token_threshold: int = 0
    """Most tokens of one prefill in a step that other requests want, too; 0: no limit."""
    prefix_caching: bool = True
    hash_tokens: int = MOONCAKE_HASH_TOKENS
    """Tokens that a block hash of the trace names."""


class Chunk(NamedTuple):
    """Tokens of one request in a step that are not those of a decode in the group."""

    request: Request
    start: int
    """Tokens of it whose KV is there already."""
    tokens: int


class Scheduler:
    """The queues and blocks of one engine.

    A request that can never fit raises ValueError when it comes; everything else waits.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.cache = KvCache(settings.kv_blocks, settings.block_tokens, settings.prefix_caching, settings.hash_tokens)
        self.decodes = Decodes(settings.block_tokens)
        """Sequences that get a token in the step at hand."""
        self.prefilling: list[Request] = []
        """Admitted, in that order, and not all of their tokens computed."""
        self.parked: list[Request] = []
        """Decodes for which the last step had no room: a budget smaller than the number of sequences."""
        self.waiting: deque[Request] = deque()
        self.loading: set[Request] = set()
        """Hold blocks that a transfer fills."""
        self.loaded: list[tuple[int, Request]] = []
        """Their KV has arrived; by the order in which their transfers were started."""
        self.budget_tokens = settings.max_num_batched_tokens
        self.long_prefill_token_threshold = settings.long_prefill_token_threshold
        self.to_pull: list[Request] = []
        """Requests whose transfer the last `schedule` asks to start."""
        self.rejoined: list[Request] = []
        """Decodes that the last `schedule` took back after a step without them."""
        self.preempted: list[Request] = []
        """Requests that the last `schedule` preempted."""
        self.blocks_ahead = 0
        """Blocks that were taken for the next token of the group's sequences, until it is computed."""
        self._orders = 0

    @property
    def running(self) -> int:
        """Requests that vLLM counts as running."""
        return len(self.decodes.members) + len(self.prefilling) + len(self.parked)

    @property
    def queued(self) -> int:
        """Requests that vLLM counts as waiting."""
        return len(self.waiting) + len(self.loading) + len(self.loaded)

    def output_lengths(self) -> list[int]:
        """Tokens that each request here has got, of those that have any."""
        step = self.decodes.step
        lengths = [member.generated + step - member.join_step for member in self.decodes.members.values()]
        held_up = (*self.prefilling, *self.parked, *self.waiting)  # preempted, or left out by a small budget
        return lengths + [request.generated for request in held_up if request.generated]

    def add(self, request: Request) -> None:
        """Put a request at the end of the line.

        Raises:
            ValueError: the KV cache cannot hold it even alone.
        """
        most = request.prompt_tokens + (1 if request.prefilling_for_another else request.output_tokens) - 1
        if -(-most // self.settings.block_tokens) > self.cache.total:
            raise ValueError(
                f"request {request.identifier} needs the KV of {most} tokens, the engine holds"
                f" {self.cache.total * self.settings.block_tokens}: give it more KV blocks or leave such requests out"
            )
        self.waiting.append(request)

    def arrived(self, request: Request) -> None:
        """The KV of a request has come: it runs before all that wait, and others find its prompt from now on."""
        self.loading.remove(request)
        assert request.allocation is not None
        self.cache.register(request.allocation, request.block_hashes, request.prompt_tokens)
        self._load(request)

    def keep(self, request: Request) -> None:
        """Go on with a request that was prefilled here for another engine: its blocks never left."""
        request.order = self._orders
        self._orders += 1
        self._load(request)

    def _load(self, request: Request) -> None:
        request.transferred = True
        request.computed = request.known_tokens - 1  # the last token is computed again: its logits give the next
        insort(self.loaded, (request.order, request), key=lambda entry: entry[0])

    # ------------------------------------------------------------ one step

    def schedule(self, now: float) -> list[Chunk]:
        """What the next step holds beside a token for each sequence of `decodes`.

        Args:
            now: end of the step before: what is preempted or parked got its last token then.
        """
        self.to_pull, self.rejoined, self.preempted = [], [], []
        chunks: list[Chunk] = []
        decodes, cache = self.decodes, self.cache
        threshold = self.long_prefill_token_threshold
        if threshold and self.running + self.queued <= 1:
            threshold = 0
        blocks = decodes.blocks_needed(1)
        budget = self.budget_tokens - len(decodes.members)
        in_order = not self.prefilling or decodes.newest_order < self.prefilling[0].order
        if budget >= 0 and blocks <= cache.free and in_order and not self.parked:
            if blocks:
                cache.take(blocks)
            self.blocks_ahead = blocks
            if self.prefilling:
                budget = self._go_on(chunks, budget, threshold)
        else:
            budget = self._one_by_one(chunks, threshold, now)
        if not self.preempted and budget > 0 and (self.waiting or self.loaded):
            self._admit(chunks, budget, threshold)
        return chunks

    def _go_on(self, chunks: list[Chunk], budget: int, threshold: int) -> int:
        """The next chunks of prefills that have begun, behind all decodes; returns the budget that is left."""
        prefilling, place = self.prefilling, 0
        while place < len(prefilling) and budget > 0:
            request = prefilling[place]
            tokens = self._chunk_tokens(request, budget, threshold)
            while not self._allocate(request, request.computed + tokens):
                victim = prefilling.pop()
                self._preempt(victim)
                if victim is request:
                    return budget
            chunks.append(Chunk(request, request.computed, tokens))
            budget -= tokens
            place += 1
        return budget

    def _one_by_one(self, chunks: list[Chunk], threshold: int, now: float) -> int:
        """All that run, in the order of admission, each with its own blocks; returns the budget that is left."""
        parked = {request.order for request in self.parked}
        line = sorted([*self.decodes.members.values(), *self.parked, *self.prefilling], key=lambda r: r.order)
        prefills = {request.order for request in self.prefilling}
        budget, place = self.budget_tokens, 0
        self.blocks_ahead = 0
        while place < len(line) and budget > 0:
            request = line[place]
            if request.order in prefills:
                tokens = self._chunk_tokens(request, budget, threshold)
                end = request.computed + tokens
            else:
                tokens, end = 1, self._context(request, parked) + 1
            before = self._blocks(request, parked)
            needed = -(-end // self.settings.block_tokens) - before
            while needed > self.cache.free:
                victim = line.pop()
                self._drop(victim, parked, prefills, now)
                if victim is request:
                    break
            else:
                self._schedule_one(chunks, request, tokens, needed, parked, prefills)
                budget -= tokens
                place += 1
                continue
            break
        for request in line[place:]:  # no budget is left for them
            if request.order not in prefills and request.order not in parked:
                request.last_token_at = now
                self.decodes.leave(request)
                self.parked.append(request)
        self.parked.sort(key=lambda r: r.order)
        return budget

    def _schedule_one(
        self, chunks: list[Chunk], request: Request, tokens: int, blocks: int, parked: set[int], prefills: set[int]
    ) -> None:
        if request.order in prefills:
            allocated = self._allocate(request, request.computed + tokens)
            assert allocated
            chunks.append(Chunk(request, request.computed, tokens))
            return
        if request.order in parked:
            self.parked.remove(request)
            parked.discard(request.order)
            self.decodes.join(request)
            self.rejoined.append(request)
        self.cache.take(blocks)
        self.blocks_ahead += blocks

    def _drop(self, victim: Request, parked: set[int], prefills: set[int], now: float) -> None:
        """Preempt a request of any kind."""
        if victim.order in prefills:
            self.prefilling.remove(victim)
        elif victim.order in parked:
            self.parked.remove(victim)
        else:
            victim.last_token_at = now
            self.decodes.leave(victim)
        self._preempt(victim)

    def _context(self, request: Request, parked: set[int]) -> int:
        if request.order in parked:
            return request.computed
        return request.context_at_join + self.decodes.step - request.join_step

    def _blocks(self, request: Request, parked: set[int]) -> int:
        """Blocks that a request holds: those of the group's members are only counted as a whole."""
        if request.order in self.decodes.members:
            return -(-self._context(request, parked) // self.settings.block_tokens)
        assert request.allocation is not None
        return request.allocation.blocks

    # ------------------------------------------------------------ admission

    def _admit(self, chunks: list[Chunk], budget: int, threshold: int) -> None:
        room = self.settings.max_num_seqs - self.running
        while budget > 0 and room > 0:
            if self.loaded:
                _, request = self.loaded.pop(0)
                # All blocks are there and all tokens but the last, which gives the first token for the client.
                self._run(request)
                tokens = min(budget, request.known_tokens - request.computed)
                chunks.append(Chunk(request, request.computed, tokens))
            elif self.waiting:
                request = self.waiting[0]
                if request.kv_source is not None:
                    if not self._start_loading(request):
                        break
                    self.waiting.popleft()
                    continue
                tokens = self._begin(request, budget, threshold)
                if not tokens:
                    break
                self.waiting.popleft()
                self._run(request)
                chunks.append(Chunk(request, request.computed, tokens))
            else:
                break
            budget -= tokens
            room -= 1

    def _run(self, request: Request) -> None:
        request.order = self._orders
        self._orders += 1
        self.prefilling.append(request)

    def _begin(self, request: Request, budget: int, threshold: int) -> int:
        """Give a request its first blocks; returns the tokens of its first chunk, 0 when it does not fit."""
        match = self._fitting_match(request, 0)
        if match is None:
            return 0
        self._adopt(request, match)
        tokens = self._chunk_tokens(request, budget, threshold)
        allocated = self._allocate(request, request.computed + tokens)
        assert allocated, "a request whose whole KV fits has blocks for its first chunk"
        return tokens

    def _start_loading(self, request: Request) -> bool:
        """Take all blocks of a prompt that another engine has computed, if they fit beside what prefills still need."""
        reserved = 0
        for other in self.prefilling:
            assert other.allocation is not None
            reserved += -(-other.known_tokens // self.settings.block_tokens) - other.allocation.blocks
        match = self._fitting_match(request, reserved)
        if match is None:
            return False
        self._adopt(request, match)
        assert request.allocation is not None
        self.cache.grow(
            request.allocation, -(-request.known_tokens // self.settings.block_tokens) - request.allocation.blocks
        )
        request.order = self._orders
        self._orders += 1
        self.loading.add(request)
        self.to_pull.append(request)
        return True

    def _fitting_match(self, request: Request, reserved: int) -> Match | None:
        """What is cached of a request; None when the rest of its tokens does not fit."""
        match = self.cache.match(request.identifier, request.block_hashes, request.known_tokens, request.prompt_tokens)
        needed = -(-request.known_tokens // self.settings.block_tokens) - match.blocks + match.idle_blocks
        return match if needed <= self.cache.free - reserved else None

    def _adopt(self, request: Request, match: Match) -> None:
        request.allocation = Allocation()
        if match.blocks:
            self.cache.adopt(request.allocation, match, request.identifier)
        request.computed = request.cached_tokens = match.blocks * self.settings.block_tokens

    # ------------------------------------------------------------ parts

    def _chunk_tokens(self, request: Request, budget: int, threshold: int) -> int:
        tokens = request.known_tokens - request.computed
        if 0 < threshold < tokens:
            tokens = threshold
        return min(tokens, budget)

    def _allocate(self, request: Request, end: int) -> bool:
        """Blocks for the first `end` tokens of a request; False when there are not enough."""
        allocation = request.allocation
        assert allocation is not None
        needed = -(-end // self.settings.block_tokens) - allocation.blocks
        if needed > self.cache.free:
            return False
        self.cache.grow(allocation, needed)
        if request.block_hashes:
            self.cache.register(allocation, request.block_hashes, min(end, request.prompt_tokens))
        return True

    def _preempt(self, request: Request) -> None:
        assert request.allocation is not None
        self.cache.release(request.allocation, request.computed, keep_for=request.identifier)
        request.leave_engine()
        request.preemptions += 1
        self.waiting.appendleft(request)
        self.preempted.append(request)
