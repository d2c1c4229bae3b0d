"""The model that knows nothing: what every other one has to beat."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np

from autosched.features import FEATURES
from autosched.models import envelope
from autosched.models.base import Matrix, Vector, check_dataset, check_matrix
from autosched.models.dataset import Dataset
from autosched.models.validity import ValidityModel


class RandomModel:
    """Scores a row by a hash of its features and the seed: random, yet the same in any order and any process.

    Args:
        seed: Another seed makes another order.
    """

    recipe = "random"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.digest = ""
        self.spaces: tuple[str, ...] = ()
        self.validity: ValidityModel | None = None
        rng = np.random.default_rng([seed, 0xA5])
        self._factors = rng.integers(0, 2**63, len(FEATURES), dtype=np.uint64) * np.uint64(2) + np.uint64(1)

    def fit(self, data: Dataset) -> None:
        """Remember what it was shown, and learn nothing."""
        check_dataset(data)
        self.digest, self.spaces = data.digest(), tuple(sorted(set(data.spaces)))

    def score(self, x: Matrix) -> Vector:
        """Uniform in [-1, 0) by row."""
        bits = check_matrix(x).view(np.uint32).astype(np.uint64)
        mixed = (bits * self._factors).sum(axis=1, dtype=np.uint64)
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        score: Vector = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53 - 1.0
        return score

    def predict(self, x: Matrix) -> tuple[Vector, Vector]:
        """The score, and the standard deviation of a uniform distribution."""
        mean = self.score(x)
        return mean, np.full(len(mean), 12.0**-0.5)

    def save(self, path: str | Path) -> None:
        """See ``CostModel.save``."""
        envelope.write(path, self, self.seed)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """See ``CostModel.load``."""
        model, _ = envelope.read(path, cls.recipe, cls)
        return model
