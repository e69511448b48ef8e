"""One engine in time: steps of its scheduler, one after the other, and runs of decode-only steps as one event.

An engine is idle, or in one step that holds more than decodes, or in a run of steps of decodes alone. A run goes on to
the step in which a sequence ends or the KV blocks are used up. Whatever comes meanwhile (a request, KV, another limit)
ends the run with the step that is in flight, as a real engine looks at its queues between steps only.
"""

from __future__ import annotations

from typing import Protocol

from ridgeline.api.fleet import Role
from ridgeline.cost.step_cost import StepCost
from ridgeline.simulate.counters import Counters
from ridgeline.simulate.decode_run import DecodeRun
from ridgeline.simulate.ingress import Ingress
from ridgeline.simulate.kv_cache import Allocation
from ridgeline.simulate.phase_use import PhaseWork
from ridgeline.simulate.request import HoldKey, Request
from ridgeline.simulate.scheduler import Chunk, EngineSettings, Scheduler
from ridgeline_exporters.engine.baseline import StepModel


class StepRecord(Protocol):
    """Told of each step, or run of like steps, when it is over: for comparison with a real scheduler."""

    def __call__(
        self, engine: Engine, started_at: float, chunks: list[Chunk], decodes: list[Request], steps: int
    ) -> None:
        """One step with these chunks and one token for each decode; the same decodes `steps` times."""
        ...


class Surroundings(Protocol):
    """What an engine tells the fleet around it."""

    def step_ends(self, engine: Engine, time: float) -> None:
        """Call `engine.step_ended` at that time, unless its `version` has changed by then."""
        ...

    def pull_ends(self, engine: Engine, time: float) -> None:
        """Call `engine.pulls_ended` at that time, unless its `pull_version` has changed by then."""
        ...

    def prefilled(self, request: Request, now: float) -> None:
        """The prefill of a request that another engine decodes is done."""
        ...

    def finished(self, request: Request, now: float) -> None:
        """A request has all its tokens."""
        ...


