"""Regression of step times, online, robust against what real step times bring.

Least squares on a few non-negative features, with three precautions that real step times ask for:

* Old samples fade (clocks throttle, drivers change), with a memory of a few thousand steps.
* A sample far from what was expected (a pause of the collector, a CUDA graph captured, a neighbour on the CPU) weighs
  less the farther it is: within 3 deviations 1, beyond it (3 deviations / distance)^2. The deviation follows the
  median distance, 3 % a step, so rare spikes do not widen it; a lasting change does, and is followed after all.
* Features that move together (sequences and their KV) are held apart by a small ridge on the normalised matrix
  G_ij / sqrt(G_ii G_jj), and a coefficient that comes out negative is left out, where no work takes negative time.

Until there are enough samples, and far outside of what was seen, the answer is None: unknown, never invented.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, gt, mul

MEMORY_STEPS = 4000
"""A young regression remembers half of what it saw instead, so that what misled it at first is soon forgotten."""
SHORTEST_MEMORY_STEPS = 150
KIND_STEPS = 100_000
"""A kind of steps that does not come is forgotten after so many of the others: half an hour of a busy engine."""
WARM_UP_STEPS = 64
CONCENTRATION_ROUNDS = 6
REFIT_STEPS = 32
RIDGE = 1e-6
MEDIAN_STEP = 1.03
NORMAL_DEVIATION = 1.4826
"""Standard deviation of a normal distribution, in median distances."""
SMALLEST_RELATIVE_DEVIATION = 0.01
"""Timers and schedulers jitter: a step within a percent of what was expected is never far away."""
SMALLEST_DEVIATION_SECONDS = 1e-6
TOLERATED_TERM_ERROR = 0.05
"""A term is known when the standard error of what it contributes is below this part of the mean step."""
REACH = 2.0
"""How far beyond the largest feature seen a prediction is still given."""

Matrix = list[list[float]]


def invert(matrix: Matrix) -> Matrix:
    """The inverse of a small positive definite matrix, by Gauss-Jordan elimination.

    The ridge on the diagonal keeps what is given here away from singular.
    """
    size = len(matrix)
    rows = [[*row, *(1.0 if i == j else 0.0 for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda i: abs(rows[i][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        divisor = rows[column][column]
        rows[column] = [value / divisor for value in rows[column]]
        for i in range(size):
            factor = rows[i][column]
            if i != column and factor:
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[column], strict=True)]
    return [row[size:] for row in rows]


Sample = tuple[Sequence[float], float]
"""Features and seconds of a step."""


@dataclass(slots=True)
class Sums:
    """What least squares need to know of the steps of one kind, the old ones faded."""

    gram: Matrix
    moment: list[float]
    weight: float = 0.0
    seconds: float = 0.0
    samples: int = 0
    last: int = 0
    """Steps of all kinds when the last of this one came."""

    @classmethod
    def none(cls, features: int) -> Sums:
        """Of no step."""
        return cls([[0.0] * features for _ in range(features)], [0.0] * features)

    def take_in(self, steps: Sequence[Sample], weights: Sequence[float]) -> None:
        """Add steps, after fading what there is."""
        self.samples += len(steps)
        memory = min(MEMORY_STEPS, max(SHORTEST_MEMORY_STEPS, self.samples // 2))
        keep = (1.0 - 1.0 / memory) ** len(steps)
        rows, seconds = zip(*steps, strict=True)
        columns = list(zip(*rows, strict=True))
        gram, moment = self.gram, self.moment
        for i, column in enumerate(columns):
            weighted = list(map(mul, column, weights))
            moment[i] = keep * moment[i] + math.fsum(map(mul, weighted, seconds))
            for j in range(i, len(columns)):
                gram[i][j] = gram[j][i] = keep * gram[i][j] + math.fsum(map(mul, weighted, columns[j]))
        self.weight = keep * self.weight + math.fsum(weights)
        self.seconds = keep * self.seconds + math.fsum(map(mul, weights, seconds))


class RobustRegression:
    """Online robust least squares of seconds on a fixed number of features.

    A step costs an append; weights, sums and solution are renewed every `REFIT_STEPS` steps, column by column.

    Args:
        features: how many.
        spare: how many of the last of them may be left out of `known_terms`: where the samples do not tell one apart,
            the others are known as if it were none, so that they stand for it.
        signed: features, by place, whose coefficient may be negative.
    """

    def __init__(self, features: int, spare: int = 0, signed: frozenset[int] = frozenset()) -> None:
        self._features = features
        self._spare = range(features - spare, features)
        self._signed = signed
        self._kinds: dict[int, Sums] = {}
        """By the kind of a step; each fades with steps of its own kind."""
        self._sums = Sums.none(features)
        """Of all kinds."""
        self._largest = (0.0,) * features
        self._reach = self._largest
        """Features up to which a prediction is given."""
        self._pending: list[Sample] = []
        """Steps that are not in the sums yet."""
        self._pending_kinds: list[int] = []
        self._deviation = 0.0
        self._inverse_diagonal = [0.0] * features
        self._coefficients: list[float] | None = None
        self._known: list[float | None] = [None] * features
        self.samples = 0
        """Steps learned from so far."""

    def add(self, x: Sequence[float], seconds: float, kind: int = 0) -> bool:
        """Learn from one step, and say whether the terms that are known were renewed.

        Args:
            x: features.
            seconds: of the step.
            kind: what is known of one kind of steps is not forgotten as soon as another kind comes.
        """
        self.samples += 1
        pending = self._pending
        pending.append((x, seconds))
        self._pending_kinds.append(kind)
        if len(pending) >= REFIT_STEPS:
            if self._coefficients is not None:
                self._take_in(pending, self._weights(self._coefficients), self._pending_kinds)
                self._fit()
            elif len(pending) == WARM_UP_STEPS:
                self._start(pending, self._pending_kinds)
            else:
                return False
            pending.clear()
            self._pending_kinds.clear()
            self._tell_apart()
            return True
        return False

    def predict(self, x: Sequence[float]) -> float | None:
        """Seconds of a step with these features, or None while that is unknown."""
        if self._coefficients is None:
            return None
        if any(map(gt, x, self._reach)):
            return None
        seconds: float = math.fsum(map(mul, self._coefficients, x))
        return seconds

    def known_terms(self) -> list[float | None]:
        """The coefficients, each None while the samples do not tell it apart from the others."""
        return self._known

    def _tell_apart(self) -> None:
        """Renew the terms that are known, with as few of the spare ones left out as may be."""
        every = range(self._features)
        known = self._with_small_errors(self._coefficients or (), self._inverse_diagonal)
        unclear = [i for i in self._spare if known[i] is None and self._sums.gram[i][i] > 0.0]
        choices = [{i} for i in reversed(unclear)] + ([set(unclear)] if len(unclear) > 1 else [])
        for left_out in choices:
            terms = self._with_small_errors(*self._solve([i for i in every if i not in left_out]))
            known = [None if i in left_out else terms[i] for i in every]
            if all(known[i] is not None for i in unclear if i not in left_out):
                break
        self._known = known

    def _with_small_errors(self, coefficients: Sequence[float], diagonal: Sequence[float]) -> list[float | None]:
        terms: list[float | None] = []
        for i, coefficient in enumerate(coefficients):
            # Standard error of the coefficient times the feature's root mean square.
            error = self._deviation * math.sqrt(max(0.0, diagonal[i]) / self._sums.weight)
            mean_seconds = self._sums.seconds / self._sums.weight
            known = self._sums.gram[i][i] > 0.0 and error <= TOLERATED_TERM_ERROR * mean_seconds
            terms.append(coefficient if known else None)
        return terms

    def _weights(self, coefficients: Sequence[float]) -> list[float]:
        """Weights of the pending steps, each by its distance from what was expected; follows the deviation."""
        weights, deviation = [], self._deviation
        for x, seconds in self._pending:
            expected = math.fsum(map(mul, coefficients, x))
            distance = abs(seconds - expected)
            deviation = max(deviation, SMALLEST_RELATIVE_DEVIATION * expected, SMALLEST_DEVIATION_SECONDS)
            far = 3.0 * deviation
            weights.append(1.0 if distance <= far else (far / distance) ** 2)
            if distance * NORMAL_DEVIATION > deviation:
                deviation *= MEDIAN_STEP
            else:
                deviation /= MEDIAN_STEP
        self._deviation = deviation
        return weights

    def _take_in(self, steps: Sequence[Sample], weights: Sequence[float], kinds: Sequence[int]) -> None:
        """Add steps to the sums of their kinds."""
        for kind in sorted(set(kinds)):
            places = [place for place, of in enumerate(kinds) if of == kind]
            if kind not in self._kinds:
                self._kinds[kind] = Sums.none(self._features)
            sums = self._kinds[kind]
            sums.take_in([steps[place] for place in places], [weights[place] for place in places])
            sums.last = self.samples
        self._kinds = {k: sums for k, sums in self._kinds.items() if self.samples - sums.last <= KIND_STEPS}
        total = self._sums = Sums.none(self._features)
        for sums in self._kinds.values():
            total.weight += sums.weight
            total.seconds += sums.seconds
            total.moment = list(map(add, total.moment, sums.moment))
            total.gram = [list(map(add, row, other)) for row, other in zip(total.gram, sums.gram, strict=True)]
        columns = zip(*(x for x, _ in steps), strict=True)
        self._largest = tuple(max(seen, *column) for seen, column in zip(self._largest, columns, strict=True))
        self._reach = tuple(REACH * seen for seen in self._largest)

    def _start(self, steps: Sequence[Sample], kinds: Sequence[int]) -> None:
        """Fit the warm-up steps: all, then again and again the nearer half, at last all that are not far from that."""
        distances = [0.0] * len(steps)
        limit = math.inf
        for round_ in range(CONCENTRATION_ROUNDS + 1):
            self._kinds.clear()
            near = [place for place, distance in enumerate(distances) if distance <= limit]
            self._take_in([steps[i] for i in near], [1.0] * len(near), [kinds[i] for i in near])
            fitted = self._fit()
            distances = [abs(seconds - math.fsum(map(mul, fitted, x))) for x, seconds in steps]
            limit = median = sorted(distances)[len(distances) // 2]
            if round_ == CONCENTRATION_ROUNDS - 1:
                mean_seconds = self._sums.seconds / self._sums.weight
                limit = 3.0 * max(NORMAL_DEVIATION * median, SMALLEST_RELATIVE_DEVIATION * mean_seconds)
        self._deviation = NORMAL_DEVIATION * median

    def _fit(self) -> list[float]:
        """Renew the coefficients."""
        self._coefficients, self._inverse_diagonal = self._solve(range(self._features))
        return self._coefficients

    def _solve(self, features: Sequence[int]) -> tuple[list[float], list[float]]:
        """Coefficients by these features alone, and the diagonal of the inverse of their matrix.

        Solves, and solves again without the most negative one until none is negative that may not be.
        """
        gram, moment = self._sums.gram, self._sums.moment
        norms = [math.sqrt(gram[i][i]) for i in range(self._features)]
        active = [i for i in features if norms[i] > 0.0]
        coefficients = [0.0] * self._features
        diagonal: list[float] | None = None
        while active:
            inverse = invert(
                [[gram[i][j] / (norms[i] * norms[j]) + (RIDGE if i == j else 0.0) for j in active] for i in active]
            )
            if diagonal is None:
                diagonal = [0.0] * self._features
                for row, i in enumerate(active):
                    diagonal[i] = inverse[row][row]
            right = [moment[j] / norms[j] for j in active]
            solution = [math.fsum(map(mul, row, right)) for row in inverse]
            bounded = [place for place, i in enumerate(active) if i not in self._signed]
            worst = min(bounded, key=solution.__getitem__, default=None)
            if worst is None or solution[worst] >= 0.0:
                for i, value in zip(active, solution, strict=True):
                    coefficients[i] = value / norms[i]
                break
            del active[worst]
        return coefficients, diagonal or [0.0] * self._features
