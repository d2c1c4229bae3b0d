"""A random forest: the default model with trees grown side by side in place of boosted ones."""

from __future__ import annotations

from autosched.models.boosting import TreeSettings
from autosched.models.xgboost_model import XGBoostModel, XGBoostSettings

#: XGBoost's own forest (so that nothing is pickled): bootstrap by share, a third of the features at each node.
FOREST = TreeSettings(1, 12, 1.0, subsample=0.63, columns=0.33, leaf_weight=2.0, shrinkage=0.1, parallel=100)
#: Fewer trees, trained with spaces held out.
FOLD = TreeSettings(1, 10, 1.0, subsample=0.63, columns=0.33, leaf_weight=2.0, shrinkage=0.1, parallel=30)


class ForestModel(XGBoostModel):
    """See ``XGBoostModel``, whose level, weights and spread it shares.

    Args:
        seed: Of the row and column samples.
        settings: Sizes and weights.
    """

    recipe = "forest"

    def __init__(self, seed: int = 0, settings: XGBoostSettings | None = None) -> None:
        super().__init__(seed, settings or XGBoostSettings(mean=FOREST, fold=FOLD))
