"""A static split whose decode engines take prompts in when every prefill engine is backed up.

Rule (the project's own regime map, pitfall 3; the idea is that of Splitwise's mixed pool, arXiv:2311.18677, section
IV-A: a queue above a threshold sends requests to machines of the other pool): when every prefill queue holds more than
25,000 tokens, the decode engine with the fewest queued prompt tokens prefills the prompt itself, in chunks of 512
tokens, and no KV moves. Otherwise the split is served as always.

Adapted: chunks are bounded by the token budget of the decode engines, of which their decodes take a token each.
The router knows the prompts that it sent to an engine and what the engine has computed of them, without delay.
"""

from __future__ import annotations

from ridgeline.api.fleet import Role
from ridgeline.simulate.controller import Orders, StaticSplit
from ridgeline.simulate.engine import Engine
from ridgeline.simulate.request import Request
from ridgeline.simulate.rivals.rival import Rival
from ridgeline.simulate.router import LeastLoad, Router, Table

QUEUED_TOKENS = 25_000
CHUNK_TOKENS = 512


class Overflow(Rival):
    """So many prefill engines, the others decode and take overflow.

    Args:
        prefill: engines that prefill.
    """

    def __init__(self, prefill: int) -> None:
        super().__init__(f"{prefill} prefill, overflow")
        self.prefill = prefill

    def router(self) -> Router:
        """Shares requests as the rule says."""
        return OverflowRouter()

    def begin(self, engines: tuple[str, ...]) -> Orders:
        """Divide the engines, and bound the chunks of those that decode."""
        roles = StaticSplit(self.prefill).begin(engines).roles
        return Orders(roles, {name: CHUNK_TOKENS for name, role in roles.items() if role is Role.DECODE})


class OverflowRouter(Router):
    """Fewest requests in flight, as Ridgeline's router; overflow as the rule says."""

    def __init__(self) -> None:
        super().__init__(LeastLoad(), LeastLoad(), LeastLoad())

    def choose(self, table: Table, request: Request) -> tuple[Engine, Engine] | None:
        """The pair, or one decode engine for both phases."""
        prefill, decode = table[Role.PREFILL], table[Role.DECODE]
        if prefill and decode and all(queued_prompt_tokens(e, QUEUED_TOKENS) > QUEUED_TOKENS for e in prefill):
            engine = min(decode, key=queued_prompt_tokens)
            return engine, engine
        return super().choose(table, request)


def queued_prompt_tokens(engine: Engine, enough: float = float("inf")) -> int:
    """Prompt tokens that an engine has still to compute, counted until there are more than `enough`."""
    tokens = 0
    for request in engine.scheduler.prefilling:
        tokens += request.known_tokens - request.computed
    for request in engine.scheduler.waiting:
        if tokens > enough:
            break
        if request.kv_source is None:
            tokens += request.known_tokens
    return tokens
