"""What a simulation found: how near to a table's best each strategy came, with intervals and paired differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Resamples of an interval, always the same ones: that makes differences paired and a report reproducible.
RESAMPLES = 2_000
#: Quantiles of a 95% interval.
INTERVAL = (0.025, 0.975)
#: What is not a strategy: the rows that the base model scores highest, and those of the model refitted in the run.
ARGMAX, REFITTED = "argmax", "argmax_refitted"


@dataclass(frozen=True)
class Workload:
    """A recorded workload that was simulated.

    Attributes:
        key: ``Op.key()``.
        device: Name of the device that it was recorded on.
        space: ``Op.iteration_space()``.
        shape: Extents of its axes.
        schedules: Schedules of its table, failed ones included.
        best_us: Lowest pooled median latency of the table, in microseconds.
    """

    key: str
    device: str
    space: str
    shape: tuple[int, ...]
    schedules: int
    best_us: float


@dataclass(frozen=True)
class LeftOut:
    """A recorded workload that was not simulated, and why."""

    key: str
    device: str
    reason: Literal["seen", "no valid row", "not rebuilt"]


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95% interval.

    Attributes:
        value: The figure.
        low: 2.5% quantile of the figure over resamples.
        high: 97.5% quantile.
    """

    value: float
    low: float
    high: float

    @property
    def apart(self) -> bool:
        """Whether the interval of a difference leaves out 0."""
        return self.low > 0.0 or self.high < 0.0


