"""What the learned models share: an analytic time, the level of a workload, and what a row weighs.

A model predicts serial time + level of the workload + distance from it. The serial time (feature ``log2_serial_time``)
carries over to workloads of any size. The level is the mean error of that time over the best quarter of a workload, and
is explained by a line. Ranking needs only the distance, which is what each model learns in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from autosched.features import COLUMN, FEATURES
from autosched.models.base import Matrix, Vector
from autosched.models.dataset import Dataset, grouped_folds

#: Features of op and device that the level of a workload is explained by.
LEVEL_FEATURES = (
    "log2_m",
    "log2_n",
    "log2_k",
    "log2_batch",
    "log2_element_bytes",
    "epilogue_traffic",
    "log2_intensity",
    "log2_roofline",
    "log2_operands_over_l2",
    "log2_align_a",
    "log2_align_b",
)
_LEVEL_COLUMNS = np.array([COLUMN[name] for name in LEVEL_FEATURES])
#: Features of the workload's size. What learns from schedules does not see
#: them: among few workloads they would name the workload.
SIZE_FEATURES = (
    "log2_m",
    "log2_n",
    "log2_k",
    "log2_batch",
    "epilogue_steps",
    "epilogue_traffic",
    "log2_intensity",
    "log2_roofline",
    "log2_operands_over_l2",
)
_SCHEDULE_COLUMNS = np.array([i for i, f in enumerate(FEATURES) if f.name not in SIZE_FEATURES])
_SERIAL = COLUMN["log2_serial_time"]
#: Least weight of a row, over that of the best of its workload.
_LEAST_WEIGHT = 0.05
#: Rows from which on a workload counts fully.
_FULL = 250


@dataclass(frozen=True)
class Level:
    """Serial time of the schedule, and a line for the level of its workload.

    Attributes:
        line: Intercept, and one coefficient for each of ``LEVEL_FEATURES``.
    """

    line: Vector

    @classmethod
    def fit(cls, data: Dataset, ridge: float) -> tuple[Self, Vector]:
        """The level, and each row's distance from it.

        Args:
            data: Training rows.
            ridge: Penalty of the line.
        """
        distance: Vector = data.y - analytic(data.x)
        levels = np.empty(len(data.groups))
        for i, rows in enumerate(data.groups.values()):
            y = data.y[rows]
            levels[i] = distance[rows][y >= np.quantile(y, 0.75)].mean()
            distance[rows] -= levels[i]
        return cls(_fit_line(data, levels, ridge)), distance

    def score(self, x: Matrix) -> Vector:
        """What is predicted of each row before its distance."""
        # Not a BLAS product: it takes threads of its own, and rounds a row by its place in the batch.
        level: Vector = np.einsum("ij,j->i", x[:, _LEVEL_COLUMNS], self.line[1:]) + self.line[0]
        return level + analytic(x)

    def to_json(self) -> list[float]:
        """As a model file holds it."""
        return [float(v) for v in self.line]

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The level again."""
        return cls(np.asarray(data, np.float64))


def schedule_columns(x: Matrix) -> Matrix:
    """The columns that distances are learnt from."""
    return np.take(x, _SCHEDULE_COLUMNS, axis=1)


def analytic(x: Matrix) -> Vector:
    """log(roofline time / serial time) of each row."""
    score: Vector = x[:, _SERIAL].astype(np.float64) * -np.log(2.0)
    return score


def row_weights(data: Dataset, focus: float) -> Vector:
    """Mean 1; a row weighs the more the nearer it is to its workload's best.

    Workloads have the same sum, but one of fewer than ``_FULL`` rows has its share of it: the 64 trials of a run, which
    a model chose, say less than a table.

    Args:
        data: Training rows.
        focus: Distance from the best, in log time, at which a row weighs 1/e.
    """
    weight = np.empty(len(data))
    for rows in data.groups.values():
        behind = data.y[rows].max() - data.y[rows]
        weight[rows] = np.exp(-behind / focus) + _LEAST_WEIGHT
        weight[rows] *= min(len(rows), _FULL) / weight[rows].sum()
    weight *= len(data) / weight.sum()
    return weight


def held_out_parts(data: Dataset, folds: int) -> list[NDArray[np.intp]]:
    """Parts by iteration space; by row where there are fewer spaces than parts; none of fewer rows than two a part."""
    if len(set(data.spaces)) >= folds:
        return grouped_folds(data.spaces, folds)
    return [np.arange(i, len(data), folds) for i in range(folds)] if len(data) >= 2 * folds else []


def _fit_line(data: Dataset, levels: Vector, ridge: float) -> Vector:
    """Intercept and one coefficient a level feature: ridge regression of the levels on standardised features."""
    rows = np.array([index[0] for index in data.groups.values()])
    z = data.x[rows][:, _LEVEL_COLUMNS].astype(np.float64)
    center, scale = z.mean(axis=0), z.std(axis=0)
    scale[scale < 1e-6] = np.inf
    z = (z - center) / scale
    slope = np.linalg.solve(z.T @ z + ridge * np.eye(z.shape[1]), z.T @ (levels - levels.mean())) / scale
    return np.concatenate([[levels.mean() - center @ slope], slope])
