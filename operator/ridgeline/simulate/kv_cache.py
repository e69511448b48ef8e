"""The KV blocks of one engine, counted as vLLM's block pool counts them, with its prefix cache.

Blocks are not listed but counted, in groups: the blocks of a prompt that one hash of the trace names, and the rest of
a request (the end of its prompt and its output), which nobody else can have. A group remembers how many blocks of it,
from its start, hold valid KV. A free block keeps its KV until another request needs it: the least recently used group
loses its last blocks first, since a request frees its blocks from the last to the first.

Two simplifications, both of less than a group: a request that matches only the start of a cached group keeps all of it
from being evicted, and of two requests that compute the same prefix at the same time the copy that is registered
second cannot be found by others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ridgeline.simulate.traces import MOONCAKE_HASH_TOKENS

BLOCK_TOKENS = 16
"""Tokens of a KV block, vLLM's default."""


class Group:
    """Neighbouring blocks of one prefix."""

    __slots__ = ("first", "name", "owner", "resident", "serial", "users")

    def __init__(self, serial: int, name: int | None = None) -> None:
        self.serial = serial
        """Unique in its cache."""
        self.name = name
        """Hash of the trace; None for blocks that only their own request can find."""
        self.owner: int | None = None
        """The preempted request that will look for these blocks, if any."""
        self.first = 0
        """Place of the first of these blocks in that request."""
        self.resident = 0
        """Blocks, from the first, that hold valid KV."""
        self.users = 0
        """Running requests that refer to it."""


class Allocation:
    """The blocks of one request."""

    __slots__ = ("blocks", "groups", "registering", "shared")

    def __init__(self) -> None:
        self.blocks = 0
        """Blocks that the request refers to."""
        self.shared = 0
        """Of these, in `groups`."""
        self.groups: list[Group] = []
        self.registering = True
        """Whether further full blocks are put into the prefix cache under the trace's hashes."""


class Match:
    """What the prefix cache has of a request."""

    __slots__ = ("blocks", "groups", "idle_blocks", "own")

    def __init__(self) -> None:
        self.blocks = 0
        self.groups: list[Group] = []
        self.own: Group | None = None
        """The request's own blocks of before it was preempted."""
        self.idle_blocks = 0
        """Blocks of groups that nobody uses now: they stop being free when the match is taken."""


NO_MATCH = Match()


