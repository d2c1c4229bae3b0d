"""The default model: boosted trees on what sets schedules of a workload apart, and a line for its level."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError
from autosched.features import COLUMN, SCHEMA
from autosched.models import files
from autosched.models.base import Matrix, Vector, check_dataset, check_matrix
from autosched.models.boosting import Trees, TreeSettings, unpack_trees
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
_SMALLEST_SPREAD = 1e-3


@dataclass(frozen=True)
class XGBoostSettings:
    """What the model is made of.

    Attributes:
        mean: The trees that predict.
        fold: Smaller trees, trained with spaces held out, whose errors the spread is learnt from.
        spread: The trees that predict the size of the error.
        folds: Number of such parts.
        top_weight: Weight of a row in the best quarter of its workload, against 1.
        ridge: Penalty of the level's line.
        threads: Threads for batches of ``SMALL_BATCH`` rows and more; 0 means all. More than one gains a third on an
            idle machine and loses a factor of up to 25 beside processes that keep its cores busy.
    """

    mean: TreeSettings = field(
        default_factory=lambda: TreeSettings(100, 6, 0.14, subsample=0.8, columns=0.6, leaf_weight=3.0)
    )
    fold: TreeSettings = field(
        default_factory=lambda: TreeSettings(60, 6, 0.2, subsample=0.8, columns=0.6, leaf_weight=3.0)
    )
    spread: TreeSettings = field(default_factory=lambda: TreeSettings(30, 3, 0.2, leaf_weight=10.0))
    folds: int = 3
    top_weight: float = 3.0
    ridge: float = 3.0
    threads: int = 1


class XGBoostModel:
    """Level of the workload (ridge regression on op and device) plus the schedule's distance from it (trees).

    The level of a workload is the mean of its best quarter. Ranking needs only the distance, and so the trees are
    trained on it, by squared error; each workload weighs the same whatever its number of rows, and its best quarter
    weighs more. The spread is that of the error within a workload, learnt from spaces held out.

    Args:
        seed: Of the row and column samples.
        settings: Sizes and weights.
    """

    recipe = "xgboost"

    def __init__(self, seed: int = 0, settings: XGBoostSettings | None = None) -> None:
        self.seed = seed
        self.settings = settings or XGBoostSettings()
        self.digest = ""
        self.spaces: tuple[str, ...] = ()
        self._mean: Trees | None = None
        self._spread: Trees | None = None
        self._level: Vector = np.zeros(1 + len(LEVEL_FEATURES))

    def fit(self, data: Dataset) -> None:
        """See ``CostModel.fit``."""
        check_dataset(data)
        x = check_matrix(data.x)
        distance, levels = _split_level(data)
        weight = self._weights(data)
        s = self.settings
        self._level = _fit_line(x, data, levels, s.ridge)
        self._mean = Trees.fit(x, distance, weight, s.mean, self.seed, s.threads)
        error = np.abs(self._held_out_error(x, distance, weight, data))
        # The mean absolute value of a normal error is sqrt(2 / pi) of its standard deviation.
        self._spread = Trees.fit(x, error * np.sqrt(np.pi / 2), weight, s.spread, self.seed, s.threads)
        self.digest, self.spaces = data.digest(), tuple(sorted(set(data.spaces)))

    def score(self, x: Matrix) -> Vector:
        """See ``CostModel.score``; 128 rows cost well under a millisecond."""
        if self._mean is None:
            raise InvalidInputError("the xgboost model is not fitted", "call fit() or load() first")
        x = check_matrix(x)
        return self._line(x) + self._mean.predict(x)

    def predict(self, x: Matrix) -> tuple[Vector, Vector]:
        """See ``CostModel.predict``."""
        mean = self.score(x)
        assert self._spread is not None
        return mean, np.maximum(self._spread.predict(check_matrix(x)), _SMALLEST_SPREAD)

    def continued(self, x: Matrix, y: Vector, weight: Vector, settings: TreeSettings, seed: int) -> Self:
        """A copy with more trees, which predict what this model leaves of ``y``; this one is not changed.

        Raises:
            InvalidInputError: The model is not fitted.
        """
        if self._mean is None:
            raise InvalidInputError("the xgboost model is not fitted", "call fit() or load() first")
        model = copy(self)
        model._mean = self._mean.continued(x, y - self._line(x), weight, settings, seed)
        return model

    def save(self, path: str | Path) -> None:
        """See ``CostModel.save``.

        Raises:
            InvalidInputError: The model is not fitted.
        """
        if self._mean is None or self._spread is None:
            raise InvalidInputError("the xgboost model is not fitted", "call fit() before save()")
        content = files.ModelFile(
            recipe=self.recipe,
            schema=SCHEMA,
            digest=self.digest,
            spaces=self.spaces,
            seed=self.seed,
            state={"level": self._level.tolist()},
            boosters={"mean": self._mean.to_bytes(), "spread": self._spread.to_bytes()},
        )
        files.write(path, content)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """See ``CostModel.load``."""
        content = files.read(path, cls.recipe)
        model = cls(content.seed)
        model.digest, model.spaces = content.digest, content.spaces
        model._level = np.asarray(content.state["level"], np.float64)
        model._mean = unpack_trees(content.boosters, "mean", model.settings.threads)
        model._spread = unpack_trees(content.boosters, "spread", model.settings.threads)
        return model

    def _line(self, x: Matrix) -> Vector:
        """Level of each row's workload."""
        # Not a BLAS product: it takes threads of its own, and rounds a row by its place in the batch.
        level: Vector = np.einsum("ij,j->i", x[:, _LEVEL_COLUMNS], self._level[1:]) + self._level[0]
        return level

    def _weights(self, data: Dataset) -> Vector:
        """Mean 1; every workload has the same sum, and its best quarter weighs ``top_weight`` a row."""
        weight = np.ones(len(data))
        for rows in data.groups.values():
            weight[rows[data.y[rows] >= np.quantile(data.y[rows], 0.75)]] = self.settings.top_weight
            weight[rows] /= weight[rows].sum()
        weight *= len(data) / weight.sum()
        return weight

    def _held_out_error(self, x: Matrix, distance: Vector, weight: Vector, data: Dataset) -> Vector:
        """Error of each row, less its workload's mean error, by trees that have not seen its space."""
        error = np.empty(len(data))
        for held_out in _folds(data, self.settings.folds):
            seen = np.setdiff1d(np.arange(len(data)), held_out)
            trees = Trees.fit(
                x[seen], distance[seen], weight[seen], self.settings.fold, self.seed, self.settings.threads
            )
            error[held_out] = distance[held_out] - trees.predict(x[held_out])
        for rows in data.groups.values():
            error[rows] -= error[rows].mean()
        return error


