"""A run of steps that hold nothing but decodes, in closed form.

The i-th step of the run (from 0) takes first + i · growth seconds, since every sequence brings one more KV token to
each step. So the first j steps take j · first + growth · j (j - 1) / 2, a moment of time is turned into a step by the
root of that, and the steps longer than a limit are those from a certain one on.
"""

from __future__ import annotations

from math import ceil, sqrt


class DecodeRun:
    """Steps of n decodes that follow one another without a pause."""

    __slots__ = ("first_seconds", "growth_seconds", "started_at", "steps")

    def __init__(self, started_at: float, steps: int, first_seconds: float, growth_seconds: float) -> None:
        self.started_at = started_at
        self.steps = steps
        self.first_seconds = first_seconds
        self.growth_seconds = growth_seconds

    def end_of(self, steps: int) -> float:
        """Time at which so many steps are complete."""
        return self.started_at + self.seconds(steps)

    def seconds(self, steps: int) -> float:
        """What so many steps take."""
        return steps * self.first_seconds + self.growth_seconds * (steps * (steps - 1) / 2)

    def boundary_from(self, time: float) -> int:
        """Steps, at least one and at most all, after which it is `time` or later: the step in flight is included."""
        steps = self._near(time - self.started_at)
        while steps > 1 and self.end_of(steps - 1) >= time:
            steps -= 1
        while steps < self.steps and self.end_of(steps) < time:
            steps += 1
        return steps

    def complete_by(self, time: float) -> int:
        """Steps that are complete at `time`."""
        steps = self._near(time - self.started_at)
        while steps > 0 and self.end_of(steps) > time:
            steps -= 1
        while steps < self.steps and self.end_of(steps + 1) <= time:
            steps += 1
        return steps

    def steps_up_to(self, seconds: float, steps: int) -> int:
        """How many of the first `steps` steps take no longer than `seconds`: they are the first ones."""
        first, growth = self.first_seconds, self.growth_seconds
        if first > seconds:
            return 0
        if first + (steps - 1) * growth <= seconds:
            return steps
        within = min(steps - 1, int((seconds - first) / growth) + 1)
        while within > 1 and first + (within - 1) * growth > seconds:
            within -= 1
        while within < steps and first + within * growth <= seconds:
            within += 1
        return within

    def advance(self, steps: int) -> None:
        """Drop the first steps of the run: what is left begins where they end."""
        self.started_at += self.seconds(steps)
        self.first_seconds += steps * self.growth_seconds
        self.steps -= steps

    def _near(self, seconds: float) -> int:
        """About how many steps fit into so many seconds, between 1 and all of them."""
        if seconds <= 0.0:
            return 1
        half = self.growth_seconds / 2.0
        linear = self.first_seconds - half
        if half * seconds < 1e-12 * linear * linear:
            steps = seconds / self.first_seconds
        else:
            steps = (sqrt(linear * linear + 4.0 * half * seconds) - linear) / (2.0 * half)
        return max(1, min(self.steps, ceil(steps)))
