"""``simulate``: every strategy against every recorded table, each workload held out of the model that guides it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError
from autosched.models import RECIPES, CostModel, Dataset, create, grouped_folds, load
from autosched.offline.simulation_argmax import Scored, first_choices, refitted_choices
from autosched.offline.simulation_result import ARGMAX, REFITTED, Simulation
from autosched.offline.simulation_tables import Logs, Table, choose, make_tables, stated_records, unguided, unseen
from autosched.progress import Progress
from autosched.record import Record
from autosched.search import STRATEGIES, TableSpace, check_strategy
from autosched.tune import tune_op

#: Rows that a simulation may choose from.
TABLES = ("all", "uniform")


@dataclass(frozen=True)
class SimulationProgress:
    """How far a simulation is.

    Attributes:
        done: Runs that ended.
        runs: Runs in all.
        doing: What is being done, in words.
    """

    done: int
    runs: int
    doing: str


Observer = Callable[[SimulationProgress], None]


def simulate(
    logs: Logs,
    *,
    strategies: Sequence[str] = ("random", "annealing"),
    budgets: Sequence[int] = (8, 16, 64),
    seeds: int = 3,
    folds: int = 5,
    recipe: str = "xgboost",
    model: CostModel | str | os.PathLike[str] | None = None,
    only: Sequence[Sequence[int]] | None = None,
    table: str = "all",
    progress: Observer | None = None,
) -> Simulation:
    """Runs strategies on recorded tables: what each finds, with how many measurements, without a device.

    Every recorded workload is tuned by ``tune_op`` once for each strategy and seed, at the largest budget; what a
    smaller budget finds is the first part of that run. Only rows that state their stratum count. The model that guides
    a run has not seen the workload's iteration space: a base model is trained for each fold of spaces, on the others.

    Args:
        logs: Files, folders, or records.
        strategies: Names of ``STRATEGIES``.
        budgets: Numbers of trials.
        seeds: Runs of each strategy on each workload, with seeds from 0.
        folds: Base models; fewer where there are fewer iteration spaces.
        recipe: What the base models are made by.
        model: A fitted model, or its file, instead of base models; workloads that it has seen are left out.
        only: Extents of the workloads to simulate; the others still train the base models.
        table: ``all`` rows, or the ``uniform`` ones: those schedules of the uniform stratum that no constraint speaks
            against, an unbiased draw from the generated space.
        progress: Called when something begins or ends.

    Raises:
        InvalidInputError: A strategy, recipe, budget or number that there is not, or too few workloads for base models.
        NotRecordedError: No row states its stratum, ``only`` names a workload that is not recorded, or nothing is left.
        LogNotFoundError: No log is there.
        LogError: A file that is no log.
        ModelMismatchError: A model file that this version cannot use.
    """
    started = time.perf_counter()
    strategies, budgets = tuple(dict.fromkeys(strategies)), tuple(sorted(set(budgets)))
    _check(strategies, budgets, seeds, folds, recipe, table)
    given = load(Path(model)) if isinstance(model, str | os.PathLike) else model
    records = stated_records(logs)
    if table == "uniform":
        records = unguided(records)
    tables, left_out = make_tables(records)
    tables = choose(tables, only)
    if given is not None:
        tables, seen = unseen(tables, given)
        left_out += seen
    for name in strategies:
        STRATEGIES[name](TableSpace(tables[0].measurer.space(tables[0].op)))  # one that cannot be made says so here
    job = _Job(tables, strategies, seeds, budgets[-1], progress)
    job.seconds["read"] = time.perf_counter() - started
    job.run(_guides(records, job, given, folds, recipe) if job.guided else iter([(None, range(len(tables)))]))
    job.seconds["total"] = time.perf_counter() - started
    return Simulation(
        strategies=strategies,
        budgets=budgets,
        seeds=seeds,
        workloads=tuple(at.workload for at in tables),
        curves=job.curves,
        guided=job.guided,
        guide="model" if given is not None else recipe if job.guided else "",
        folds=job.trained,
        table=table,
        left_out=tuple(left_out),
        seconds=job.seconds,
    )


def fractions(curve: Sequence[float | None], best_us: float, trials: int) -> NDArray[np.float64]:
    """Fraction of the best after each trial; float64 ``[trials]``.

    Args:
        curve: Best latency so far after each trial, ``None`` before a valid one; where it ends early (the table had no
            more) its last value goes on.
        best_us: Best latency of the table, in microseconds.
        trials: How many.
    """
    found = [0.0 if latency is None else best_us / latency for latency in curve[:trials]]
    return np.array(found + [found[-1] if found else 0.0] * (trials - len(found)))


@dataclass
class _Job:
    """What is to be run, and what it has found so far.

    Attributes:
        curves: Fraction after each trial by strategy, ``[workloads, seeds, trials]``.
        seconds: Wall seconds by phase.
        trained: Base models so far.
        done: Runs that ended.
    """

    tables: list[Table]
    strategies: tuple[str, ...]
    seeds: int
    trials: int
    progress: Observer | None
    curves: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    trained: int = 0
    done: int = 0

    def __post_init__(self) -> None:
        self.guided = tuple(name for name in self.strategies if STRATEGIES[name].asks_model)
        names = (*self.strategies, *((ARGMAX, REFITTED) if self.guided else ()))
        self.curves = {name: np.zeros((len(self.tables), self.seeds, self.trials)) for name in names}

    def run(self, guides: Iterator[tuple[CostModel | None, Sequence[int]]]) -> None:
        """Every strategy and seed on every table, each guided by the model that comes with the table's number."""
        for model, rows in guides:
            for w in rows:
                ran = [[self._run(name, w, seed, model) for name in self.strategies] for seed in range(self.seeds)]
                if model is not None:
                    first = self.strategies.index(self.guided[0])
                    self._argmax(w, model, [rounds[first] for rounds in ran])

    def _argmax(self, w: int, model: CostModel, rounds: list[list[int]]) -> None:
        """What the model would choose by itself, in the rounds of each seed's run."""
        table = self.tables[w]
        best_us = table.workload.best_us
        with self.phase("argmax", f"argmax on {table.workload.key}"):
            rows = Scored.of(table)
            self.curves[ARGMAX][w] = fractions(first_choices(rows, model, self.trials), best_us, self.trials)
            for seed, sizes in enumerate(rounds):
                found = refitted_choices(rows, model, sizes, seed)
                self.curves[REFITTED][w, seed] = fractions(found, best_us, self.trials)

    def _run(self, name: str, w: int, seed: int, model: CostModel | None) -> list[int]:
        """One run; the trials of each of its rounds."""
        table = self.tables[w]
        # A model that needs no training stands in where none is asked, so that none is trained for nothing.
        base = model if name in self.guided else create("random", seed)
        rounds: Counter[int] = Counter()

        def note(progress: Progress) -> None:
            if progress.last is not None:
                rounds[progress.last.round] += 1

        with self.phase(name, f"{name} on {table.workload.key}"):
            result = tune_op(
                table.op,
                budget=self.trials,
                measurer=table.measurer,
                model=base,
                strategy=name,
                seed=seed,
                log=False,
                callbacks=(note,),
            )
        self.curves[name][w, seed] = fractions(result.curve, table.workload.best_us, self.trials)
        self.done += 1
        self.tell(f"{name} on {table.workload.key}")
        return [rounds[r] for r in sorted(rounds)]

    @contextmanager
    def phase(self, name: str, doing: str) -> Iterator[None]:
        """Adds the wall seconds of the block to a phase."""
        self.tell(doing)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def tell(self, doing: str) -> None:
        """Tells the observer what is being done."""
        if self.progress is not None:
            self.progress(SimulationProgress(self.done, len(self.strategies) * len(self.tables) * self.seeds, doing))


