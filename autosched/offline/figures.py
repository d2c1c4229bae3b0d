"""The figures by which an order of schedules is judged: one a workload, their means, and intervals over spaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosched.models import Dataset, score_model
from autosched.models.metrics import TOP, geometric_mean, mean

Vector = NDArray[np.float64]

#: Every figure, in the order of reports.
FIGURES = (
    "pairwise_accuracy",
    "pairwise_top_quarter",
    "pairwise_ceiling",
    "spearman",
    *(f"top{k}" for k in TOP),
)
#: Longest shortlist that curves go to.
LONGEST = max(TOP)
_RESAMPLES = 1000


@dataclass(frozen=True)
class Figures:
    """What one order of schedules is worth.

    Attributes:
        values: By figure and workload; ``nan`` where it is not defined.
        means: By figure: the geometric mean over workloads of ``top1`` and its like, the mean of the others.
        intervals: By figure, 95%, bootstrapped over iteration spaces.
        curve: ``top1`` to ``top64``, each a geometric mean over workloads.
    """

    values: Mapping[str, Mapping[str, float]]
    means: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    curve: Vector

    def to_dict(self) -> dict[str, Any]:
        """The means, and ``intervals``; ``None`` where a figure is not defined."""
        return {
            **{name: known(value) for name, value in self.means.items()},
            "intervals": {name: [known(low), known(high)] for name, (low, high) in self.intervals.items()},
        }


@dataclass(frozen=True)
class Difference:
    """Mean over workloads of one order's figure less another's, with its 95% interval over iteration spaces."""

    mean: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float | None]:
        """JSON-able."""
        return {"mean": known(self.mean), "low": known(self.low), "high": known(self.high)}


class Judge:
    """Judges orders of the same rows.

    Args:
        data: The rows. Pairs and rank correlation use those of stratum ``uniform`` where a workload has any.
        seed: Of the bootstrap.
    """

    def __init__(self, data: Dataset, seed: int = 0) -> None:
        self._data = data
        self._seed = seed
        self._workloads = {name: data.take(rows) for name, rows in data.groups.items()}
        self._space_of = {name: data.spaces[rows[0]] for name, rows in data.groups.items()}

    def judge(self, scores: Vector) -> Figures:
        """The figures of ``scores`` (higher is better, one a row); rows scored ``nan`` have none.

        Rows of equal score are taken in random order: shortlists are the geometric mean over these orders, pairs count
        half, and a rank correlation with equal scores alone is 0.
        """
        values: dict[str, dict[str, float]] = {name: {} for name in FIGURES}
        curves = []
        for workload, rows in self._data.groups.items():
            part, s = self._workloads[workload], scores[rows]
            if np.isnan(s).any():
                found = dict.fromkeys(FIGURES, float("nan"))
            else:
                curve = log_curve(part.y, s)
                curves.append(curve)
                found = score_model(part, s, top=(), resamples=0).to_dict()
                found |= {f"top{k}": float(np.exp(curve[k - 1])) for k in TOP}
                if np.ptp(s) == 0:
                    found["spearman"] = 0.0
            for name in FIGURES:
                values[name][workload] = found[name]
        return self._summary(values, curves)

    def difference(self, figures: Figures, other: Figures, name: str) -> Difference:
        """``figures`` less ``other`` in the figure called ``name``, paired by workload."""
        pairs = {w: value - other.values[name][w] for w, value in figures.values[name].items()}
        low, high = self._interval(pairs)
        return Difference(mean(np.array(list(pairs.values()))), low, high)

    def _summary(self, values: Mapping[str, Mapping[str, float]], curves: list[Vector]) -> Figures:
        means, intervals = {}, {}
        for name, by_workload in values.items():
            shortlist = name.startswith("top")
            all_values = np.array(list(by_workload.values()))
            means[name] = geometric_mean(all_values) if shortlist else mean(all_values)
            intervals[name] = self._interval(by_workload, logs=shortlist)
        curve = np.exp(np.mean(curves, axis=0)) if curves else np.full(LONGEST, np.nan)
        return Figures(values, means, intervals, curve)

    def _interval(self, values: Mapping[str, float], *, logs: bool = False) -> tuple[float, float]:
        return interval(values, self._space_of, np.random.default_rng(self._seed), logs=logs)


def interval(
    values: Mapping[str, float], space_of: Mapping[str, str], rng: np.random.Generator, *, logs: bool = False
) -> tuple[float, float]:
    """What ``metrics.bootstrap`` gives for a mean, in one step for all resamples.

    Args:
        values: One value a workload; ``nan`` where there is none.
        space_of: Iteration space of each workload.
        rng: Source of randomness.
        logs: The geometric mean instead.
    """
    spaces = sorted({space_of[workload] for workload in values})
    place = {space: i for i, space in enumerate(spaces)}
    sums, counts = np.zeros(len(spaces)), np.zeros(len(spaces))
    for workload, value in values.items():
        if not np.isnan(value):
            sums[place[space_of[workload]]] += np.log(value) if logs else value
            counts[place[space_of[workload]]] += 1
    draws = rng.integers(0, len(spaces), (_RESAMPLES, len(spaces)))
    number = counts[draws].sum(axis=1)
    means = sums[draws].sum(axis=1)[number > 0] / number[number > 0]
    if not len(means):
        return float("nan"), float("nan")
    low, high = np.quantile(np.exp(means) if logs else means, [0.025, 0.975])
    return float(low), float(high)


def log_curve(y: Vector, scores: Vector, longest: int = LONGEST) -> Vector:
    """Log of (best latency) / (best latency among the first k by score), for k from 1 to ``longest``.

    It is the expectation over all orders of the rows of equal score. Of n such rows, the best of j drawn without
    replacement lies beyond the i best with probability C(n - i, j) / C(n, j).

    Args:
        y: log(roofline / latency) of a workload's rows.
        scores: Higher is better.
        longest: Largest k.
    """
    curve = np.full(longest, y.max())
    best, taken = -np.inf, 0
    for score in np.unique(scores)[::-1]:
        falling = np.sort(y[scores == score])[::-1]
        n = len(falling)
        reached = np.maximum(falling, best)
        worse = n - np.arange(1.0, n + 1)  # rows beyond the i best
        beyond = np.ones(n)
        for j in range(1, min(n, longest - taken) + 1):
            beyond = beyond * np.maximum(worse - (j - 1), 0.0) / (n - j + 1)
            chance = np.concatenate([[1.0], beyond[:-1]]) - beyond
            curve[taken + j - 1] = chance @ reached
        best, taken = reached[0], taken + n
        if taken >= longest:
            break
    return np.asarray(curve - y.max())


def known(value: float) -> float | None:
    """``None`` instead of ``nan``, which JSON has not."""
    return None if np.isnan(value) else float(value)