def _split_level(data: Dataset) -> tuple[Vector, dict[str, float]]:
    """Each row's distance from its workload's level, and the levels: the mean of each best quarter."""
    distance = data.y.astype(np.float64)
    levels = {}
    for workload, rows in data.groups.items():
        y = data.y[rows]
        levels[workload] = float(y[y >= np.quantile(y, 0.75)].mean())
        distance[rows] -= levels[workload]
    return distance, levels


def _fit_line(x: Matrix, data: Dataset, levels: dict[str, float], ridge: float) -> Vector:
    """Intercept and one coefficient a level feature: ridge regression of the levels on standardised features."""
    rows = np.array([index[0] for index in data.groups.values()])
    z = x[rows][:, _LEVEL_COLUMNS].astype(np.float64)
    y = np.array([levels[workload] for workload in data.groups])
    center, scale = z.mean(axis=0), z.std(axis=0)
    scale[scale < 1e-6] = np.inf
    z = (z - center) / scale
    slope = np.linalg.solve(z.T @ z + ridge * np.eye(z.shape[1]), z.T @ (y - y.mean())) / scale
    return np.concatenate([[y.mean() - center @ slope], slope])


def _folds(data: Dataset, folds: int) -> list[NDArray[np.intp]]:
    """Parts by iteration space; by row where there are fewer spaces than parts."""
    if len(set(data.spaces)) >= folds:
        return grouped_folds(data.spaces, folds)
    parts = [np.arange(i, len(data), folds) for i in range(folds)]
    return [p for p in parts if len(p)] if len(data) >= 2 * folds else []