class KvCache:
    """Counts the blocks of one engine.

    Args:
        blocks: blocks for requests: vLLM's `num_gpu_blocks` less the null block.
        block_tokens: tokens of a block.
        prefix_caching: whether blocks are found again.
        hash_tokens: tokens that one hash of the trace names.

    Raises:
        ValueError: there is no block, or a hash does not name whole blocks.
    """

    def __init__(
        self,
        blocks: int,
        block_tokens: int = BLOCK_TOKENS,
        prefix_caching: bool = True,
        hash_tokens: int = MOONCAKE_HASH_TOKENS,
    ) -> None:
        if blocks < 1 or block_tokens < 1:
            raise ValueError(f"a KV cache needs blocks with tokens, not {blocks} of {block_tokens} tokens")
        if hash_tokens % block_tokens:
            raise ValueError(f"a hash of {hash_tokens} tokens does not name whole blocks of {block_tokens}")
        self.total = blocks
        self.block_tokens = block_tokens
        self.prefix_caching = prefix_caching
        self.free = blocks
        """Blocks that no running request refers to, with valid KV or not."""
        self._group_blocks = hash_tokens // block_tokens
        self._named: dict[int, Group] = {}
        self._own: dict[int, Group] = {}
        """Request → its own blocks of before it was preempted."""
        self._idle: OrderedDict[int, Group] = OrderedDict()
        """Groups without a user, the next to be evicted first."""
        self._idle_blocks = 0
        self._serial = 0

    # ------------------------------------------------------------ finding

    def match(self, request: int, hashes: Sequence[int], known_tokens: int, prompt_tokens: int) -> Match:
        """What is cached of a request's first tokens; at least one token is always left to compute.

        Args:
            request: its identifier.
            hashes: names of its prompt's blocks.
            known_tokens: prompt and sampled tokens.
            prompt_tokens: of these, prompt.
        """
        if not self.prefix_caching or not (hashes or request in self._own):
            return NO_MATCH
        found = Match()
        most = (known_tokens - 1) // self.block_tokens
        named = prompt_tokens // self.block_tokens
        whole = self._group_blocks
        for name in hashes:
            group = self._named.get(name)
            left = min(most, named) - found.blocks
            if group is None or left <= 0:
                break
            blocks = min(group.resident, left)
            found.groups.append(group)
            found.blocks += blocks
            if group.users == 0:
                found.idle_blocks += group.resident
            if blocks < min(whole, named - (found.blocks - blocks)):
                break
        own = self._own.get(request)
        if own is not None and found.blocks == own.first and found.blocks + own.resident <= most:
            found.own = own
            found.blocks += own.resident
            found.idle_blocks += own.resident
        return found

    # ------------------------------------------------------------ taking

    def take(self, blocks: int) -> None:
        """Take free blocks, evicting what was cached in them. The caller knows that there are so many."""
        self.free -= blocks
        assert self.free >= 0, "a block was taken that is not there"
        if self._idle_blocks > self.free:
            self._evict(self._idle_blocks - self.free)

    def adopt(self, allocation: Allocation, match: Match, request: int) -> None:
        """Refer to the blocks of a match, before any block is taken."""
        for group in match.groups:
            self._use(group)
        allocation.groups = list(match.groups)
        allocation.blocks = match.blocks
        allocation.shared = match.blocks
        if match.own is not None:
            # They become the request's private blocks again.
            own = match.own
            del self._own[request], self._idle[own.serial]
            self._idle_blocks -= own.resident
            self.free -= own.resident
            allocation.shared -= own.resident

    def grow(self, allocation: Allocation, blocks: int) -> None:
        """Take blocks for a request."""
        if blocks > 0:
            self.take(blocks)
            allocation.blocks += blocks

    def register(self, allocation: Allocation, hashes: Sequence[int], computed_tokens: int) -> None:
        """Let others find the full blocks of a prompt, from the moment they are scheduled on, as vLLM does.

        Args:
            allocation: of the request.
            hashes: names of its prompt's blocks.
            computed_tokens: prompt tokens that will be computed when the step is over.
        """
        if not self.prefix_caching or not hashes or not allocation.registering:
            return
        full = computed_tokens // self.block_tokens
        whole = self._group_blocks
        while allocation.shared < full:
            place = allocation.shared // whole
            if place >= len(hashes):
                break
            resident = min(full - place * whole, whole)
            if place == len(allocation.groups):
                if hashes[place] in self._named:  # somebody else computes it, too
                    allocation.registering = False
                    return
                group = self._new(hashes[place])
                group.users = 1
                self._named[hashes[place]] = group
                allocation.groups.append(group)
            else:
                group = allocation.groups[place]
                if group.resident != allocation.shared - place * whole:  # another user got ahead
                    allocation.registering = False
                    return
            allocation.shared = place * whole + resident
            group.resident = resident

    # ------------------------------------------------------------ giving back

    def release(self, allocation: Allocation, computed_tokens: int, keep_for: int | None = None) -> None:
        """Give all blocks of a request back.

        Args:
            allocation: of the request.
            computed_tokens: tokens whose KV is valid.
            keep_for: the request, when it was preempted and will look for its own blocks.
        """
        private = allocation.blocks - allocation.shared
        self.free += private
        if self.prefix_caching and (keep_for is not None or allocation.groups or self._idle):
            own = self._new()
            own.resident = max(0, min(private, computed_tokens // self.block_tokens - allocation.shared))
            if own.resident:
                if keep_for is not None:
                    own.owner, own.first = keep_for, allocation.shared
                    self._own[keep_for] = own
                self._let_idle(own)
        for group in reversed(allocation.groups):
            group.users -= 1
            if group.users == 0:
                self.free += group.resident
                self._let_idle(group)
        allocation.groups = []
        allocation.blocks = allocation.shared = 0

    # ------------------------------------------------------------ groups

    def _new(self, name: int | None = None) -> Group:
        self._serial += 1
        return Group(self._serial, name)

    def _use(self, group: Group) -> None:
        if group.users == 0:
            del self._idle[group.serial]
            self._idle_blocks -= group.resident
            self.free -= group.resident
        group.users += 1

    def _let_idle(self, group: Group) -> None:
        self._idle[group.serial] = group
        self._idle_blocks += group.resident

    def _evict(self, blocks: int) -> None:
        while blocks > 0:
            serial = next(iter(self._idle))
            group = self._idle[serial]
            gone = min(blocks, group.resident)
            group.resident -= gone
            self._idle_blocks -= gone
            blocks -= gone
            if group.resident == 0:
                del self._idle[serial]
                if group.name is not None:
                    del self._named[group.name]
                elif group.owner is not None and self._own.get(group.owner) is group:
                    del self._own[group.owner]
