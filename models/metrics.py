"""How a cost model is judged: per workload, then over workloads; nothing is averaged over pooled rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import erf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosched.models.dataset import Dataset

Vector = NDArray[np.float64]

#: Sizes of the shortlist that ``top_k`` is reported for.
TOP = (1, 5, 8, 16, 64)
#: Rows of a workload that pairs are formed of; more are thinned evenly.
MOST_ROWS_FOR_PAIRS = 2000


@dataclass(frozen=True)
class ModelScore:
    """What a model's predictions are worth on a data set.

    Attributes:
        workloads: Iteration spaces in the data.
        pairwise_accuracy: Share of pairs in the right order, of those whose gap exceeds twice the noise.
        pairwise_top_quarter: The same among the best quarter of each workload.
        pairwise_ceiling: What an oracle that knows the true latencies would reach under the same noise.
        spearman: Mean rank correlation.
        top: By shortlist size, geometric mean of (best latency) / (best latency among the model's first k).
        intervals: 95% intervals by name, bootstrapped over iteration spaces.
    """

    workloads: int
    pairwise_accuracy: float
    pairwise_top_quarter: float
    pairwise_ceiling: float
    spearman: float
    top: dict[int, float]
    intervals: dict[str, tuple[float, float]]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with ``top1``, ``top5``, ... as keys of their own."""
        return {
            "workloads": self.workloads,
            "pairwise_accuracy": self.pairwise_accuracy,
            "pairwise_top_quarter": self.pairwise_top_quarter,
            "pairwise_ceiling": self.pairwise_ceiling,
            "spearman": self.spearman,
            **{f"top{k}": value for k, value in self.top.items()},
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
        }


def score_model(data: Dataset, scores: Vector, *, top: Sequence[int] = TOP, resamples: int = 1000) -> ModelScore:
    """Judge ``scores`` (higher is better, one a row of ``data``).

    Pairs and rank correlation use the rows of stratum ``uniform`` where a workload has any, so that what a search
    happened to visit does not count; shortlists are taken from all rows.
    """
    space_of = {workload: data.spaces[rows[0]] for workload, rows in data.groups.items()}
    values: dict[str, dict[str, float]] = {}
    for workload, rows in data.groups.items():
        y, s = data.y[rows], scores[rows]
        for k in top:
            values.setdefault(f"top{k}", {})[workload] = top_k(y, s, k)
        uniform = rows[[data.strata[i] == "uniform" for i in rows]]
        paired = uniform if len(uniform) else rows
        y, s, noise = data.y[paired], scores[paired], data.noise[paired]
        best = y >= np.quantile(y, 0.75)
        for name, value in (
            ("pairwise_accuracy", pairwise_accuracy(y, s, noise)),
            ("pairwise_top_quarter", pairwise_accuracy(y[best], s[best], noise[best])),
            ("pairwise_ceiling", pairwise_ceiling(y, noise)),
            ("spearman", spearman(y, s)),
        ):
            values.setdefault(name, {})[workload] = value
    means: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for name, by_workload in values.items():
        statistic = geometric_mean if name.startswith("top") else mean
        means[name] = statistic(np.array(list(by_workload.values())))
        intervals[name] = bootstrap(by_workload, space_of, statistic, np.random.default_rng(0), resamples)
    return ModelScore(
        workloads=len(set(space_of.values())),
        pairwise_accuracy=means.get("pairwise_accuracy", float("nan")),
        pairwise_top_quarter=means.get("pairwise_top_quarter", float("nan")),
        pairwise_ceiling=means.get("pairwise_ceiling", float("nan")),
        spearman=means.get("spearman", float("nan")),
        top={k: means.get(f"top{k}", float("nan")) for k in top},
        intervals=intervals,
    )


def top_k(y: Vector, scores: Vector, k: int) -> float:
    """(best latency) / (best latency among the first ``k`` by score) of one workload; 1 is perfect.

    Equal scores keep the order of the rows.

    Args:
        y: log(roofline / latency).
        scores: Higher is better.
        k: Size of the shortlist.
    """
    chosen = np.argsort(-scores, kind="stable")[:k]
    return float(np.exp(y[chosen].max() - y.max()))


def pairwise_accuracy(y: Vector, scores: Vector, noise: Vector) -> float:
    """Share of the pairs of one workload that ``scores`` puts in the order of ``y``; an equal score counts half.

    Only pairs whose gap exceeds twice the noise of their difference count; ``nan`` if there are none.
    """
    keep = _thin(len(y))
    y, scores, noise = y[keep], scores[keep], noise[keep]
    gap = y[:, None] - y[None, :]
    counted = gap > 2 * np.hypot(noise[:, None], noise[None, :])
    if not counted.any():
        return float("nan")
    lead = (scores[:, None] - scores[None, :])[counted]
    return float(np.mean((lead > 0) + 0.5 * (lead == 0)))


def pairwise_ceiling(y: Vector, noise: Vector) -> float:
    """Expected ``pairwise_accuracy`` of an oracle: the chance that a counted pair's order is not the noise's doing."""
    keep = _thin(len(y))
    y, noise = y[keep], noise[keep]
    gap = y[:, None] - y[None, :]
    deviation = np.hypot(noise[:, None], noise[None, :])
    counted = gap > 2 * deviation
    if not counted.any():
        return float("nan")
    return float(np.mean(_normal_cdf(gap[counted] / deviation[counted])))


def spearman(a: Vector, b: Vector) -> float:
    """Rank correlation with average ranks for ties; ``nan`` if either is constant."""
    if len(a) < 2:
        return float("nan")
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    norm = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y / norm) if norm else float("nan")


def mean(values: Vector) -> float:
    """Mean of the values that are not ``nan``."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def geometric_mean(values: Vector) -> float:
    """Geometric mean of positive values, those that are ``nan`` left out."""
    return float(np.exp(mean(np.log(values))))


def bootstrap(
    values: Mapping[str, float],
    space_of: Mapping[str, str],
    statistic: Callable[[Vector], float],
    rng: np.random.Generator,
    resamples: int = 1000,
) -> tuple[float, float]:
    """95% interval of ``statistic`` over workloads, drawing whole iteration spaces with replacement.

    Args:
        values: One value a workload.
        space_of: Iteration space of each workload.
        statistic: Of an array of values.
        rng: Source of randomness.
        resamples: Number of draws.
    """
    by_space: dict[str, list[float]] = {}
    for workload, value in values.items():
        by_space.setdefault(space_of[workload], []).append(value)
    parts = [np.array(by_space[space]) for space in sorted(by_space)]
    draws = rng.integers(0, len(parts), (resamples, len(parts)))
    results = np.array([statistic(np.concatenate([parts[i] for i in draw])) for draw in draws])
    results = results[~np.isnan(results)]
    if not len(results):
        return float("nan"), float("nan")
    low, high = np.quantile(results, [0.025, 0.975])
    return float(low), float(high)


def _thin(n: int) -> NDArray[np.intp]:
    if n <= MOST_ROWS_FOR_PAIRS:
        return np.arange(n)
    return np.linspace(0, n - 1, MOST_ROWS_FOR_PAIRS).astype(np.intp)


def _ranks(values: Vector) -> Vector:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Vector = (last - (counts - 1) / 2)[inverse]
    return ranks


def _normal_cdf(z: Vector) -> Vector:
    # The argument is beyond 2; a table of 0.001 steps is exact to 1e-4 and spares a dependency.
    grid = np.arange(0.0, 8.0, 0.001)
    table = np.array([0.5 * (1 + erf(v / sqrt(2))) for v in grid])
    return np.asarray(np.interp(z, grid, table))
