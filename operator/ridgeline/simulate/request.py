"""One request on its way through the fleet."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from ridgeline.simulate.traces import Arrival

if TYPE_CHECKING:
    from ridgeline.simulate.engine import Engine
    from ridgeline.simulate.kv_cache import Allocation

HoldKey = tuple[int, int]
"""A prefill whose KV is kept for another engine: the request and which attempt it was."""


class Request:
    """One request: what the trace says of it, where it is, and how it did.

    A plain slotted object, changed in place by the engine that holds it: a simulation makes millions of them.
    """

    __slots__ = (
        "allocation",
        "arrived_at",
        "attempts",
        "block_hashes",
        "cached_tokens",
        "computed",
        "context_at_join",
        "decode_engine",
        "finish_step",
        "first_token_at",
        "generated",
        "identifier",
        "join_step",
        "kv_source",
        "last_token_at",
        "late_before_join",
        "late_gaps",
        "order",
        "output_tokens",
        "preemptions",
        "prefill_engine",
        "prefilling_for_another",
        "prompt_tokens",
        "transferred",
    )

    def __init__(self, identifier: int, arrival: Arrival, arrived_at: float) -> None:
        self.identifier = identifier
        """Place in the trace, from 0."""
        self.arrived_at = arrived_at
        """When the router got it."""
        self.prompt_tokens = arrival.prompt_tokens
        self.output_tokens = arrival.output_tokens
        self.block_hashes = arrival.block_hashes
        self.attempts = 0
        """Times that a router has sent it to engines."""
        self.preemptions = 0
        self.first_token_at: float | None = None
        """When the client got its first token."""
        self.last_token_at = 0.0
        """When it got the last one; kept only while the request is not among an engine's decodes."""
        self.late_gaps = 0
        """Gaps above the objective, up to when the request last joined an engine's decodes."""
        self.start_over()

    def start_over(self) -> None:
        """Forget all that an engine did for it: a router sends it again."""
        self.generated = 0
        """Tokens sampled for the client."""
        self.prefill_engine: Engine | None = None
        """The engine that prefills for another one; None when one engine does both."""
        self.decode_engine: Engine | None = None
        """The engine that gives the client its tokens."""
        self.prefilling_for_another = False
        """Whether it is at the first of two engines: there it ends with its prefill."""
        self.kv_source: Engine | None = None
        """The engine that holds the KV of its prompt, until it is pulled from there."""
        self.leave_engine()

    def leave_engine(self) -> None:
        """Forget what ties it to one engine's scheduler."""
        self.computed = 0
        """Tokens whose KV this engine has; of a decode in the group, when it joined."""
        self.cached_tokens = 0
        """Of these, found in the prefix cache when it was admitted."""
        self.transferred = False
        """Whether the KV of its prompt came from another engine."""
        self.allocation: Allocation | None = None
        self.order = -1
        """Place in the order of admission, by which vLLM's running list is sorted."""
        self.join_step = 0
        """Steps of the engine's decodes when it joined them."""
        self.context_at_join = 0
        """Tokens whose KV it had then."""
        self.late_before_join = 0
        """Late steps of the engine's decodes when it joined them."""
        self.finish_step = -1
        """Step of the engine's decodes that gives its last token."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Request:
        # As the general way, ten times as fast: a copied fleet holds thousands, most of whose fields are numbers.
        twin = Request.__new__(Request)
        memo[id(self)] = twin
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.allocation = deepcopy(self.allocation, memo)
        twin.prefill_engine, twin.decode_engine = deepcopy((self.prefill_engine, self.decode_engine), memo)
        twin.kv_source = deepcopy(self.kv_source, memo)
        return twin

    @property
    def known_tokens(self) -> int:
        """Prompt and sampled tokens: what has to be computed before the next can be sampled."""
        return self.prompt_tokens + self.generated

    @property
    def hold_key(self) -> HoldKey:
        """Names the prefill of this attempt."""
        return self.identifier, self.attempts

    @property
    def gaps(self) -> int:
        """Gaps between its tokens, once it has all of them."""
        return self.output_tokens - 1
