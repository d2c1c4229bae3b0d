"""The default model: an analytic time, boosted trees on what it gets wrong, and a line for a workload's level."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from autosched.errors import InvalidInputError
from autosched.models import envelope
from autosched.models.base import Matrix, Vector, check_dataset, check_matrix
from autosched.models.boosting import Trees, TreeSettings, unpack_trees
from autosched.models.dataset import Dataset
from autosched.models.level import Level, held_out_parts, row_weights, schedule_columns
from autosched.models.validity import ValidityModel

_SMALLEST_SPREAD = 1e-3


@dataclass(frozen=True)
class XGBoostSettings:
    """What the model is made of.

    Attributes:
        mean: The trees that predict.
        fold: Smaller trees, trained with spaces held out, whose errors the spread is learnt from.
        spread: The trees that predict the size of the error.
        folds: Number of such parts.
        focus: Distance from the best of a workload, in log time, at which a row weighs 1/e.
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
    focus: float = 0.3
    ridge: float = 3.0
    threads: int = 1


class XGBoostModel:
    """Serial time of the schedule, plus trees on its error, plus the level of the workload (ridge regression).

    The serial time (feature ``log2_serial_time``) carries over to workloads of any size, which trees cannot do. The
    level of a workload is the mean error of that time over its best quarter. Ranking needs only the distance from it,
    and so the trees are trained on the distance, by squared error; each workload weighs the same whatever its number of
    rows, and within it a row weighs the more the nearer it is to the best. The spread is that of the error within a
    workload, learnt from spaces held out.

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
        self.validity: ValidityModel | None = None
        self._mean: Trees | None = None
        self._spread: Trees | None = None
        self._level: Level | None = None

    def fit(self, data: Dataset) -> None:
        """See ``CostModel.fit``."""
        check_dataset(data)
        x = check_matrix(data.x)
        s = self.settings
        self._level, distance = Level.fit(data, s.ridge)
        weight = row_weights(data, s.focus)
        seen = schedule_columns(x)
        self._mean = Trees.fit(seen, distance, weight, s.mean, self.seed, s.threads)
        error = np.abs(self._held_out_error(seen, distance, weight, data))
        # The mean absolute value of a normal error is sqrt(2 / pi) of its standard deviation.
        self._spread = Trees.fit(seen, error * np.sqrt(np.pi / 2), weight, s.spread, self.seed, s.threads)
        self.digest, self.spaces = data.digest(), tuple(sorted(set(data.spaces)))

    def score(self, x: Matrix) -> Vector:
        """See ``CostModel.score``; 128 rows cost well under a millisecond."""
        if self._mean is None or self._level is None:
            raise InvalidInputError(f"the {self.recipe} model is not fitted", "call fit() or load() first")
        x = check_matrix(x)
        return self._level.score(x) + self._mean.predict(schedule_columns(x))

    def predict(self, x: Matrix) -> tuple[Vector, Vector]:
        """See ``CostModel.predict``."""
        mean = self.score(x)
        assert self._spread is not None
        return mean, np.maximum(self._spread.predict(schedule_columns(check_matrix(x))), _SMALLEST_SPREAD)

    def save(self, path: str | Path) -> None:
        """See ``CostModel.save``.

        Raises:
            InvalidInputError: The model is not fitted.
        """
        if self._mean is None or self._spread is None or self._level is None:
            raise InvalidInputError(f"the {self.recipe} model is not fitted", "call fit() before save()")
        envelope.write(
            path,
            self,
            self.seed,
            state={"level": self._level.to_json()},
            mean=self._mean.to_bytes(),
            spread=self._spread.to_bytes(),
        )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """See ``CostModel.load``."""
        model, content = envelope.read(path, cls.recipe, cls)
        model._level = Level.from_json(content.state["level"])
        model._mean = unpack_trees(content.boosters, "mean", model.settings.threads)
        model._spread = unpack_trees(content.boosters, "spread", model.settings.threads)
        return model

    def _held_out_error(self, x: Matrix, distance: Vector, weight: Vector, data: Dataset) -> Vector:
        """Error of each row, less its workload's mean error, by trees that have not seen its space."""
        error = distance.copy()
        for held_out in held_out_parts(data, self.settings.folds):
            seen = np.setdiff1d(np.arange(len(data)), held_out)
            trees = Trees.fit(
                x[seen], distance[seen], weight[seen], self.settings.fold, self.seed, self.settings.threads
            )
            error[held_out] = distance[held_out] - trees.predict(x[held_out])
        for rows in data.groups.values():
            error[rows] -= error[rows].mean()
        return error
