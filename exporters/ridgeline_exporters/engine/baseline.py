"""Step times learned online from the engine's own steps: how long a step takes for what it holds.

Least squares on a few non-negative features, with three precautions that real step times ask for:

* Old samples fade (clocks throttle, drivers change), with a memory of a few thousand steps.
* A sample far from what was expected (a pause of the collector, a CUDA graph captured, a neighbour on the CPU) weighs
  less the farther it is: within 3 deviations 1, beyond it (3 deviations / distance)^2. The deviation follows the
  median distance, 3 % a step, so rare spikes do not widen it; a lasting change does, and is followed after all.
* Features that move together (sequences and their KV) are held apart by a small ridge on the normalised matrix
  G_ij / sqrt(G_ii G_jj), and a coefficient that comes out negative is left out: no work takes negative time.

Until there are enough samples, and far outside of what was seen, the answer is None: unknown, never invented.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import gt, mul

MEMORY_STEPS = 4000
"""A young regression remembers half of what it saw instead, so that what misled it at first is soon forgotten."""
SHORTEST_MEMORY_STEPS = 150
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


class RobustRegression:
    """Online robust least squares of seconds on a fixed number of features.

    A step costs an append; weights, sums and solution are renewed every `REFIT_STEPS` steps, column by column.

    Args:
        features: how many.
        spare: whether the last of them may be left out of `known_terms`: where the samples do not tell it apart, the
            others are known as if it were none, so that they stand for it.
    """

    def __init__(self, features: int, spare: bool = False) -> None:
        self._features = features
        self._spare = spare
        self._gram: Matrix = [[0.0] * features for _ in range(features)]
        self._moment = [0.0] * features
        self._weight = 0.0
        self._mean_seconds = 0.0
        self._largest = (0.0,) * features
        self._reach = self._largest
        """Features up to which a prediction is given."""
        self._pending: list[tuple[Sequence[float], float]] = []
        """Steps that are not in the sums yet: features and seconds."""
        self._deviation = 0.0
        self._inverse_diagonal = [0.0] * features
        self._coefficients: list[float] | None = None
        self._known: list[float | None] = [None] * features
        self.samples = 0
        """Steps learned from so far."""

    def add(self, x: Sequence[float], seconds: float) -> None:
        """Learn from one step."""
        self.samples += 1
        pending = self._pending
        pending.append((x, seconds))
        if len(pending) >= REFIT_STEPS:
            if self._coefficients is not None:
                self._take_in(pending, self._weights(self._coefficients))
                self._fit()
            elif len(pending) == WARM_UP_STEPS:
                self._start(pending)
            else:
                return
            pending.clear()
            self._tell_apart()

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
        """Renew the terms that are known."""
        every = range(self._features)
        self._known = self._with_small_errors(self._coefficients or (), self._inverse_diagonal)
        last = every[-1]
        if self._spare and self._known[last] is None and self._gram[last][last] > 0.0:
            self._known = [*self._with_small_errors(*self._solve(every[:-1]))[:-1], None]

    def _with_small_errors(self, coefficients: Sequence[float], diagonal: Sequence[float]) -> list[float | None]:
        terms: list[float | None] = []
        for i, coefficient in enumerate(coefficients):
            # Standard error of the coefficient times the feature's root mean square.
            error = self._deviation * math.sqrt(max(0.0, diagonal[i]) / self._weight)
            known = self._gram[i][i] > 0.0 and error <= TOLERATED_TERM_ERROR * self._mean_seconds
            terms.append(coefficient if known else None)
        return terms

    def _weights(self, coefficients: Sequence[float]) -> list[float]:
        """Weights of the pending steps, each by its distance from what was expected; follows the deviation."""
        weights = []
        for x, seconds in self._pending:
            expected = math.fsum(map(mul, coefficients, x))
            distance = abs(seconds - expected)
            deviation = max(self._deviation, SMALLEST_RELATIVE_DEVIATION * expected, SMALLEST_DEVIATION_SECONDS)
            far = 3.0 * deviation
            weights.append(1.0 if distance <= far else (far / distance) ** 2)
            self._deviation = (
                deviation * MEDIAN_STEP if distance * NORMAL_DEVIATION > deviation else deviation / MEDIAN_STEP
            )
        return weights

    def _take_in(self, steps: Sequence[tuple[Sequence[float], float]], weights: Sequence[float]) -> None:
        """Add steps to the sums, after fading these."""
        rows, seconds = zip(*steps, strict=True)
        columns = list(zip(*rows, strict=True))
        memory = min(MEMORY_STEPS, max(SHORTEST_MEMORY_STEPS, self.samples // 2))
        keep = (1.0 - 1.0 / memory) ** len(rows)
        for i, column in enumerate(columns):
            weighted = list(map(mul, column, weights))
            self._moment[i] = keep * self._moment[i] + math.fsum(map(mul, weighted, seconds))
            for j in range(i, self._features):
                value = keep * self._gram[i][j] + math.fsum(map(mul, weighted, columns[j]))
                self._gram[i][j] = self._gram[j][i] = value
        added = math.fsum(weights)
        before = keep * self._weight
        self._weight = before + added
        self._mean_seconds = (before * self._mean_seconds + math.fsum(map(mul, weights, seconds))) / self._weight
        self._largest = tuple(max(seen, *column) for seen, column in zip(self._largest, columns, strict=True))
        self._reach = tuple(REACH * seen for seen in self._largest)

    def _start(self, steps: Sequence[tuple[Sequence[float], float]]) -> None:
        """Fit the warm-up steps: all, then again and again the nearer half, at last all that are not far from that."""
        distances = [0.0] * len(steps)
        limit = math.inf
        for round_ in range(CONCENTRATION_ROUNDS + 1):
            self._gram = [[0.0] * self._features for _ in range(self._features)]
            self._moment = [0.0] * self._features
            self._weight = 0.0
            near = [step for step, distance in zip(steps, distances, strict=True) if distance <= limit]
            self._take_in(near, [1.0] * len(near))
            fitted = self._fit()
            distances = [abs(seconds - math.fsum(map(mul, fitted, x))) for x, seconds in steps]
            limit = median = sorted(distances)[len(distances) // 2]
            if round_ == CONCENTRATION_ROUNDS - 1:
                limit = 3.0 * max(NORMAL_DEVIATION * median, SMALLEST_RELATIVE_DEVIATION * self._mean_seconds)
        self._deviation = NORMAL_DEVIATION * median

    def _fit(self) -> list[float]:
        """Renew the coefficients."""
        self._coefficients, self._inverse_diagonal = self._solve(range(self._features))
        return self._coefficients

    def _solve(self, features: Sequence[int]) -> tuple[list[float], list[float]]:
        """Coefficients by these features alone, none negative, and the diagonal of the inverse of their matrix.

        Solves, and solves again without the most negative one until none is negative.
        """
        norms = [math.sqrt(self._gram[i][i]) for i in range(self._features)]
        active = [i for i in features if norms[i] > 0.0]
        coefficients = [0.0] * self._features
        diagonal: list[float] | None = None
        while active:
            inverse = invert(
                [
                    [self._gram[i][j] / (norms[i] * norms[j]) + (RIDGE if i == j else 0.0) for j in active]
                    for i in active
                ]
            )
            if diagonal is None:
                diagonal = [0.0] * self._features
                for row, i in enumerate(active):
                    diagonal[i] = inverse[row][row]
            right = [self._moment[j] / norms[j] for j in active]
            solution = [math.fsum(map(mul, row, right)) for row in inverse]
            worst = min(range(len(active)), key=solution.__getitem__)
            if solution[worst] >= 0.0:
                for i, value in zip(active, solution, strict=True):
                    coefficients[i] = value / norms[i]
                break
            del active[worst]
        return coefficients, diagonal or [0.0] * self._features


class DecodeBaseline:
    """dt0(n, KV): seconds of a step that holds n decodes with so many KV tokens, and no prefill."""

    def __init__(self) -> None:
        self._regression = RobustRegression(3)

    @property
    def samples(self) -> int:
        """Decode-only steps learned from."""
        return self._regression.samples

    def add(self, sequences: int, kv_tokens: int, seconds: float) -> None:
        """Learn from a step without prefill."""
        self._regression.add((1.0, float(sequences), float(kv_tokens)), seconds)

    def seconds(self, sequences: int, kv_tokens: int) -> float | None:
        """The expected seconds, or None while unknown."""
        return self._regression.predict((1.0, float(sequences), float(kv_tokens)))


class StepModel:
    """Seconds of any step = fixed + per decode sequence + per KV token of the decodes + per prefill token + per pair.

    A pair is a prefill token and a key that it attends to: deep in a long prompt they outweigh the tokens. Where all
    prompts are alike the two come together; then the term of the pairs is unknown, and that of the tokens stands for both.
    """

    TERMS = ("fixed", "decode_sequence", "kv_token", "prefill_token", "prefill_pair")

    def __init__(self) -> None:
        self._regression = RobustRegression(len(self.TERMS), spare=True)

    def add(self, sequences: int, kv_tokens: int, prefill_tokens: int, prefill_pairs: int, seconds: float) -> None:
        """Learn from a step."""
        row = (1.0, float(sequences), float(kv_tokens), float(prefill_tokens), float(prefill_pairs))
        self._regression.add(row, seconds)

    def terms(self) -> dict[str, float]:
        """The terms that are known."""
        values = zip(self.TERMS, self._regression.known_terms(), strict=True)
        return {name: value for name, value in values if value is not None}