@dataclass(frozen=True, eq=False)
class Simulation:
    """Runs of several strategies on recorded tables.

    A *fraction* is the best latency of a table over the best latency that a run found so far: 1 is the table's best, 0
    says that no trial was valid yet. The *score* of a strategy is the geometric mean over workloads of the mean over
    seeds. A workload whose runs all found nothing makes it 0; ``empty`` counts such runs.

    Intervals are bootstrapped: iteration spaces are drawn with replacement, each with all its workloads, and the seeds
    of each workload are drawn within it. All figures use the same draws, so that a difference is paired by workload
    and seed.

    Attributes:
        strategies: Names, in the order given.
        budgets: Numbers of trials, ascending.
        seeds: Seeds 0 to this, less one.
        workloads: What was simulated.
        curves: Fraction after each trial, ``[workloads, seeds, trials]``, by strategy; where one asks a model, also of
            ``argmax``, the rows that the base model scores highest, and ``argmax_refitted``, those that score highest
            when the model is refitted after each round, in the rounds of the first strategy that asks it.
        guided: Strategies that ask a model.
        guide: What guided them: a recipe's name, or ``model`` where one was given; empty where none was asked.
        folds: Base models that were trained.
        table: ``all`` rows, or ``uniform``.
        left_out: Recorded workloads that were not simulated.
        seconds: Wall seconds of reading (``read``), training (``model``), each strategy's runs, and in all (``total``).
    """

    strategies: tuple[str, ...]
    budgets: tuple[int, ...]
    seeds: int
    workloads: tuple[Workload, ...]
    curves: Mapping[str, Array]
    guided: tuple[str, ...] = ()
    guide: str = ""
    folds: int = 0
    table: str = "all"
    left_out: tuple[LeftOut, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that the tables were recorded on."""
        return tuple(dict.fromkeys(w.device for w in self.workloads))

    @property
    def spaces(self) -> int:
        """Number of iteration spaces among the workloads."""
        return len({w.space for w in self.workloads})

    @property
    def seen(self) -> int:
        """Workloads left out because the model was trained on their iteration space."""
        return sum(w.reason == "seen" for w in self.left_out)

    @property
    def empty(self) -> int:
        """Runs without a valid trial within the smallest budget."""
        return sum(int((self.fractions(name, self.budgets[0]) == 0.0).sum()) for name in self.strategies)

    def fractions(self, name: str, trials: int) -> Array:
        """Fraction of each run of a strategy, or of an argmax, after so many trials; ``[workloads, seeds]``."""
        return self.curves[name][:, :, trials - 1]

    def score(self, strategy: str, trials: int) -> Estimate:
        """Geometric mean over workloads of the mean over seeds, after so many trials."""
        return self._estimate(self.fractions(strategy, trials), None)

    def difference(self, strategy: str, reference: str, trials: int) -> Estimate:
        """Score of ``strategy`` less that of ``reference`` after so many trials, paired by workload and seed."""
        return self._estimate(self.fractions(strategy, trials), self.fractions(reference, trials))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """What is compared: each strategy with each one before it, and those that ask the model with its argmaxes."""
        pairs = [(later, earlier) for earlier, later in combinations(self.strategies, 2)]
        return pairs + [(name, other) for name in self.guided for other in (ARGMAX, REFITTED)]

    def plot(self, path: str | Path) -> Path:
        """Draw fraction against trials, a line a strategy with its interval as a band.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        from autosched.offline.simulation_plot import save

        return save(self, Path(path))

    def to_dict(self) -> dict[str, Any]:
        """What ``autosched simulate --json`` prints."""
        scores = {name: {n: self.score(name, n) for n in self.budgets} for name in self.curves}
        values = {name: {str(n): found.value for n, found in by.items()} for name, by in scores.items()}
        return {
            "format": 1,
            "device": ", ".join(self.devices),
            "workloads": self.spaces,
            "tables": len(self.workloads),
            "table": self.table,
            "seeds": self.seeds,
            "seen": self.seen,
            "left_out": [{"key": w.key, "device": w.device, "reason": w.reason} for w in self.left_out],
            "guide": self.guide,
            "folds": self.folds,
            "strategies": {name: values[name] for name in self.strategies},
            "argmax": values.get(ARGMAX),
            "argmax_refitted": values.get(REFITTED),
            "intervals": {
                name: {str(n): [found.low, found.high] for n, found in by.items()} for name, by in scores.items()
            },
            "differences": [
                self._difference(strategy, reference, n) for strategy, reference in self.pairs for n in self.budgets
            ],
            "empty": self.empty,
            "rows": self._rows(),
            "by_workload": [self._workload(w) for w in range(len(self.workloads))],
            "seconds": dict(self.seconds),
        }

    def _difference(self, strategy: str, reference: str, trials: int) -> dict[str, Any]:
        found = self.difference(strategy, reference, trials)
        return {
            "strategy": strategy,
            "reference": reference,
            "budget": trials,
            "difference": found.value,
            "interval": [found.low, found.high],
            "apart": found.apart,
        }

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "key": workload.key,
                "device": workload.device,
                "strategy": name,
                "budget": n,
                "seed": seed,
                "fraction": float(self.curves[name][w, seed, n - 1]),
            }
            for w, workload in enumerate(self.workloads)
            for name in self.strategies
            for n in self.budgets
            for seed in range(self.seeds)
        ]

    def _workload(self, w: int) -> dict[str, Any]:
        workload = self.workloads[w]
        means = {name: {str(n): float(self.fractions(name, n)[w].mean()) for n in self.budgets} for name in self.curves}
        return {
            "key": workload.key,
            "device": workload.device,
            "space": workload.space,
            "schedules": workload.schedules,
            "best_us": workload.best_us,
            "strategies": {name: means[name] for name in self.strategies},
            "argmax": means.get(ARGMAX),
            "argmax_refitted": means.get(REFITTED),
        }

    def _estimate(self, fractions: Array, reference: Array | None) -> Estimate:
        weights, draws = self._resamples
        value = geometric_mean(fractions.mean(axis=1))
        resampled = geometric_mean((draws * fractions).mean(axis=2), weights)
        if reference is not None:
            value = value - geometric_mean(reference.mean(axis=1))
            resampled = resampled - geometric_mean((draws * reference).mean(axis=2), weights)
        low, high = np.quantile(resampled, INTERVAL)
        return Estimate(float(value), float(low), float(high))

    @cached_property
    def _resamples(self) -> tuple[Array, Array]:
        """How often each resample drew each workload ``[n, workloads]`` and each seed ``[n, workloads, seeds]``."""
        rng = np.random.default_rng(0)
        names = list(dict.fromkeys(w.space for w in self.workloads))
        of = np.array([names.index(w.space) for w in self.workloads])
        spaces = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=RESAMPLES)
        seeds = rng.multinomial(self.seeds, np.full(self.seeds, 1 / self.seeds), size=(RESAMPLES, len(self.workloads)))
        return spaces[:, of].astype(np.float64), seeds.astype(np.float64)


def geometric_mean(values: Array, weights: Array | None = None) -> Array:
    """The weighted geometric mean over the last axis; 0 where a value that has weight is 0.

    Args:
        values: Not negative.
        weights: Of the same shape, with a positive sum; all alike if not given.
    """
    weights = np.ones_like(values) if weights is None else weights
    logs = np.log(values, out=np.full_like(values, -np.inf), where=values > 0)
    terms = np.multiply(weights, logs, out=np.zeros_like(values), where=weights > 0)
    return np.asarray(np.exp(terms.sum(axis=-1) / weights.sum(axis=-1)), np.float64)
