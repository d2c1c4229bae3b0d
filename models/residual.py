"""The model of a running search: a frozen base, and small trees refitted on what this run has measured."""

from __future__ import annotations

import numpy as np

from autosched.errors import InvalidInputError
from autosched.models.base import CostModel, Matrix, Vector, check_matrix
from autosched.models.boosting import Trees, TreeSettings
from autosched.models.roofline_model import RooflineModel
from autosched.models.xgboost_model import XGBoostModel

#: Small (never more than 60 trees of depth 4): a run has few measurements, and the refit must not delay the next round.
RESIDUAL = TreeSettings(40, 4, 0.2, columns=0.6, leaf_weight=1.0)
#: Below this many measurements only the level is corrected.
FEWEST_ROWS = 8


class Guided:
    """A base model's prediction plus a residual learnt in this run.

    The base gives the margin and is never changed. The residual predicts what the base got wrong by, its mean first.

    Args:
        base: A fitted model; ``None`` guides by the analytic bound alone (``RooflineModel``).
        seed: Of the residual trees' column samples.
    """

    def __init__(self, base: CostModel | None = None, seed: int = 0) -> None:
        self.base: CostModel = RooflineModel() if base is None else base
        self.seed = seed
        self._level = 0.0
        self._trees: Trees | None = None
        self._refined: XGBoostModel | None = None

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
        self._level, self._trees, self._refined = 0.0, None, None
        if not len(y):
            return
        residual = y - self.base.score(x)
        self._level = float(np.median(residual))
        if len(y) < FEWEST_ROWS:
            return
        weight = np.where(y >= np.quantile(y, 0.75), 2.0, 1.0)
        weight /= weight.mean()
        if isinstance(self.base, XGBoostModel):
            self._refined = self.base.continued(x, y - self._level, weight, RESIDUAL, self.seed)
        else:
            self._trees = Trees.fit(x, residual - self._level, weight, RESIDUAL, self.seed, threads=1)

    def score(self, x: Matrix) -> Vector:
        """Predicted log(roofline / measured) of each row; higher is better."""
        if self._refined is not None:
            return self._refined.score(x) + self._level
        x = check_matrix(x)
        score = self.base.score(x) + self._level
        return score if self._trees is None else score + self._trees.predict(x)

    def predict(self, x: Matrix) -> tuple[Vector, Vector]:
        """Mean and spread as of ``CostModel.predict``; the spread is the base's."""
        return self.score(x), self.base.predict(x)[1]
