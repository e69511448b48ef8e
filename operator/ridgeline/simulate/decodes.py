"""The decodes of one engine: sequences that all gain one token a step, so that many steps are one sum.

Nothing here is touched token by token. The group counts its steps; a member remembers at which step it came and with
how many tokens, and everything else follows:

    context of a member       context when it came + steps since
    KV tokens of a step       sum of (context + 1), which grows by the number of members each step
    new blocks of a step      the members whose context is a multiple of the block size: they are counted by
                              (context - step) mod block size, which does not change while they stay
    late gaps of a member     late steps of the group since it came
"""

from __future__ import annotations

from heapq import heappop, heappush

from ridgeline.simulate.request import Request


class Decodes:
    """The sequences of one engine that advance by a token in every step."""

    __slots__ = ("_block_tokens", "_finish", "_residues", "kv_tokens", "late_steps", "members", "newest_order", "step")

    def __init__(self, block_tokens: int) -> None:
        self.members: dict[int, Request] = {}
        """By their order of admission."""
        self.step = 0
        """Steps that the group has made."""
        self.kv_tokens = 0
        """KV tokens that the next step reads: all contexts, each with the token that is computed."""
        self.late_steps = 0
        """Steps that took longer than the objective between two tokens."""
        self.newest_order = -1
        """No member was admitted later than this."""
        self._block_tokens = block_tokens
        self._residues = [0] * block_tokens
        self._finish: list[tuple[int, int]] = []
        """Heap of (step of the last token, order); entries of members that left are skipped when they surface."""

    def __len__(self) -> int:
        return len(self.members)

    def join(self, request: Request) -> None:
        """Take in a sequence that has just got a token, or goes on after it was held up."""
        context, step = request.computed, self.step
        request.context_at_join = context
        request.join_step = step
        request.late_before_join = self.late_steps
        request.finish_step = step + request.output_tokens - request.generated
        self.members[request.order] = request
        self.kv_tokens += context + 1
        self._residues[(context - step) % self._block_tokens] += 1
        heappush(self._finish, (request.finish_step, request.order))
        if request.order > self.newest_order:
            self.newest_order = request.order

    def leave(self, request: Request) -> None:
        """Let a sequence go, and write down what it has got meanwhile."""
        del self.members[request.order]
        steps = self.step - request.join_step
        context = request.context_at_join + steps
        self.kv_tokens -= context + 1
        self._residues[(context - self.step) % self._block_tokens] -= 1
        request.computed = context
        request.generated += steps
        request.late_gaps += self.late_steps - request.late_before_join
        allocation = request.allocation
        assert allocation is not None
        allocation.blocks = -(-context // self._block_tokens)
        if not self.members:
            self.newest_order = -1

    def advance(self, steps: int, late_steps: int) -> None:
        """Give every member so many tokens."""
        self.step += steps
        self.kv_tokens += steps * len(self.members)
        self.late_steps += late_steps

    def steps_to_finish(self) -> int:
        """Steps until the next member has its last token."""
        finish = self._finish
        while True:
            step, order = finish[0]
            member = self.members.get(order)
            if member is not None and member.finish_step == step:
                return step - self.step
            heappop(finish)

    def finished(self) -> list[Request]:
        """Members that have their last token, in the order of admission; they have left the group."""
        done: list[Request] = []
        finish = self._finish
        while finish and finish[0][0] <= self.step:
            step, order = heappop(finish)
            member = self.members.get(order)
            if member is not None and member.finish_step == step:
                self.leave(member)
                done.append(member)
        return done

    # ------------------------------------------------------------ blocks

    def blocks_needed(self, steps: int) -> int:
        """New blocks that so many steps take."""
        size = self._block_tokens
        if steps == 1:
            return self._residues[-self.step % size]
        rounds, rest = divmod(steps, size)
        residues = self._residues
        end = -self.step % size + 1  # residues are met downwards from here, and from the top again
        begin = end - rest
        met = residues[begin:end] if begin >= 0 else residues[:end] + residues[begin:]
        return rounds * len(self.members) + sum(met)

    def steps_that_fit(self, free: int, most: int) -> int:
        """Steps, at most `most`, whose new blocks fit into so many free ones."""
        size, members = self._block_tokens, len(self.members)
        if (most // size + 1) * members <= free:
            return most
        steps = min(most, free // members * size) if members else most
        left = free - self.blocks_needed(steps)
        while steps < most:
            left -= self._residues[-(self.step + steps) % size]
            if left < 0:
                break
            steps += 1
        return steps
