"""Strategies in the generated space, judged by an oracle surrogate: how near to its best after 8, 16 and 64 trials.

    python -m benchmarks.search_quality [--shape M,N,K]... [--strategies a,b,...] [--seeds 3] [--json]

The surrogate is a cost model fitted on everything that is recorded; it stands for the device and answers for every
schedule. It has more and deeper trees than the models that guide, so that it follows the recorded rows more closely and
is no landscape of their own kind. Its best is known, since the whole space is scored. The model that guides a run is
fitted on the other recorded iteration spaces, so it has not seen the workload, and learns from the run's trials.

``trials``: one run a workload, strategy and seed; the best of the space over the best found after so many trials.
``rounds``: the strategies that ask a model are asked once for 16 schedules with the surrogate's own score: what their
search alone is worth. Beside the best of these and their mean stand the share of the 16 best of the space that was
found, how many candidates were scored, and random search over as many draws as annealing may score.

Means are geometric (that of the share is not) and over workloads, each the mean of its seeds; 95% intervals are
bootstrapped over workloads. "Annealing over it" is the ratio of the two fractions, paired by workload and seed: an
interval that holds 1 is a tie.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from autosched.features import Extractor, roofline_us
from autosched.measure.surrogate import SurrogateMeasurer
from autosched.models import CostModel, Dataset, XGBoostModel, create
from autosched.models.boosting import TreeSettings
from autosched.models.xgboost_model import XGBoostSettings
from autosched.record import Record
from autosched.recorded import held_out_model, recorded_measurer
from autosched.search import STRATEGIES, GeneratedSpace, Score
from autosched.sketches.builders import build
from autosched.sketches.op import Op
from autosched.sketches.schedule import ScheduleBatch
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import Target
from autosched.tune import tune_op

TRIALS = (8, 16, 64)
#: Schedules that a round is asked for.
ASKED = 16
#: What a round may score: 128 chains of 500 steps.
SCORED = 64_000
DEFAULT_STRATEGIES = ("annealing", "evolutionary", "random", "grid", "tpe")
#: Trees of the surrogate.
SURROGATE = XGBoostSettings(mean=TreeSettings(200, 8, 0.15, subsample=0.9, columns=0.6))


RESAMPLES = 10_000


@dataclass(frozen=True)
class Mean:
    """A mean over workloads and its 95% interval, bootstrapped over them."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True)
class Run:
    """One tuning run against the surrogate.

    Attributes:
        key: ``Op.key()`` of the workload.
        strategy: What proposed.
        seed: Of the search.
        fractions: Best latency of the space over the best so far, by number of trials.
        seconds: Spent on searching, featurising and the model.
    """

    key: str
    strategy: str
    seed: int
    fractions: dict[int, float]
    seconds: float


@dataclass(frozen=True)
class Round:
    """One round under the surrogate's own score.

    Attributes:
        key: ``Op.key()`` of the workload.
        strategy: What proposed.
        seed: Of the search.
        best: Best latency of the space over the best of the ``ASKED`` proposed.
        mean: The same of their geometric mean, over that of the ``ASKED`` best of the space.
        found: Share of the ``ASKED`` best of the space that was proposed.
        scored: Candidates scored.
        seconds: Of the round.
    """

    key: str
    strategy: str
    seed: int
    best: float
    mean: float
    found: float
    scored: int
    seconds: float


class Oracle:
    """The surrogate of one workload, and the best that its space holds.

    Args:
        op: The workload.
        target: The device.
        model: Fitted on everything recorded.
        sketches: Structures to choose from; all if not given.
    """

    def __init__(self, op: Op, target: Target, model: CostModel, sketches: tuple[Sketch, ...] | None = None) -> None:
        self.op, self.target = op, target
        self.space = GeneratedSpace(op, target, sketches)
        self.scored = 0
        self._model, self._extract = model, Extractor(op, target, self.space.sketches)
        best = self.space.sample(np.random.default_rng(0), 0)
        scores = np.zeros(0)
        for chunk in self.space.enumerate(np.random.default_rng(0)):
            found = np.concatenate([scores, self.score(chunk)])
            rows = np.argsort(-found, kind="stable")[:ASKED]
            best, scores = ScheduleBatch.concat([best, chunk]).take(rows), found[rows]
        self.size, self.scored = self.scored, 0
        self.best_keys, self.best_scores = set(best.keys()), scores
        self.best_us = float(roofline_us(op, target) * np.exp(-scores[0]))

    def score(self, batch: ScheduleBatch) -> NDArray[np.float64]:
        """The surrogate's score, counted."""
        self.scored += len(batch)
        return self._model.score(self._extract(batch)) if len(batch) else np.zeros(0)


