"""A line on features and their squares: the simplest model that learns."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np

from autosched.errors import InvalidInputError
from autosched.models import envelope
from autosched.models.base import Matrix, Vector, check_dataset, check_matrix
from autosched.models.dataset import Dataset
from autosched.models.level import Level, row_weights, schedule_columns
from autosched.models.validity import ValidityModel

#: Penalty of a coefficient of a standardised column, over the number of rows.
PENALTY = 0.01
#: Penalty of the level's line.
LEVEL_PENALTY = 3.0
#: See ``XGBoostSettings.focus``.
FOCUS = 0.3
#: Standardised features are held within these bounds, so that squares do not run away on other workloads.
BOUND = 3.0


class RidgeModel:
    """Serial time and level as of ``XGBoostModel``; the distance by ridge regression on features and their squares.

    The spread is the standard deviation of the error within workloads, in training.

    Args:
        seed: Not used; every model takes one.
    """

    recipe = "ridge"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.digest = ""
        self.spaces: tuple[str, ...] = ()
        self.validity: ValidityModel | None = None
        self._level: Level | None = None
        self._center = self._rate = self._slope = np.zeros(0)
        self._intercept = 0.0
        self._spread = 0.5

    def fit(self, data: Dataset) -> None:
        """See ``CostModel.fit``."""
        check_dataset(data)
        x = check_matrix(data.x)
        self._level, distance = Level.fit(data, LEVEL_PENALTY)
        weight = row_weights(data, FOCUS)
        columns = schedule_columns(x).astype(np.float64)
        deviation = columns.std(axis=0)
        self._center = columns.mean(axis=0)
        self._rate = np.where(deviation < 1e-6, 0.0, 1.0 / np.maximum(deviation, 1e-6))
        z = self._terms(x)
        mean, offset = np.average(z, axis=0, weights=weight), float(np.average(distance, weights=weight))
        gram = np.einsum("ni,n,nj->ij", z - mean, weight, z - mean, optimize=True)
        gram[np.diag_indices_from(gram)] += PENALTY * len(z)
        self._slope = np.linalg.solve(gram, np.einsum("ni,n->i", z - mean, weight * (distance - offset)))
        self._intercept = offset - float(mean @ self._slope)
        error = data.y - self.score(x)
        for rows in data.groups.values():
            error[rows] -= error[rows].mean()
        self._spread = max(float(error.std()), 1e-3)
        self.digest, self.spaces = data.digest(), tuple(sorted(set(data.spaces)))

    def score(self, x: Matrix) -> Vector:
        """See ``CostModel.score``."""
        if self._level is None:
            raise InvalidInputError("the ridge model is not fitted", "call fit() or load() first")
        x = check_matrix(x)
        distance: Vector = np.einsum("ij,j->i", self._terms(x), self._slope)
        return self._level.score(x) + distance + self._intercept

    def predict(self, x: Matrix) -> tuple[Vector, Vector]:
        """See ``CostModel.predict``; the spread is the same for all rows."""
        mean = self.score(x)
        return mean, np.full(len(mean), self._spread)

    def save(self, path: str | Path) -> None:
        """See ``CostModel.save``.

        Raises:
            InvalidInputError: The model is not fitted.
        """
        if self._level is None:
            raise InvalidInputError("the ridge model is not fitted", "call fit() before save()")
        state = {
            "level": self._level.to_json(),
            "center": self._center.tolist(),
            "rate": self._rate.tolist(),
            "slope": self._slope.tolist(),
            "intercept": self._intercept,
            "spread": self._spread,
        }
        envelope.write(path, self, self.seed, state=state)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """See ``CostModel.load``."""
        model, content = envelope.read(path, cls.recipe, cls)
        state = content.state
        model._level = Level.from_json(state["level"])
        model._center, model._rate, model._slope = (
            np.asarray(state[k], np.float64) for k in ("center", "rate", "slope")
        )
        model._intercept, model._spread = float(state["intercept"]), float(state["spread"])
        return model

    def _terms(self, x: Matrix) -> Vector:
        """Standardised columns and their squares, ``[n, 2 * columns]``."""
        z = np.clip((schedule_columns(x) - self._center) * self._rate, -BOUND, BOUND)
        return np.concatenate([z, z * z], axis=1)
