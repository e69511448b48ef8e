"""Arrow (arXiv:2505.11916): every engine does both phases, its role is a label, requests go where their objective holds.

Rule, as `athrael-soju/Narwhal` (src/narwhal/scheduler.py) reimplements Algorithms 1 to 3 with its defaults. T is the predicted time
of a prefill, MT the resident tokens at which a decode step takes as long as the objective. Costs are pairs, compared
first by the first:

    prefill of r on i   (decode tokens on i, sum of T over the prefills on i and r)      holds if the sum <= objective
    decode of r on i    (prefill tokens on i, decode tokens on i + tokens of r - MT)     holds if the sum <= 0

1. Placement. A decode whose prefill engine is labelled decode by now stays there. Otherwise the cheapest engine of the
   phase's pool at which the objective holds; if there is none, a decode asks for a flip of a prefill engine, a prefill
   for one of a decode engine if the decode load is below `SHRINK`; without a flip the cheapest of the pool takes it.
2. Monitor, every second. Loads are means: of prefill over the engines with that label or such work, of decode over
   those with that label. After `SUSTAINED` looks in a row with decode load >= `EXPAND`, or prefill load <= `SHRINK` <=
   decode load, one prefill engine is flipped.
3. Flip. The pool that gives keeps one engine at least; prefill to decode waits `COOLDOWN_SECONDS` after the last such,
   or the start. First those that hold work of the other phase, then those with the least work. What an engine holds ends there.

Load of prefill: T of all that is on an engine, now or as the mean of the last second, whichever is more / objective.
Load of decode: (observed time between tokens - step of an empty batch) / (objective - step of an empty batch), not
below 0.

Adapted: T and MT come from the simulator's own cost model (the paper fits them to a profile of each engine), without
prefix hits. What engines hold is known as of the last second and of what was placed since. Arrow's scheduler is its
router, so labels count at once for it, while elsewhere a router goes by them half a second later; no weights move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ridgeline.api.fleet import Role
from ridgeline.cost.step_cost import StepCost
from ridgeline.simulate.controller import Event
from ridgeline.simulate.engine import Engine
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.request import Request
from ridgeline.simulate.rivals.rival import Rival
from ridgeline.simulate.router import LeastLoad, Router, Table
from ridgeline.simulate.scheduler import BUDGET_TOKENS
from ridgeline.simulate.traces import Arrival
from ridgeline_exporters.roofline.windows import attended_pairs

EXPAND = 1.0
SHRINK = 0.5
SUSTAINED = 3
COOLDOWN_SECONDS = 10.0
INTERVAL_SECONDS = 1.0

Cost = tuple[float, float]


@dataclass(slots=True)
class Load:
    """What one engine holds, as far as the scheduler knows."""

    prefill_seconds: float = 0.0
    """Predicted, of all prompts placed there and not computed."""
    prefill_tokens: int = 0
    decode_tokens: int = 0
    decodes: int = 0
    decode_load: float = 0.0
    """As of the last look of the monitor."""
    mean_prefill_seconds: float = 0.0
    """Mean of `prefill_seconds` over the interval before that look."""
    _area: float = 0.0
    """Of `prefill_seconds` over time, since that look."""
    _since: float = 0.0

    def prefill(self, seconds: float, tokens: int, now: float) -> None:
        """A prefill comes, or (below 0) is done."""
        self._area += self.prefill_seconds * (now - self._since)
        self._since = now
        self.prefill_seconds = max(0.0, self.prefill_seconds + seconds)
        self.prefill_tokens = max(0, self.prefill_tokens + tokens)

    def close_interval(self, now: float) -> None:
        """Take the mean of the interval that ends now."""
        self.prefill(0.0, 0, now)
        self.mean_prefill_seconds, self._area = self._area / INTERVAL_SECONDS, 0.0


def prefill_cost(load: Load, seconds: float) -> Cost:
    """Of a prefill that is predicted to take so long."""
    return load.decode_tokens, load.prefill_seconds + seconds


def decode_cost(load: Load, tokens: int, most_tokens: float) -> Cost:
    """Of a decode with so many tokens in its context, on an engine that holds at most `most_tokens`."""
    return load.prefill_tokens, load.decode_tokens + tokens - most_tokens


def cheapest(costs: Sequence[Cost], limit: float) -> int | None:
    """Place of the cheapest whose second part is within the limit; None if there is none."""
    within = [place for place, cost in enumerate(costs) if cost[1] <= limit]
    return min(within, key=lambda place: costs[place]) if within else None


def donor(loads: Sequence[Load], role: Role) -> int | None:
    """Place of the engine of a pool that changes its role; None while only one is left."""
    if len(loads) < 2:
        return None
    if role is Role.PREFILL:
        return min(range(len(loads)), key=lambda i: (loads[i].decode_tokens == 0, loads[i].prefill_seconds))
    return min(range(len(loads)), key=lambda i: (loads[i].prefill_tokens == 0, loads[i].decode_tokens))


def triggered(prefill_load: float, decode_load: float) -> bool:
    """Whether the monitor would give decode another engine."""
    return decode_load >= EXPAND or prefill_load <= SHRINK <= decode_load


class Arrow(Rival):
    """The monitor, beside its router.

    Args:
        cost: of the engines' steps.
        first_token_objective_seconds: of the fleet.
        inter_token_objective_seconds: of the fleet.
        kv_tokens: that an engine holds.
    """

    def __init__(
        self,
        cost: StepCost,
        first_token_objective_seconds: float,
        inter_token_objective_seconds: float,
        kv_tokens: int,
    ) -> None:
        super().__init__("Arrow")
        self._router = ArrowRouter(
            cost, first_token_objective_seconds, inter_token_objective_seconds, kv_tokens, self.events.append
        )

    def router(self) -> Router:
        """Its scheduler."""
        return self._router

    def attend(self, fleet: Fleet, arrivals: Iterable[Arrival]) -> Iterable[Arrival]:
        """Look at the fleet every second."""
        self._router.meet(fleet)
        return arrivals


class ArrowRouter(Router):
    """Places requests, and flips labels."""

    def __init__(
        self,
        cost: StepCost,
        first_token_objective_seconds: float,
        inter_token_objective_seconds: float,
        kv_tokens: int,
        tell: Callable[[Event], None],
    ) -> None:
        super().__init__(LeastLoad(), LeastLoad(), LeastLoad())
        self._cost = cost
        self._first_token = first_token_objective_seconds
        self._inter_token = inter_token_objective_seconds
        self._kv_tokens = kv_tokens
        self._tell = tell
        self._floor = cost.decode_run(1)[0]
        self._loads: dict[str, Load] = {}
        self._steps: dict[str, int] = {}
        """Decode steps of an engine until the last look; only of those that decoded then."""
        self._last_flip = 0.0
        self._in_a_row = 0
        self._fleet: Fleet | None = None

    def meet(self, fleet: Fleet) -> None:
        """Begin to look at a fleet, before its first request."""
        self._fleet = fleet
        self._loads = {name: Load() for name in fleet.engines}
        fleet.every(INTERVAL_SECONDS, self._monitor)

    # ------------------------------------------------------------ Algorithm 1

    def choose(self, table: Table, request: Request) -> tuple[Engine, Engine] | None:
        """Place the prefill; the decode is placed when that is done, until then the first decode engine stands for it."""
        engines = self._pool(Role.PREFILL)
        seconds = self.prefill_seconds(0, request.prompt_tokens)
        costs = [prefill_cost(self._loads[e.name], seconds) for e in engines]
        place = cheapest(costs, self._first_token)
        chosen = None if place is None else engines[place]
        if chosen is None and self._mean_loads()[1] < SHRINK:
            chosen = self._flip(Role.DECODE, "no prefill engine would be in time")
        if chosen is None:
            chosen = engines[min(range(len(costs)), key=lambda i: costs[i])]
        self._loads[chosen.name].prefill(seconds, request.prompt_tokens, self._met.now)
        return chosen, self._pool(Role.DECODE)[0]

    def decode_engine(self, table: Table, request: Request) -> Engine:
        """Place the decode of a request whose prefill is done."""
        source, tokens = request.kv_source, request.prompt_tokens
        assert source is not None
        self._loads[source.name].prefill(-self.prefill_seconds(0, tokens), -tokens, self._met.now)
        chosen = source if source.role is Role.DECODE else self._place_decode(request)
        load = self._loads[chosen.name]
        load.decode_tokens += request.known_tokens
        load.decodes += 1
        return chosen

    def _place_decode(self, request: Request) -> Engine:
        engines = self._pool(Role.DECODE)
        loads = [self._loads[e.name] for e in engines]
        costs = [decode_cost(load, request.known_tokens, self.most_tokens(load.decodes + 1)) for load in loads]
        place = cheapest(costs, 0.0)
        if place is not None:
            return engines[place]
        flipped = self._flip(Role.PREFILL, "no decode engine would be in time")
        return flipped or engines[min(range(len(costs)), key=lambda i: costs[i])]

    def prefill_seconds(self, start: int, end: int) -> float:
        """T: predicted time to compute a prompt from one token to another, in steps of the whole token budget."""
        seconds = 0.0
        while start < end:
            tokens = min(BUDGET_TOKENS, end - start)
            seconds += self._cost.seconds(tokens, attended_pairs(tokens, start), start, 0, 0, 1)
            start += tokens
        return seconds

    def most_tokens(self, sequences: int) -> float:
        """MT: tokens in the contexts of so many sequences at which their step takes as long as the objective."""
        first, per_token = self._cost.decode_run(sequences)
        return min(float(self._kv_tokens), max(0.0, self._inter_token - first) / per_token)

    # ------------------------------------------------------------ Algorithm 2

    def _monitor(self, now: float) -> None:
        fleet = self._met
        fleet.settle()
        for engine in fleet.engines.values():
            self._look(engine, now)
        self._in_a_row = self._in_a_row + 1 if triggered(*self._mean_loads()) else 0
        if self._in_a_row >= SUSTAINED and self._flip(Role.PREFILL, "decode is loaded") is not None:
            self._in_a_row = 0

    def _look(self, engine: Engine, now: float) -> None:
        scheduler, load = engine.scheduler, self._loads[engine.name]
        load.close_interval(now)
        prompts = [(r.computed, r.known_tokens) for r in scheduler.prefilling if not r.transferred]
        prompts += [(0, r.known_tokens) for r in scheduler.waiting if r.kv_source is None]
        load.prefill_seconds = 0.0
        for start, end in prompts:
            load.prefill_seconds += self.prefill_seconds(start, end)
        load.prefill_tokens = sum(end - start for start, end in prompts)
        coming = [r for r in scheduler.waiting if r.kv_source is not None]
        coming += [*scheduler.loading, *(request for _, request in scheduler.loaded), *scheduler.parked]
        load.decode_tokens = scheduler.decodes.kv_tokens + sum(r.known_tokens for r in coming)
        load.decodes = len(scheduler.decodes) + len(coming)
        load.decode_load = 0.0
        if scheduler.decodes.members:
            gap = self._gap(engine)
            load.decode_load = max(0.0, gap - self._floor) / max(1e-9, self._inter_token - self._floor)
            self._steps[engine.name] = scheduler.decodes.step
        else:
            self._steps.pop(engine.name, None)

    def _gap(self, engine: Engine) -> float:
        """Mean seconds between tokens since the last look; of an engine that did not decode then, of a step now."""
        decodes = engine.scheduler.decodes
        before = self._steps.get(engine.name)
        if before is None:
            first, per_token = self._cost.decode_run(len(decodes))
            return first + per_token * decodes.kv_tokens
        return INTERVAL_SECONDS / max(1, decodes.step - before)

    def _mean_loads(self) -> tuple[float, float]:
        """Loads of prefill and decode."""
        known = [(engine.role, self._loads[engine.name]) for engine in self._met.engines.values()]
        prefill = [
            max(load.prefill_seconds, load.mean_prefill_seconds) / self._first_token
            for role, load in known
            if role is Role.PREFILL or load.prefill_tokens
        ]
        return _mean(prefill), _mean([load.decode_load for role, load in known if role is Role.DECODE])

    # ------------------------------------------------------------ Algorithm 3

    def _flip(self, source: Role, why: str) -> Engine | None:
        """Relabel an engine of a pool, if it can give one."""
        fleet = self._met
        if source is Role.PREFILL and fleet.now < self._last_flip + COOLDOWN_SECONDS:
            return None
        engines = self._pool(source)
        place = donor([self._loads[e.name] for e in engines], source)
        if place is None:
            return None
        to = Role.DECODE if source is Role.PREFILL else Role.PREFILL
        if source is Role.PREFILL:
            self._last_flip = fleet.now
        engine = engines[place]
        fleet.set_role(engine.name, to)
        self._tell(Event(fleet.now, "Rebalance", "Arrow", f"1 {source} → {to}: {why}"))
        return engine

    # ------------------------------------------------------------ parts

    @property
    def _met(self) -> Fleet:
        assert self._fleet is not None, "the router has met its fleet before the first request"
        return self._fleet

    def _pool(self, role: Role) -> list[Engine]:
        return [engine for engine in self._met.engines.values() if engine.role is role]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