def surrogate(records: Sequence[Record]) -> CostModel:
    """The model that stands for the device."""
    model = XGBoostModel(1, SURROGATE)
    model.fit(Dataset.from_records(records))
    return model


def recorded_ops(records: Sequence[Record], shapes: Sequence[str] | None) -> list[Op]:
    """The recorded workloads whose extents are among ``shapes`` (``M,N,K``); all without it."""
    ops = [build(spec) for spec in {record.key: record.op for record in records}.values()]
    if shapes is None:
        return ops
    wanted = {tuple(int(x) for x in text.split(",")) for text in shapes}
    return [op for op in ops if tuple(op.loops.values()) in wanted]


def guide_of(op: Op, records: list[Record], strategies: Sequence[str], seed: int) -> CostModel:
    """A model that has not seen the workload; a random one where no strategy asks it."""
    asked = any(STRATEGIES[strategy].asks_model for strategy in strategies)
    return (held_out_model(records, op.iteration_space(), seed) if asked else None) or create("random", seed)


def run(oracle: Oracle, measurer: SurrogateMeasurer, guide: CostModel, strategy: str, seed: int) -> Run:
    """One run at the largest of ``TRIALS``; smaller budgets are its prefix."""
    budget = max(TRIALS)
    result = tune_op(oracle.op, budget=budget, measurer=measurer, model=guide, strategy=strategy, seed=seed, log=False)
    seconds = sum(result.seconds[phase] for phase in ("search", "features", "model"))
    fractions = {n: fraction(oracle.best_us, result.curve, n) for n in TRIALS}
    return Run(oracle.op.key(), strategy, seed, fractions, seconds)


def one_round(oracle: Oracle, strategy: str, seed: int) -> Round:
    """A strategy's first round with the oracle's own score."""
    rng = np.random.default_rng([seed, 1])
    oracle.scored = 0
    start = time.perf_counter()
    if strategy == "random":
        batch = best_of_draws(oracle, oracle.score, rng)
    else:
        batch = STRATEGIES[strategy](oracle.space).propose(ASKED, oracle.score, rng, set())
    seconds, scored = time.perf_counter() - start, oracle.scored
    scores = oracle.score(batch)
    return Round(
        oracle.op.key(),
        strategy,
        seed,
        best=float(np.exp(scores.max() - oracle.best_scores[0])),
        mean=float(np.exp(scores.mean() - oracle.best_scores.mean())),
        found=len(oracle.best_keys & set(batch.keys())) / ASKED,
        scored=scored,
        seconds=seconds,
    )


def best_of_draws(oracle: Oracle, score: Score, rng: np.random.Generator) -> ScheduleBatch:
    """The best-scored of ``SCORED`` members at random."""
    drawn = oracle.space.sample(rng, SCORED)
    _, first = np.unique(drawn.values, axis=0, return_index=True)
    drawn = drawn.take(np.sort(first))
    return drawn.take(np.argsort(-score(drawn), kind="stable")[:ASKED])


def fraction(best_us: float, curve: Sequence[float | None], trials: int) -> float:
    """Best latency of the space over the best of the first ``trials`` trials; nan if none of them was valid."""
    found = curve[min(trials, len(curve)) - 1] if curve else None
    return math.nan if found is None else best_us / found


def over_workloads(keys: Sequence[str], values: Sequence[float], *, geometric: bool = True) -> Mean:
    """Mean over workloads of the mean over seeds, with its interval (always the same resamples)."""
    own: dict[str, list[float]] = {}
    for key, value in zip(keys, values, strict=True):
        own.setdefault(key, []).append(math.log(value) if geometric else value)
    means = np.array([np.mean(v) for v in own.values()])
    chosen = np.random.default_rng(0).integers(len(means), size=(RESAMPLES, len(means)))
    figures = [means.mean(), *np.quantile(means[chosen].mean(axis=1), (0.025, 0.975))]
    return Mean(*(float(np.exp(x) if geometric else x) for x in figures))


