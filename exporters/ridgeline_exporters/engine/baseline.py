"""Step times learned online from the engine's own steps: how long a step takes for what it holds.

Least squares on a few non-negative features, with three precautions that real step times ask for:

* Old samples fade (clocks throttle, drivers change), with a memory of a few thousand steps.
* A sample far from what was expected (a pause of the collector, a CUDA graph captured, a neighbour on the CPU) weighs
  less the farther it is: within 3 deviations 1, beyond it (3 deviations / distance)^2. A lasting change is followed
  all the same, because the deviation itself is an average that grows while samples stay far away.
* Features that move together (sequences and their KV) are held apart by a small ridge on the normalised matrix
  G_ij / sqrt(G_ii G_jj), and a coefficient that comes out negative is left out: no work takes negative time.

Until there are enough samples, and far outside of what was seen, the answer is None: unknown, never invented.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MEMORY_STEPS = 4000
WARM_UP_STEPS = 32
ENOUGH_STEPS = 64
REFIT_STEPS = 32
RIDGE = 1e-6
DEVIATION_MEMORY_STEPS = 50
SMALLEST_RELATIVE_DEVIATION = 0.01
"""Timers and schedulers jitter: a step within a percent of what was expected is never far away."""
TOLERATED_TERM_ERROR = 0.05
"""A term is known when the standard error of what it contributes is below this part of the mean step."""
REACH = 2.0
"""How far beyond the largest feature seen a prediction is still given."""

Matrix = list[list[float]]


def invert(matrix: Matrix) -> Matrix | None:
    """The inverse of a small symmetric matrix by Gauss-Jordan elimination, or None when it is singular."""
    size = len(matrix)
    rows = [[*row, *(1.0 if i == j else 0.0 for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda i: abs(rows[i][column]))
        if abs(rows[pivot][column]) < 1e-12:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        divisor = rows[column][column]
        rows[column] = [value / divisor for value in rows[column]]
        for i in range(size):
            factor = rows[i][column]
            if i != column and factor:
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[column], strict=True)]
    return [row[size:] for row in rows]


class RobustRegression:
    """Online robust least squares of seconds on a fixed number of features."""

    def __init__(self, features: int) -> None:
        self._features = features
        self._gram: Matrix = [[0.0] * features for _ in range(features)]
        self._moment = [0.0] * features
        self._weight = 0.0
        self._mean_seconds = 0.0
        self._largest = [0.0] * features
        self._warm_up: list[tuple[Sequence[float], float]] = []
        self._deviation = 0.0
        self._since_fit = 0
        self._inverse_diagonal: list[float] | None = None
        self.coefficients: list[float] | None = None
        self.samples = 0
        """Steps learned from so far."""

    def add(self, x: Sequence[float], seconds: float) -> None:
        """Learn from one step."""
        self.samples += 1
        self._largest = [max(a, b) for a, b in zip(self._largest, x, strict=True)]
        coefficients = self.coefficients
        if coefficients is None:
            self._warm_up.append((x, seconds))
            if len(self._warm_up) >= WARM_UP_STEPS:
                self._start()
            return
        expected = sum(c * v for c, v in zip(coefficients, x, strict=True))
        distance = abs(seconds - expected)
        far = 3.0 * max(self._deviation, SMALLEST_RELATIVE_DEVIATION * expected)
        weight = 1.0 if distance <= far else (far / distance) ** 2
        # 1.25 times the mean absolute deviation is the standard deviation of a normal distribution.
        self._deviation += (1.25 * min(distance, 2.0 * far) - self._deviation) / DEVIATION_MEMORY_STEPS
        self._accumulate(x, seconds, weight)
        self._since_fit += 1
        if self._since_fit >= REFIT_STEPS:
            self._fit()

    def predict(self, x: Sequence[float]) -> float | None:
        """Seconds of a step with these features, or None while that is unknown."""
        if self.coefficients is None or self.samples < ENOUGH_STEPS:
            return None
        if any(v > REACH * seen for v, seen in zip(x, self._largest, strict=True)):
            return None
        return sum(c * v for c, v in zip(self.coefficients, x, strict=True))

    def known_terms(self) -> list[float | None]:
        """The coefficients, each None while the samples do not tell it apart from the others."""
        if self.coefficients is None or self._inverse_diagonal is None or self.samples < ENOUGH_STEPS:
            return [None] * self._features
        terms: list[float | None] = []
        for i, coefficient in enumerate(self.coefficients):
            if not self._gram[i][i]:
                terms.append(None)
                continue
            # Standard error of the coefficient times the feature's root mean square.
            error = self._deviation * math.sqrt(max(0.0, self._inverse_diagonal[i]) / self._weight)
            terms.append(coefficient if error <= TOLERATED_TERM_ERROR * self._mean_seconds else None)
        return terms

    def _accumulate(self, x: Sequence[float], seconds: float, weight: float) -> None:
        keep = 1.0 - 1.0 / MEMORY_STEPS
        for i, a in enumerate(x):
            row = self._gram[i]
            self._moment[i] = keep * self._moment[i] + weight * a * seconds
            for j, b in enumerate(x):
                row[j] = keep * row[j] + weight * a * b
        self._weight = keep * self._weight + weight
        if self._weight:
            self._mean_seconds += weight / self._weight * (seconds - self._mean_seconds)

    def _start(self) -> None:
        """Fit the warm-up samples, once with all and once without those far from the median deviation."""
        samples, self._warm_up = self._warm_up, []
        kept = samples
        for _ in range(3):
            self._gram = [[0.0] * self._features for _ in range(self._features)]
            self._moment = [0.0] * self._features
            self._weight = self._mean_seconds = 0.0
            for x, seconds in kept:
                self._accumulate(x, seconds, 1.0)
            self._fit()
            assert self.coefficients is not None
            fitted = self.coefficients
            distances = [abs(y - sum(c * v for c, v in zip(fitted, x, strict=True))) for x, y in samples]
            median = sorted(distances)[len(distances) // 2]
            self._deviation = 1.4826 * median
            far = 4.0 * max(median, SMALLEST_RELATIVE_DEVIATION * self._mean_seconds)
            kept = [sample for sample, distance in zip(samples, distances, strict=True) if distance <= far]

    def _fit(self) -> None:
        self._since_fit = 0
        norms = [math.sqrt(self._gram[i][i]) for i in range(self._features)]
        active = [i for i in range(self._features) if norms[i] > 0.0]
        coefficients = [0.0] * self._features
        diagonal = [0.0] * self._features
        first = True
        while active:
            normalised = [
                [self._gram[i][j] / (norms[i] * norms[j]) + (RIDGE if i == j else 0.0) for j in active] for i in active
            ]
            inverse = invert(normalised)
            if inverse is None:
                return  # keep the last fit
            if first:
                for row, i in enumerate(active):
                    diagonal[i] = inverse[row][row]
                first = False
            solution = [
                sum(inverse[row][col] * self._moment[j] / norms[j] for col, j in enumerate(active))
                for row in range(len(active))
            ]
            worst = min(range(len(active)), key=lambda row: solution[row])
            if solution[worst] >= 0.0:
                for row, i in enumerate(active):
                    coefficients[i] = solution[row] / norms[i]
                break
            del active[worst]
        self.coefficients = coefficients
        self._inverse_diagonal = diagonal


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
    """Seconds of any step = fixed + per decode sequence + per KV token of the decodes + per prefill token."""

    TERMS = ("fixed", "decode_sequence", "kv_token", "prefill_token")

    def __init__(self) -> None:
        self._regression = RobustRegression(len(self.TERMS))

    def add(self, sequences: int, kv_tokens: int, prefill_tokens: int, seconds: float) -> None:
        """Learn from a step."""
        self._regression.add((1.0, float(sequences), float(kv_tokens), float(prefill_tokens)), seconds)

    def terms(self) -> dict[str, float]:
        """The terms that are known."""
        values = zip(self.TERMS, self._regression.known_terms(), strict=True)
        return {name: value for name, value in values if value is not None}
