"""What a cost model has to beat: orders of schedules that need no training of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autosched.features import COLUMN, extract
from autosched.models import Dataset, RooflineModel
from autosched.offline.splits import Part, Workload
from autosched.sketches.rules import default_schedule
from autosched.sketches.schedule import ScheduleBatch

Matrix = NDArray[np.float32]
Vector = NDArray[np.float64]

#: Every baseline, in the order of reports.
BASELINES = ("random", "roofline", "default", "nearest")

#: Features that say what a schedule is: its knobs (sizes as log2, so that neighbours are one apart) and its structure.
CHOICES = (
    "log2_block_m",
    "log2_block_n",
    "log2_block_k",
    "log2_warps",
    "log2_group_m",
    "log2_split_k",
    "log2_subtile",
    "stages",
    "flatten",
    "log2_unroll",
    "specialize",
    "dependent",
    "maxnreg",
    "evict",
    "cache",
    "log2_box_h",
    "log2_box_w",
    "persistent",
    "split",
    "tma_a",
    "tma_b",
    "tma_store",
    "subtiled",
    "workspace",
    "stream_k",
    "atomic",
    "copied_a",
    "copied_b",
    "summed",
    "swapped",
)
_CHOICES = np.array([COLUMN[name] for name in CHOICES])
#: Scores that differ by less are equal.
_EQUAL = 1e-6


def schedule_distance(a: Matrix, b: Matrix) -> Vector:
    """Distance of each schedule of ``a`` to each of ``b``, ``[len(a), len(b)]``.

    It is the sum of the absolute differences of ``CHOICES``: a knob's step and a difference of structure count one.

    Args:
        a: Features, float32 ``[n, F]``.
        b: Features, float32 ``[m, F]``.
    """
    distance = np.zeros((len(a), len(b)))
    for column in _CHOICES:
        distance += np.abs(a[:, None, column].astype(np.float64) - b[None, :, column])
    return distance


def workload_distance(a: Workload, b: Workload) -> float:
    """How unlike two workloads are.

    It is the sum of the absolute differences of log2 of M, N, K and batch, and one for each of element type, layout,
    epilogue and device that differs.
    """
    sizes = sum(abs(np.log2(x) - np.log2(y)) for x, y in zip(a.sizes, b.sizes, strict=True))
    others = ((a.dtype, b.dtype), (a.layout, b.layout), (a.epilogue, b.epilogue), (a.device, b.device))
    return float(sizes) + sum(x != y for x, y in others)


def default_scores(data: Dataset, workloads: Mapping[str, Workload]) -> Vector:
    """Minus each row's distance to the default schedule of its workload: the default first, then its like."""
    scores = np.empty(len(data))
    for name, rows in data.groups.items():
        w = workloads[name]
        default = ScheduleBatch.of(w.sketches, [default_schedule(w.op, w.target, w.sketches)])
        scores[rows] = -schedule_distance(data.x[rows], extract(w.op, w.target, default))[:, 0]
    return _rounded(scores)


def nearest_scores(data: Dataset, workloads: Mapping[str, Workload], parts: Sequence[Part]) -> Vector:
    """What the nearest workload of the training part measured for the same schedule, or for the most similar one.

    Several that are equally similar count with their mean. Of workloads that are equally near the first by name is
    taken. Rows of no part are ``nan``, and so are all rows of a part without training rows.
    """
    scores = np.full(len(data), np.nan)
    for part in parts:
        if not len(part.train):
            continue
        known = data.take(part.train)
        judged = data.take(part.test)
        for name, rows in judged.groups.items():
            near = min(known.groups, key=lambda other: (workload_distance(workloads[name], workloads[other]), other))
            recorded = known.groups[near]
            distance = schedule_distance(judged.x[rows], known.x[recorded])
            alike = distance <= distance.min(axis=1, keepdims=True) + _EQUAL
            scores[part.test[rows]] = (alike @ known.y[recorded]) / alike.sum(axis=1)
    return _rounded(scores)


def _rounded(scores: Vector) -> Vector:
    """Scores of which those that differ by rounding alone are equal."""
    return np.round(scores / _EQUAL) * _EQUAL


def baseline_scores(data: Dataset, workloads: Mapping[str, Workload], parts: Sequence[Part]) -> dict[str, Vector]:
    """Scores by baseline, higher is better, one a row; ``random`` gives all rows the same.

    Args:
        data: All rows.
        workloads: Those of ``data``, by name.
        parts: Which rows ``nearest`` may look up for which.
    """
    return {
        "random": np.zeros(len(data)),
        "roofline": RooflineModel().score(data.x),
        "default": default_scores(data, workloads),
        "nearest": nearest_scores(data, workloads, parts),
    }