def _guides(
    records: Sequence[Record], job: _Job, given: CostModel | None, folds: int, recipe: str
) -> Iterator[tuple[CostModel, Sequence[int]]]:
    """Models, each with the numbers of the tables that it may guide: it has not seen their iteration spaces.

    Raises:
        InvalidInputError: Only one iteration space is recorded, so that nothing is left to train on.
    """
    if given is not None:
        yield given, range(len(job.tables))
        return
    with job.phase("model", "reading features"):
        data = Dataset.from_records(records)
        if len(set(data.spaces)) < 2:
            raise InvalidInputError(
                f"only one iteration space is recorded, {data.spaces[0]}: no other is left to train a base model on",
                "give logs of more workloads, a model, or strategies that ask none",
            )
        parts = grouped_folds(data.spaces, folds)
    for part in parts:
        held_out = {data.spaces[i] for i in part}
        rows = [w for w, at in enumerate(job.tables) if at.workload.space in held_out]
        if not rows:
            continue
        with job.phase("model", "training a base model"):
            model = create(recipe)
            model.fit(data.take(np.setdiff1d(np.arange(len(data)), part)))
        job.trained += 1
        yield model, rows


def _check(strategies: Sequence[str], budgets: Sequence[int], seeds: int, folds: int, recipe: str, table: str) -> None:
    if not strategies:
        raise InvalidInputError("no strategy was named", f"one or more of {', '.join(STRATEGIES)}")
    for name in strategies:
        check_strategy(name)
    if not budgets or budgets[0] < 1:
        raise InvalidInputError(f"budgets of {', '.join(map(str, budgets)) or 'no'} trials", "give 1 or more trials")
    for name, count, least in (("seeds", seeds, 1), ("folds", folds, 2)):
        if count < least:
            raise InvalidInputError(f"{count} {name}", f"give {least} or more")
    if recipe not in RECIPES:
        raise InvalidInputError(f"unknown recipe {recipe!r}", f"one of {', '.join(RECIPES)}")
    if table not in TABLES:
        raise InvalidInputError(f"unknown table {table!r}", f"one of {', '.join(TABLES)}")
