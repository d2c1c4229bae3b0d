"""Guided search against random search on the recorded tables: how near to a table's best, after 16 and after 64 trials.

    python -m benchmarks.guided_vs_random [--guided table|space] [--random space|table] [--only M,N,K]... [--json]

Every recorded workload is tuned once a seed with each strategy. What is reported is the best recorded latency of the
workload over the best latency found so far: 1 is the best of the rows that either may choose. The model that guides a
run has seen every recorded iteration space but that of the workload. Both strategies begin with the default schedule.

What a strategy chooses from is an option for each: ``table`` is all rows, near half of which an earlier guided search
proposed; ``space`` is the valid rows of the uniform stratum, an unbiased draw from the generated space. Guided in
``table`` against random in ``space`` compares what each would find on a device, but random search cannot reach the
rows that were proposed; ``table`` for both hands it good rows that it would seldom draw; ``space`` for both gives the
two the same rows, and random search the odds that it has on a device.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from autosched.errors import NotRecordedError
from autosched.log import TuningLog
from autosched.measure.replay import ReplayMeasurer
from autosched.models import create
from autosched.recorded import recorded_measurer
from autosched.sketches.builders import build
from autosched.sketches.constraints import why_invalid
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule
from autosched.tune import tune_op

GUIDED, RANDOM = "annealing", "random"
TRIALS = (16, 64)
RESAMPLES = 10_000


@dataclass(frozen=True)
class Run:
    """One tuning run.

    Attributes:
        key: ``Op.key()`` of the workload.
        strategy: What proposed.
        seed: Of the search.
        fractions: Best latency of the table over the best so far, by number of trials.
    """

    key: str
    strategy: str
    seed: int
    fractions: dict[int, float]


@dataclass(frozen=True)
class Mean:
    """A mean and its 95% interval, bootstrapped over runs."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True)
class Row:
    """Guided and random search after a number of trials.

    Attributes:
        workload: Its key, or ``all``.
        trials: After how many trials.
        runs: Runs of each strategy.
        guided: Mean fraction of the table's best.
        random: The same of random search.
        difference: Guided minus random, paired by workload and seed.
    """

    workload: str
    trials: int
    runs: int
    guided: Mean
    random: Mean
    difference: Mean

    @property
    def apart(self) -> bool:
        """Whether the guided interval lies above the random one."""
        return self.guided.low > self.random.high


def unguided(measurer: ReplayMeasurer) -> ReplayMeasurer:
    """The valid rows of the uniform stratum: an unbiased draw from each workload's generated space."""
    kept = []
    for spec in {r.key: r.op for r in measurer.records}.values():
        op = build(spec)
        space = measurer.space(op)
        valid = why_invalid(op, measurer.target, space).valid
        drawn = {space[int(i)] for i in np.flatnonzero(valid)}
        rows = [r for r in measurer.records if r.key == op.key() and r.stratum == "uniform"]
        kept += [r for r in rows if Schedule.from_json(r.schedule, space.sketches) in drawn]
    return ReplayMeasurer(kept, measurer.target)


def best_of(op: Op, measurers: Iterable[ReplayMeasurer]) -> tuple[Schedule, float] | None:
    """The fastest schedule that any of the measurers holds; ``None`` if all rows are failures."""
    found = [best for measurer in measurers if (best := measurer.best(op)) is not None]
    return min(found, key=lambda best: best[1], default=None)


def run(
    op: Op,
    measurer: ReplayMeasurer,
    strategy: str,
    seed: int,
    trials: Sequence[int] = TRIALS,
    *,
    best: tuple[Schedule, float] | None = None,
) -> Run:
    """One run at the largest of ``trials``; smaller budgets are its prefix. ``best`` is the measurer's if not given.

    Raises:
        NotRecordedError: No schedule of the workload is valid in the table.
    """
    best = best or measurer.best(op)
    if best is None:
        raise NotRecordedError(f"no schedule of {op.key()} is valid in the table", "leave that workload out")
    # Random search asks no model: one that needs no training stands in, so that none is trained for nothing.
    model = create("random", seed) if strategy == RANDOM else None
    result = tune_op(op, budget=max(trials), measurer=measurer, model=model, strategy=strategy, seed=seed, log=False)
    return Run(op.key(), strategy, seed, {n: fraction(best[1], result.curve, n) for n in trials})


