"""How far a run's own measurements reach: the spread that is left of the base model's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosched.features import COLUMN
from autosched.models.base import Matrix, Vector

#: What makes schedules of one workload alike, and how much a step of each counts.
SCALES = {
    "log2_block_m": 1.0,
    "log2_block_n": 1.0,
    "log2_block_k": 1.0,
    "log2_warps": 1.0,
    "stages": 0.5,
    "log2_group_m": 0.4,
    "log2_split_k": 0.7,
    "log2_subtile": 0.5,
    "log2_box_h": 0.5,
    "log2_box_w": 0.5,
    "flatten": 0.7,
    "persistent": 1.0,
    "tma_a": 0.7,
    "tma_b": 0.7,
    "tma_store": 0.5,
    "subtiled": 0.5,
    "workspace": 0.5,
}
#: Distance, in steps of scale 1, at which two schedules' errors are related by exp(-1/2).
REACH = 1.3
#: Standard error of one measurement with what no feature says, in log time.
NOISE = 0.03
#: Standard deviation of the run's level: wide, so that the measurements alone say it.
LEVEL = 1.0
#: Bounds of the prior standard deviation that the base's spread gives.
PRIOR = (0.1, 0.6)
#: The spread is scaled by the errors of this run; the base's own word counts as so many of them.
BELIEF = 8.0
#: Rows that the process holds.
MOST_ROWS = 256

_COLUMNS = np.array([COLUMN[name] for name in SCALES])
_SCALES = np.array(list(SCALES.values())) / REACH


@dataclass(frozen=True)
class Nearness:
    """A Gaussian process on the base model's errors in a run, of which the spread is used.

    Squared-exponential kernel and a constant (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006,
    chapter 2): schedules that are near each other in knobs and structure err alike, so that a measurement says
    something about its neighbours.

    Attributes:
        points: Coordinates of the measured rows, ``[m, dimensions]``.
        variance: Of the kernel, before any measurement.
        factor: Cholesky factor of the measured rows' covariance.
        scale: The run's errors over those that the prior expects.
    """

    points: NDArray[np.float64]
    variance: float
    factor: Any
    scale: float

    @classmethod
    def fit(cls, x: Matrix, error: Vector, spread: Vector) -> Nearness:
        """Learn from what the base got wrong; of more than ``MOST_ROWS`` rows the last ones count.

        Args:
            x: Features of the measured rows, ``[m, F]``.
            error: Measured less predicted log time, ``[m]``.
            spread: The base's spread of these rows, ``[m]``.
        """
        from scipy.linalg import cho_factor, cho_solve

        x, error, spread = x[-MOST_ROWS:], error[-MOST_ROWS:], spread[-MOST_ROWS:]
        points = _points(x)
        variance = float(np.clip(np.median(spread), *PRIOR)) ** 2
        covariance = variance * _related(points, points) + LEVEL**2
        covariance[np.diag_indices_from(covariance)] += NOISE**2
        factor = cho_factor(covariance)
        surprise = float(error @ cho_solve(factor, error))
        scale = float(np.sqrt((BELIEF + surprise) / (BELIEF + len(error))))
        return cls(points, variance, factor, scale)

    def share(self, x: Matrix) -> Vector:
        """Standard deviation of each row's error over the prior's: small where the run has measured nearby."""
        from scipy.linalg import cho_solve

        kernel = self.variance * _related(_points(x), self.points)
        known = np.einsum("ij,ji->i", kernel, cho_solve(self.factor, kernel.T)) / self.variance
        share: Vector = np.sqrt(np.maximum(1.0 - known, NOISE**2 / self.variance)) * self.scale
        return share


def _points(x: Matrix) -> NDArray[np.float64]:
    """Coordinates of the rows, ``[n, dimensions]``."""
    return np.asarray(x[:, _COLUMNS] * _SCALES, np.float64)


def _related(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(-d^2 / 2) for each pair of rows, ``[n, m]``."""
    squares = (left**2).sum(1)[:, None] + (right**2).sum(1) - 2.0 * left @ right.T
    related: NDArray[np.float64] = np.exp(-0.5 * np.maximum(squares, 0.0))
    return related