def table(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    text = [list(head), *([str(cell) for cell in line] for line in lines)]
    widths = [max(len(line[i]) for line in text) for i in range(len(head))]
    printed = ["| " + " | ".join(f"{cell:{w}}" for cell, w in zip(line, widths, strict=True)) + " |" for line in text]
    return "\n".join([printed[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *printed[1:]])


def trials_table(runs: Sequence[Run]) -> str:
    """A row a strategy: its fractions, annealing's over its own at 16 and 64 trials, and its seconds."""
    by_cell = {(r.key, r.seed, r.strategy): r for r in runs}
    lines = []
    for strategy in dict.fromkeys(r.strategy for r in runs):
        own = [r for r in runs if r.strategy == strategy]
        keys = [r.key for r in own]
        cells: list[object] = [over_workloads(keys, [r.fractions[n] for r in own]) for n in TRIALS]
        for n in TRIALS[1:]:
            against = [by_cell.get((r.key, r.seed, "annealing")) for r in own]
            ratios = [a.fractions[n] / r.fractions[n] for a, r in zip(against, own, strict=True) if a is not None]
            cells.append("" if strategy == "annealing" or not ratios else over_workloads(keys, ratios))
        lines.append([strategy, *cells, f"{np.mean([r.seconds for r in own]):.1f}"])
    head = ["strategy", *(f"{n} trials" for n in TRIALS), *(f"annealing over it, {n}" for n in TRIALS[1:]), "seconds"]
    return table(head, lines)


def rounds_table(rounds: Sequence[Round]) -> str:
    """A row a strategy."""
    lines = []
    for strategy in dict.fromkeys(r.strategy for r in rounds):
        own = [r for r in rounds if r.strategy == strategy]
        keys = [r.key for r in own]
        cells = [over_workloads(keys, [r.best for r in own]), over_workloads(keys, [r.mean for r in own])]
        cells.append(over_workloads(keys, [r.found for r in own], geometric=False))
        counts = [f"{np.mean([r.scored for r in own]):.0f}", f"{np.mean([r.seconds for r in own]):.2f}"]
        lines.append([strategy, *cells, *counts])
    return table(["strategy", "best", f"mean of {ASKED}", f"share of the {ASKED} best", "scored", "seconds"], lines)


def workload_table(runs: Sequence[Run]) -> str:
    """A row a workload: each strategy's fraction after the most trials, mean over seeds."""
    names = list(dict.fromkeys(r.strategy for r in runs))
    lines = []
    for key in dict.fromkeys(r.key for r in runs):
        for n in TRIALS[1:]:
            own = [[r.fractions[n] for r in runs if r.key == key and r.strategy == name] for name in names]
            lines.append([key.partition("/")[0], n, *(f"{np.mean(v):.4f}" for v in own)])
    return table(["workload", "trials", *names], lines)


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--shape", action="append", help="M,N,K of a recorded workload; may be repeated; all if none")
    parser.add_argument("--strategies", default=",".join(DEFAULT_STRATEGIES), help="names, comma-separated")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to this, less one")
    parser.add_argument("--mode", choices=("both", "trials", "rounds"), default="both", help="what is run")
    arguments = parser.parse_args()
    recorded = recorded_measurer()
    target, records = recorded.target, recorded.records
    model = surrogate(records)
    measurer = SurrogateMeasurer(model, target)
    strategies = arguments.strategies.split(",")
    runs: list[Run] = []
    rounds: list[Round] = []
    sizes = {}
    for op in recorded_ops(records, arguments.shape):
        oracle = Oracle(op, target, model)
        sizes[op.key()] = oracle.size
        for seed in range(arguments.seeds):
            if arguments.mode != "trials":
                asking = [s for s in strategies if s == "random" or STRATEGIES[s].asks_model]
                rounds += [one_round(oracle, s, seed) for s in asking]
            if arguments.mode != "rounds":
                guide = guide_of(op, records, strategies, seed)
                runs += [run(oracle, measurer, guide, s, seed) for s in strategies]
    if arguments.json:
        data = {"format": 1, "device": target.name, "seeds": arguments.seeds, "sizes": sizes}
        print(json.dumps({**data, "runs": [asdict(r) for r in runs], "rounds": [asdict(r) for r in rounds]}))
        return
    shortened = ", ".join(f"{key.partition('/')[0]}: {size}" for key, size in sizes.items())
    print(f"surrogate of {target.name}, seeds 0 to {arguments.seeds - 1}; schedules by workload: {shortened}")
    for text in ([trials_table(runs), workload_table(runs)] if runs else []) + (
        [rounds_table(rounds)] if rounds else []
    ):
        print(f"\n{text}")


if __name__ == "__main__":
    main()