def fraction(best_us: float, curve: Sequence[float | None], trials: int) -> float:
    """Best latency of the table over the best of the first ``trials`` trials; 0 if none of them was valid.

    Args:
        best_us: Best latency of the table in microseconds.
        curve: Best latency so far after each trial; shorter than ``trials`` where the table had no more.
        trials: At least 1.
    """
    found = curve[min(trials, len(curve)) - 1] if curve else None
    return 0.0 if found is None else best_us / found


def bootstrap(values: Sequence[float], resamples: int = RESAMPLES) -> Mean:
    """The mean, and the 2.5% and 97.5% quantiles of the means of resampled values (always the same resamples)."""
    x = np.asarray(values, np.float64)
    chosen = np.random.default_rng(0).integers(len(x), size=(resamples, len(x)))
    low, high = np.quantile(x[chosen].mean(axis=1), (0.025, 0.975))
    return Mean(math.fsum(values) / len(values), float(low), float(high))


def summarize(runs: Iterable[Run], trials: Sequence[int] = TRIALS) -> list[Row]:
    """A row for each workload and number of trials, and those over all workloads at the end.

    Args:
        runs: Both strategies of every workload and seed.
        trials: Numbers of trials that every run has.
    """
    by_cell = {(r.key, r.seed, r.strategy): r.fractions for r in runs}
    cells = list(dict.fromkeys((key, seed) for key, seed, _ in by_cell))
    keys = list(dict.fromkeys(key for key, _ in cells))
    rows = []
    for workload in (*keys, "all"):
        own = [cell for cell in cells if workload in (cell[0], "all")]
        for n in trials:
            guided = [by_cell[key, seed, GUIDED][n] for key, seed in own]
            random = [by_cell[key, seed, RANDOM][n] for key, seed in own]
            difference = [g - r for g, r in zip(guided, random, strict=True)]
            rows.append(Row(workload, n, len(own), bootstrap(guided), bootstrap(random), bootstrap(difference)))
    return rows


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table; workloads are named by their extents where that tells them apart."""
    rows = list(rows)
    short = {key: key.partition("/")[0] for key in dict.fromkeys(row.workload for row in rows)}
    names = short if len(set(short.values())) == len(short) else {key: key for key in short}
    head = ("workload", "trials", "runs", "guided", "random", "guided - random", "apart")
    lines = [
        head,
        *((names[r.workload], r.trials, r.runs, r.guided, r.random, r.difference, _yes(r.apart)) for r in rows),
    ]
    text = [[str(cell) for cell in line] for line in lines]
    widths = [max(len(line[i]) for line in text) for i in range(len(head))]
    printed = ["| " + " | ".join(f"{cell:{w}}" for cell, w in zip(line, widths, strict=True)) + " |" for line in text]
    return "\n".join([printed[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *printed[1:]])


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--device", help="which of the recorded devices; the first if not given")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to this, less one")
    parser.add_argument("--guided", choices=("table", "space"), default="table", help="what guided search chooses from")
    parser.add_argument("--random", choices=("table", "space"), default="table", help="what random search draws from")
    parser.add_argument("--only", action="append", help="M,N,K of a workload; may be given several times")
    parser.add_argument("--log", type=Path, help="a log or folder of logs instead of the tables that ship")
    arguments = parser.parse_args()
    if arguments.log is None:
        measurer = recorded_measurer(arguments.device)
    else:
        measurer = ReplayMeasurer(TuningLog.read(arguments.log), arguments.device)
    ops = [build(spec) for spec in {record.key: record.op for record in measurer.records}.values()]
    if arguments.only:
        wanted = {tuple(int(x) for x in text.split(",")) for text in arguments.only}
        ops = [op for op in ops if tuple(a.extent for a in op.axes) in wanted]
    pools = {"table": measurer, "space": unguided(measurer)}
    asked = {GUIDED: pools[arguments.guided], RANDOM: pools[arguments.random]}
    runs = [
        run(op, asked[strategy], strategy, seed, best=best_of(op, asked.values()))
        for op in ops
        for seed in range(arguments.seeds)
        for strategy in (GUIDED, RANDOM)
    ]
    rows = summarize(runs)
    if arguments.json:
        data = {
            "format": 1,
            "device": measurer.target.name,
            "seeds": arguments.seeds,
            "rows": [{**asdict(row), "apart": row.apart} for row in rows],
            "runs": [asdict(r) for r in runs],
        }
        print(json.dumps(data))
        return
    print(f"recorded on {measurer.target.name}, seeds 0 to {arguments.seeds - 1}\n")
    print(table(rows))


if __name__ == "__main__":
    main()
