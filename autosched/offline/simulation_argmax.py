"""What the model would find without a search: its highest-scored rows, as trained and refitted in the run's rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosched.features import extract, roofline_us
from autosched.models import CostModel, Guided
from autosched.offline.simulation_tables import Table
from autosched.search import TableSpace
from autosched.sketches.rules import default_schedule


@dataclass(frozen=True)
class Scored:
    """The rows of a table that no constraint rejects, as columns.

    Attributes:
        x: Features, float32 ``[n, F]``.
        latencies: Microseconds ``[n]``, nan for a failure.
        labels: log(roofline time / latency), ``[n]``.
        default: Number of the default schedule's row; ``None`` where the table has it not.
    """

    x: NDArray[np.float32]
    latencies: NDArray[np.float64]
    labels: NDArray[np.float64]
    default: int | None

    @classmethod
    def of(cls, table: Table) -> Scored:
        """The columns of a table."""
        op, target = table.op, table.measurer.target
        batch = TableSpace.allowed(op, target, table.measurer.space(op)).members()
        schedules = batch.schedules()
        found = [m.latency_us for m in table.measurer.measure(op, schedules)]
        latencies = np.array([np.nan if t is None else t for t in found], np.float64)
        default = default_schedule(op, target, batch.sketches)
        return cls(
            x=extract(op, target, batch),
            latencies=latencies,
            labels=np.log(roofline_us(op, target) / latencies),
            default=schedules.index(default) if default in schedules else None,
        )


def first_choices(rows: Scored, model: CostModel, trials: int) -> list[float | None]:
    """Best latency so far after each of the model's highest-scored rows, at most ``trials`` of them."""
    return _running_best(rows.latencies[_by_score(model.score(rows.x))[:trials]])


def refitted_choices(rows: Scored, model: CostModel, rounds: Sequence[int], seed: int) -> list[float | None]:
    """Best latency so far when each round takes the rows that score highest, and the model is refitted after it.

    It begins with the default schedule and refits as a run does. It has nothing else of a run: no strategy, no spread
    over tiles, no trials that explore.

    Args:
        rows: What is chosen from.
        model: The base model.
        rounds: Trials of each round.
        seed: Of the refit.
    """
    left = np.ones(len(rows.x), np.bool_)
    chosen: list[int] = []
    guided = Guided(model, seed)
    for n in rounds:
        order = _by_score(guided.score(rows.x))
        if not chosen and rows.default is not None:
            order = np.concatenate([[rows.default], order[order != rows.default]])
        taken = order[left[order]][:n]
        left[taken] = False
        chosen += taken.tolist()
        ok = [i for i in chosen if not np.isnan(rows.latencies[i])]
        guided.refit(rows.x[ok], rows.labels[ok])
    return _running_best(rows.latencies[chosen])


def _by_score(scores: NDArray[np.float64]) -> NDArray[np.intp]:
    return np.argsort(-scores, kind="stable")


def _running_best(latencies: NDArray[np.float64]) -> list[float | None]:
    best = np.minimum.accumulate(np.where(np.isnan(latencies), np.inf, latencies))
    return [None if np.isinf(t) else float(t) for t in best]
