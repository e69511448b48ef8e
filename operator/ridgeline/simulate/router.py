"""How requests are shared among engines, as SMG 1.13 does it.

A router knows a table of engines with roles, and what it has sent to each. Mixed engines on one hand, prefill and
decode engines on the other share the requests by their numbers, whatever the policy (as measured with SMG: 1P 1D and
2 mixed give the pair half of them); a role without its partner gets nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ridgeline.api.fleet import Role
from ridgeline.simulate.engine import Engine
from ridgeline.simulate.request import Request
from ridgeline.simulate.traces import Dice

Table = Mapping[Role, Sequence[Engine]]
"""Engines that a router may send to, by the role that it knows them in."""


class Policy(Protocol):
    """Which of several engines of one role gets a request."""

    def pick(self, engines: Sequence[Engine], request: Request) -> Engine:
        """One of `engines`, of which there is at least one."""
        ...


class LeastLoad:
    """The engine with the fewest requests in flight; the first of those that are equal (SMG's `least_load`)."""

    def pick(self, engines: Sequence[Engine], request: Request) -> Engine:
        """The least loaded engine."""
        best = engines[0]
        for engine in engines:
            if engine.in_flight < best.in_flight:
                best = engine
        return best


class LeastTokens:
    """The engine with the fewest prompt and output tokens in flight: it would have to know output lengths."""

    def pick(self, engines: Sequence[Engine], request: Request) -> Engine:
        """The engine with the fewest tokens."""
        return min(engines, key=lambda engine: engine.tokens_in_flight)


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def pick(self, engines: Sequence[Engine], request: Request) -> Engine:
        """The next engine."""
        self._next += 1
        return engines[(self._next - 1) % len(engines)]


class PowerOfTwo:
    """The less loaded of two engines drawn at random."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice

    def pick(self, engines: Sequence[Engine], request: Request) -> Engine:
        """The less loaded of two."""
        if len(engines) == 1:
            return engines[0]
        first = int(self._dice.random() * len(engines))
        second = int(self._dice.random() * (len(engines) - 1))
        one, other = engines[first], engines[second + (second >= first)]
        return other if other.in_flight < one.in_flight else one


class Router:
    """Chooses the engine, or the pair of engines, of each request.

    Args:
        policy: makes a policy for each kind of pick: mixed, prefill and decode engines have their own.
    """

    def __init__(self, mixed: Policy, prefill: Policy, decode: Policy) -> None:
        self._mixed, self._prefill, self._decode = mixed, prefill, decode
        self._owed_to_pairs = 0.0

    def choose(self, table: Table, request: Request) -> tuple[Engine, Engine] | None:
        """The engine that prefills and the one that decodes, the same for a mixed one; None: no engine can take it."""
        mixed, prefill, decode = table[Role.MIXED], table[Role.PREFILL], table[Role.DECODE]
        pairs = len(prefill) + len(decode) if prefill and decode else 0
        if pairs and mixed:
            self._owed_to_pairs += pairs / (pairs + len(mixed))
            if self._owed_to_pairs >= 0.5:
                self._owed_to_pairs -= 1.0
            else:
                pairs = 0
        if pairs:
            return self._prefill.pick(prefill, request), self._decode.pick(decode, request)
        if mixed:
            engine = self._mixed.pick(mixed, request)
            return engine, engine
        return None

    def decode_engine(self, table: Table, request: Request) -> Engine:
        """Where a request goes whose prefill has ended: to the engine that was picked with its prefill engine."""
        assert request.decode_engine is not None
        return request.decode_engine


def least_load() -> Router:
    """The router that Ridgeline deploys."""
    return Router(LeastLoad(), LeastLoad(), LeastLoad())
