from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.simulate.kv_cache import Allocation, KvCache

BLOCK, HASH = 16, 64
"""Four blocks a hash."""


def compute(cache: KvCache, number: int, hashes: tuple[int, ...], tokens: int) -> tuple[Allocation, int]:
    """Admit a prompt and compute all of it; returns its blocks and the tokens that were found in the cache."""
    match = cache.match(number, hashes, tokens, tokens)
    allocation = Allocation()
    cache.adopt(allocation, match, number)
    cache.grow(allocation, -(-tokens // BLOCK) - allocation.blocks)
    cache.register(allocation, hashes, tokens)
    return allocation, match.blocks * BLOCK


def test_a_prefix_is_found_while_it_is_used_and_after() -> None:
    cache = KvCache(100, BLOCK, hash_tokens=HASH)
    first, found = compute(cache, 1, (1, 2, 3), 180)
    assert found == 0
    assert cache.free == 100 - 12
    second, found = compute(cache, 2, (1, 2, 9), 180)
    assert found == 128, "two hashes of 64 tokens"
    assert cache.free == 100 - 12 - 4, "shared blocks are counted once"
    cache.release(first, 180)
    assert cache.free == 100 - 12
    cache.release(second, 180)
    assert cache.free == 100
    _, found = compute(cache, 3, (1, 2, 3), 180)
    assert found == 176, "eleven full blocks; the last, with four tokens, is never shared"


def test_at_least_one_token_is_computed() -> None:
    cache = KvCache(100, BLOCK, hash_tokens=HASH)
    first, _ = compute(cache, 1, (1, 2), 128)
    cache.release(first, 128)
    _, found = compute(cache, 2, (1, 2), 128)
    assert found == 112


def test_the_least_recently_used_prefix_goes_first_and_loses_its_end_first() -> None:
    cache = KvCache(12, BLOCK, hash_tokens=HASH)
    for number, name in ((1, 1), (2, 2)):
        allocation, _ = compute(cache, number, (name,), 64)
        cache.release(allocation, 64)
    allocation, _ = compute(cache, 3, (), 16 * 6)  # four blocks were never used, two are taken from the first prefix
    cache.release(allocation, 0)
    assert cache.match(4, (1,), 65, 65).blocks == 2
    assert cache.match(5, (2,), 65, 65).blocks == 4


def test_two_that_compute_the_same_prefix_at_once_both_pay_and_one_copy_is_kept() -> None:
    cache = KvCache(100, BLOCK, hash_tokens=HASH)
    one, other = Allocation(), Allocation()
    for allocation in (one, other):
        cache.grow(allocation, 4)
    cache.register(one, (7,), 32)
    cache.register(other, (7,), 64)
    cache.register(one, (7,), 64)
    assert cache.free == 92
    cache.release(one, 64)
    cache.release(other, 64)
    assert cache.free == 100
    assert cache.match(3, (7,), 100, 100).blocks == 4


def test_a_preempted_request_finds_its_own_blocks_again_unless_they_were_taken() -> None:
    cache = KvCache(10, BLOCK, hash_tokens=HASH)
    allocation, _ = compute(cache, 1, (), 100)
    cache.release(allocation, 100, keep_for=1)
    assert cache.match(1, (), 100, 90).blocks == 6
    assert cache.match(2, (), 100, 90).blocks == 0
    taken, _ = compute(cache, 2, (), 16 * 6)
    assert cache.match(1, (), 100, 90).blocks == 4, "four blocks were free, two were its last"
    cache.release(taken, 16 * 6)


def test_nothing_is_found_when_caching_is_off() -> None:
    cache = KvCache(100, BLOCK, prefix_caching=False, hash_tokens=HASH)
    allocation, _ = compute(cache, 1, (1,), 64)
    cache.release(allocation, 64, keep_for=1)
    assert compute(cache, 1, (1,), 64)[1] == 0


def test_sizes_that_make_no_cache_are_refused() -> None:
    with pytest.raises(ValueError, match="needs blocks"):
        KvCache(0)
    with pytest.raises(ValueError, match="does not name whole blocks"):
        KvCache(10, 48, hash_tokens=512)


@settings(max_examples=150)
@given(st.integers(0, 10_000), st.integers(8, 60))
def test_blocks_are_conserved_whatever_happens(seed: int, blocks: int) -> None:
    dice = random.Random(seed)
    cache = KvCache(blocks, BLOCK, hash_tokens=HASH)
    live: dict[int, tuple[Allocation, tuple[int, ...], int]] = {}
    for number in range(120):
        if live and dice.random() < 0.5:
            gone = dice.choice(list(live))
            allocation, _, tokens = live.pop(gone)
            cache.release(allocation, tokens, keep_for=gone if dice.random() < 0.3 else None)
        else:
            prompt = dice.randint(1, 8 * HASH)
            hashes = tuple(100 * dice.randrange(3) + i for i in range(-(-prompt // HASH)))
            match = cache.match(number, hashes, prompt, prompt)
            assert match.blocks * BLOCK < prompt
            if -(-prompt // BLOCK) - match.blocks + match.idle_blocks <= cache.free:
                allocation, _ = compute(cache, number, hashes, prompt)
                assert allocation.blocks == -(-prompt // BLOCK)
                live[number] = (allocation, hashes, prompt)
        groups = {group.serial: group.resident for a, _, _ in live.values() for group in a.groups}
        private = sum(a.blocks - a.shared for a, _, _ in live.values())
        assert cache.free == blocks - private - sum(groups.values())
        assert 0 <= cache._idle_blocks <= cache.free
        assert cache._idle_blocks == sum(group.resident for group in cache._idle.values())
    for number, (allocation, _, tokens) in live.items():
        cache.release(allocation, tokens, keep_for=number)
    assert cache.free == blocks
