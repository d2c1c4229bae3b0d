"""The model of a running search: a frozen base, and small trees refitted on what this run has measured."""

from __future__ import annotations

import numpy as np

from autosched.errors import InvalidInputError
from autosched.models.base import CostModel, Matrix, Vector, check_matrix
from autosched.models.boosting import Trees, TreeSettings
from autosched.models.nearness import Nearness
from autosched.models.roofline_model import RooflineModel

#: Small (never more than 60 trees of depth 4): a run has few measurements, and the refit must not delay the next round.
TREES = TreeSettings(40, 4, 0.2, columns=0.6)
#: Below this many measurements there are no trees.
FEWEST_ROWS = 8


class Guided:
    """A base model's prediction plus a residual learnt in this run.

    The base gives the margin and is never changed. The residual is the median of what the base got wrong, and trees
    that predict what is left. The spread is the base's, less where the run has measured nearby (``Nearness``).

    Args:
        base: A fitted model; ``None`` guides by the analytic bound alone (``RooflineModel``).
        seed: Of the residual trees' column samples.
    """

    def __init__(self, base: CostModel | None = None, seed: int = 0) -> None:
        self.base: CostModel = RooflineModel() if base is None else base
        self.seed = seed
        self._level = 0.0
        self._trees: Trees | None = None
        self._near: Nearness | None = None

    def refit(self, x: Matrix, y: Vector) -> None:
        """Learn the residual anew from all that was measured in this run.

        Args:
            x: Features of the successful trials, float32 ``[n, F]``.
            y: Their log(roofline / measured), ``[n]``.

        Raises:
            InvalidInputError: The lengths differ, or a label is not finite (a failure has no label).
        """
        x, y = check_matrix(x), np.asarray(y, np.float64)
        if len(x) != len(y) or not np.isfinite(y).all():
            raise InvalidInputError(f"{len(x)} rows with {np.isfinite(y).sum()} finite labels", "leave failures out")
        self._level, self._trees, self._near = 0.0, None, None
        if not len(y):
            return
        mean, spread = self.base.predict(x)
        error = y - mean
        self._level = float(np.median(error))
        self._near = Nearness.fit(x, error, spread)
        if len(y) >= FEWEST_ROWS:
            weight = np.where(y >= np.quantile(y, 0.75), 2.0, 1.0)
            self._trees = Trees.fit(x, error - self._level, weight / weight.mean(), TREES, self.seed)

    def score(self, x: Matrix) -> Vector:
        """Predicted log(roofline / measured) of each row; higher is better."""
        x = check_matrix(x)
        return self._corrected(x, self.base.score(x))

    def predict(self, x: Matrix) -> tuple[Vector, Vector]:
        """Mean and spread as of ``CostModel.predict``.

        The spread is the base's; it shrinks near what this run has measured, and grows everywhere if the base's errors
        in this run are larger than its spread says. It costs several times as much as ``score``: ask it of a shortlist.
        """
        x = check_matrix(x)
        mean, spread = self.base.predict(x)
        return self._corrected(x, mean), spread if self._near is None else spread * self._near.share(x)

    def _corrected(self, x: Matrix, mean: Vector) -> Vector:
        mean = mean + self._level
        return mean if self._trees is None else mean + self._trees.predict(x)
