"""The model that needs no data: the largest of the analytic times is the time."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np

from autosched.features import COLUMN
from autosched.models import envelope
from autosched.models.base import Matrix, Vector, check_dataset, check_matrix
from autosched.models.dataset import Dataset
from autosched.models.validity import ValidityModel

_BOUND = COLUMN["log2_bound_time"]
_LN2 = float(np.log(2.0))


class RooflineModel:
    """Predicts log(roofline / bound), where bound is the largest of compute, DRAM, L2 and latency time.

    Fitting changes only the spread.

    Args:
        seed: Not used; every model takes one.
    """

    recipe = "roofline"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.digest = ""
        self.spaces: tuple[str, ...] = ()
        self.validity: ValidityModel | None = None
        self._spread = 0.5

    def fit(self, data: Dataset) -> None:
        """Measure the spread: standard deviation of the error within workloads."""
        check_dataset(data)
        error = data.y - self.score(data.x)
        for rows in data.groups.values():
            error[rows] -= error[rows].mean()
        self._spread = max(float(error.std()), 1e-3)
        self.digest, self.spaces = data.digest(), tuple(sorted(set(data.spaces)))

    def score(self, x: Matrix) -> Vector:
        """Minus the logarithm of the bound over the roofline time."""
        score: Vector = check_matrix(x)[:, _BOUND].astype(np.float64) * -_LN2
        return score

    def predict(self, x: Matrix) -> tuple[Vector, Vector]:
        """See ``CostModel.predict``; the spread is the same for all rows."""
        mean = self.score(x)
        return mean, np.full(len(mean), self._spread)

    def save(self, path: str | Path) -> None:
        """See ``CostModel.save``."""
        envelope.write(path, self, self.seed, state={"spread": self._spread})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """See ``CostModel.load``."""
        model, content = envelope.read(path, cls.recipe, cls)
        model._spread = float(content.state["spread"])
        return model