class Engine:
    """One engine: its label, its scheduler and the step it is at.

    Args:
        name: of its pod.
        settings: how it was started.
        cost: how long its steps take.
        link_bytes_per_second: one-way speed of the link that brings it KV.
        inter_token_objective_seconds: gaps longer than this are late.
        kv_bytes_per_token: what a pulled token weighs.
        counters: of the fleet.
        surroundings: the fleet.
        record: told of every step.
        work: counts what each phase computes and moves.
    """

    def __init__(
        self,
        name: str,
        settings: EngineSettings,
        cost: StepCost,
        link_bytes_per_second: float,
        kv_bytes_per_token: float,
        inter_token_objective_seconds: float,
        counters: Counters,
        surroundings: Surroundings,
        record: StepRecord | None = None,
        work: PhaseWork | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.role = Role.MIXED
        """The pod's label: routers follow it, the engine itself does not know it."""
        self.ready = True
        self.died_at = 0.0
        """When it became not ready, if it is not."""
        self.draining = False
        """Out of the routers' tables for good: it only works off what it has."""
        self.in_flight = 0
        """Requests that the router has sent here and that have not ended."""
        self.tokens_in_flight = 0
        """Their prompt and output tokens."""
        self.kv_bytes_received = 0.0
        self.kv_failures = 0
        self.prefills_finished = 0
        self.scheduler = Scheduler(settings)
        self.ingress = Ingress(link_bytes_per_second)
        self.learn: StepModel | None = None
        """Learns how long steps take, as the engine's exporter does; of a run, its first step."""
        self.ends_at: float | None = None
        """End of the step or run in flight; None while idle."""
        self.version = 0
        """Changes whenever `ends_at` does: an event for another version is void."""
        self.pull_version = 0
        """The same for the end of the next transfer into this engine."""
        self.cost = cost
        self._objective = inter_token_objective_seconds
        self._counters = counters
        self._kv_bytes_per_token = kv_bytes_per_token
        self._surroundings = surroundings
        self.record = record
        self._work = work
        self._run: DecodeRun | None = None
        self._chunks: list[Chunk] = []
        self._step_started_at = 0.0
        self._held: dict[HoldKey, tuple[Allocation, int]] = {}
        """Prefill → blocks that another engine still has to read, and the tokens in them."""

    # ------------------------------------------------------------ what comes from outside

    def enqueue(self, request: Request, now: float) -> None:
        """Take a request.

        Raises:
            ValueError: its KV can never fit.
        """
        blocked = bool(self.scheduler.waiting)
        self.scheduler.add(request)
        # Behind one that the last step could not admit it changes nothing before that one gets in.
        if self.ends_at is None or not blocked:
            self.wake(now)

    def pulls_ended(self, now: float) -> None:
        """The next transfer into this engine, or several, are over."""
        for request in self.ingress.ended(now):
            size_bytes = self._pulled_bytes(request)
            self.kv_bytes_received += size_bytes
            self._counters.kv_bytes_moved += size_bytes
            source, request.kv_source = request.kv_source, None
            assert source is not None
            self.scheduler.arrived(request)
            source.release(request.hold_key, now)
        self._expect_pull()
        self.wake(now)

    def kv_failed(self, request: Request, now: float) -> None:
        """The KV of a request will not come: its prompt is computed here (`kv_load_failure_policy: recompute`)."""
        self.kv_failures += 1
        self._counters.kv_transfer_failures += 1
        request.kv_source = None
        if request in self.scheduler.loading:
            assert request.allocation is not None
            self.ingress.remove(request, now)
            self._expect_pull()
            self.scheduler.loading.remove(request)
            self.scheduler.cache.release(request.allocation, request.cached_tokens)
            request.leave_engine()
            self.scheduler.waiting.appendleft(request)
        self.wake(now)

    def release(self, prefill: HoldKey, now: float) -> None:
        """Another engine has read the KV of a prefill, or its lease is over."""
        if prefill in self._held:
            self.scheduler.cache.release(*self._held.pop(prefill))
            self.wake(now)

    def keep(self, request: Request, now: float) -> None:
        """Decode a request whose KV was held for another engine: it is here already."""
        request.allocation, _ = self._held.pop(request.hold_key)
        request.kv_source = None
        self.scheduler.keep(request)
        self.wake(now)

    def holds(self, prefill: HoldKey) -> bool:
        """Whether the KV of a prefill is kept for another engine."""
        return prefill in self._held

    @property
    def held_requests(self) -> int:
        """Requests whose KV is kept for other engines."""
        return len(self._held)

    def set_limit(self, budget_tokens: int, now: float) -> None:
        """Set the token budget, at most the one of the start, from the next step on."""
        limit = max(1, min(budget_tokens, self.settings.max_num_batched_tokens))
        if limit != self.scheduler.budget_tokens:
            self.scheduler.budget_tokens = limit
            self.wake(now)

    def wake(self, now: float) -> None:
        """Look at the queues again: at once when idle, else after the step in flight."""
        if self.ends_at is None:
            self._set_end(now)  # whatever comes at this moment is looked at together
        elif self._run is not None:
            steps = self._run.boundary_from(now)
            if steps < self._run.steps:
                self._run.steps = steps
                self._set_end(self._run.end_of(steps))

    def settle(self, now: float) -> None:
        """Count the steps of a run that are complete by now, as a scrape would find them."""
        if self._run is not None:
            steps = min(self._run.complete_by(now), self._run.steps - 1)
            if steps > 0:
                self._advance_run(self._run, steps)
                self._take_ahead()
                self._run.advance(steps)

    def fail(self, now: float) -> list[Request]:
        """Die: every request is gone, and with it all KV.

        Returns:
            The requests that were here, in the order of their identifiers.
        """
        if self._run is not None:
            self.settle(now)
        scheduler = self.scheduler
        gone = [*scheduler.prefilling, *scheduler.parked, *scheduler.waiting, *scheduler.loading]
        gone += [request for _, request in scheduler.loaded]
        for request in list(scheduler.decodes.members.values()):
            scheduler.decodes.leave(request)
            gone.append(request)
        budget, threshold = scheduler.budget_tokens, scheduler.long_prefill_token_threshold
        self.scheduler = Scheduler(self.settings)
        self.scheduler.budget_tokens, self.scheduler.long_prefill_token_threshold = budget, threshold
        self.ingress.clear()
        self._expect_pull()
        self._held.clear()
        self._run, self._chunks = None, []
        self._set_end(None)
        self.ready, self.died_at = False, now
        return sorted(gone, key=lambda request: request.identifier)

    # ------------------------------------------------------------ time

    def step_ended(self, now: float) -> None:
        """The step or run in flight is over: judge it, and plan the next."""
        if self._run is not None:
            run, self._run = self._run, None
            self._advance_run(run, run.steps)
            self._end_decodes(now)
        else:
            self._end_step(now)
        self._plan(now)

    def _plan(self, now: float) -> None:
        scheduler = self.scheduler
        chunks = scheduler.schedule(now)
        decodes = scheduler.decodes
        sequences = len(decodes.members)
        for request in scheduler.to_pull:
            self.ingress.start(request, self._pulled_bytes(request), now)
        if scheduler.to_pull:
            self._expect_pull()
        if scheduler.preempted:
            self._counters.preemptions += len(scheduler.preempted)
        if chunks or scheduler.rejoined:
            self._start_step(chunks, sequences, now)
        elif sequences:
            self._start_run(sequences, now)
        else:
            self._set_end(None)

    def _start_run(self, sequences: int, now: float) -> None:
        scheduler, decodes = self.scheduler, self.scheduler.decodes
        first, per_token = self.cost.decode_run(sequences)
        steps = 1 if scheduler.preempted else decodes.steps_to_finish()  # who was preempted may come back at once
        if steps > 1:
            # The blocks of the first step are taken already.
            steps = decodes.steps_that_fit(scheduler.cache.free + scheduler.blocks_ahead, steps)
        self._run = DecodeRun(now, steps, first + per_token * decodes.kv_tokens, per_token * sequences)
        if self.learn is not None:
            self.learn.add(sequences, decodes.kv_tokens, 0, 0, self._run.first_seconds)
        self._set_end(self._run.end_of(steps))

    def _start_step(self, chunks: list[Chunk], sequences: int, now: float) -> None:
        tokens = pairs = read = samples = 0
        decode_tokens = self.scheduler.decodes.kv_tokens
        for request, start, count in chunks:
            end = start + count
            if end == request.known_tokens:
                samples += 1
                if request.transferred and not request.generated:
                    sequences += 1  # the last token of its prompt is computed again: a decode in all but name
                    decode_tokens += end
                    continue
            tokens += count
            pairs += count * start + count * (count + 1) // 2  # as `windows.attended_pairs` has it
            read += start
        decodes = len(self.scheduler.decodes.members)
        seconds = self.cost.seconds(tokens, pairs, read, sequences, decode_tokens, samples + decodes)
        if self.learn is not None:
            self.learn.add(sequences, decode_tokens, tokens, pairs, seconds)
        counters = self._counters
        counters.step(seconds, sequences, decode_tokens, tokens, pairs)
        counters.prefill_tokens += tokens
        if self._work is not None:
            again = sequences - decodes  # chunks that count as decodes
            prompts, ended = len(chunks) - again, samples - again
            self._work.add_step(counters.phases, seconds, tokens, pairs, read, ended, prompts, sequences, decode_tokens)
        if sequences:
            counters.decode_seconds += seconds
            counters.decode_tokens += sequences
            if tokens:
                first, per_token = self.cost.decode_run(sequences)
                counters.stall_seconds += max(0.0, seconds - first - per_token * decode_tokens)
        self._chunks = chunks
        self._step_started_at = now
        self._set_end(now + seconds)

    def _set_end(self, ends_at: float | None) -> None:
        self.ends_at = ends_at
        self.version += 1
        if ends_at is not None:
            self._surroundings.step_ends(self, ends_at)

    def _pulled_bytes(self, request: Request) -> float:
        """KV that comes from the other engine: all but what the prefix cache has."""
        return (request.known_tokens - request.cached_tokens) * self._kv_bytes_per_token

    def _expect_pull(self) -> None:
        self.pull_version += 1
        ends_at = self.ingress.next_end()
        if ends_at is not None:
            self._surroundings.pull_ends(self, ends_at)

    # ------------------------------------------------------------ ends

    def _advance_run(self, run: DecodeRun, steps: int) -> None:
        """Give each decode its tokens of the first steps of a run."""
        scheduler = self.scheduler
        decodes = scheduler.decodes
        if self.record is not None:
            self.record(self, run.started_at, [], list(decodes.members.values()), steps)
        blocks = decodes.blocks_needed(steps) - scheduler.blocks_ahead
        if blocks:
            scheduler.cache.take(blocks)
        scheduler.blocks_ahead = 0
        sequences = len(decodes.members)
        self._counters.decode_run(run, steps, sequences, decodes.kv_tokens)
        if self._work is not None:
            self._work.add_run(self._counters.phases, steps, sequences, decodes.kv_tokens)
        decodes.advance(steps, steps - run.steps_up_to(self._objective, steps))

    def _take_ahead(self) -> None:
        scheduler = self.scheduler
        scheduler.blocks_ahead = scheduler.decodes.blocks_needed(1)
        scheduler.cache.take(scheduler.blocks_ahead)

    def _end_step(self, now: float) -> None:
        scheduler, decodes = self.scheduler, self.scheduler.decodes
        seconds = now - self._step_started_at
        scheduler.blocks_ahead = 0
        if self.record is not None and (self._chunks or decodes.members):
            self.record(self, self._step_started_at, self._chunks, list(decodes.members.values()), 1)
        if decodes.members:
            late = seconds > self._objective
            self._counters.gap(seconds, len(decodes.members))
            for request in scheduler.rejoined:  # their gap began before this step
                self._counters.gap(seconds, -1)
                self._judge_gap(request, now)
                request.late_gaps -= late
            decodes.advance(1, int(late))
            self._end_decodes(now)
        chunks, self._chunks = self._chunks, []
        for request, start, tokens in chunks:
            request.computed = start + tokens
            if request.computed == request.known_tokens:
                scheduler.prefilling.remove(request)
                self._sampled(request, now)

    def _end_decodes(self, now: float) -> None:
        for request in self.scheduler.decodes.finished():
            self._end(request, now)

    def _sampled(self, request: Request, now: float) -> None:
        """A request has got a token from a chunk: its first, or the next after it was preempted."""
        if request.prefilling_for_another:
            self.prefills_finished += 1
            assert request.allocation is not None
            self._held[request.hold_key] = (request.allocation, request.computed)
            self._counters.cached_tokens += request.cached_tokens
            request.leave_engine()
            self._surroundings.prefilled(request, now)
            return
        if request.generated == 0:
            if not request.transferred:
                self.prefills_finished += 1
                self._counters.cached_tokens += request.cached_tokens
            request.first_token_at = now
            self._counters.first_token(now - request.arrived_at)
        else:
            self._judge_gap(request, now)
        request.generated += 1
        if request.generated == request.output_tokens:
            self._end(request, now)
        else:
            self.scheduler.decodes.join(request)

    def _judge_gap(self, request: Request, now: float) -> None:
        gap = now - request.last_token_at
        self._counters.gap(gap, 1)
        request.late_gaps += gap > self._objective

    def _end(self, request: Request, now: float) -> None:
        assert request.allocation is not None
        self.scheduler.cache.release(request.allocation, request.computed)
        self._surroundings.finished(request, now)
