"""XGBoost through its public interface alone: boosted trees, trained and asked with a fixed thread rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from autosched.errors import ModelMismatchError
from autosched.models import files
from autosched.models.base import SMALL_BATCH, Matrix, Vector

if TYPE_CHECKING:
    from xgboost import Booster


#: XGBoost's names of the losses.
_OBJECTIVES = MappingProxyType({"squared": "reg:squarederror", "logistic": "binary:logistic"})


@dataclass(frozen=True)
class TreeSettings:
    """Shape, learning rate and loss of boosted trees.

    Attributes:
        trees: Boosting rounds.
        depth: Greatest depth of a tree.
        rate: Learning rate.
        subsample: Share of the rows that each tree sees.
        columns: Share of the features that each node sees.
        leaf_weight: Least sum of second derivatives in a leaf: of row weights (mean 1) for the squared loss, of weights
            times p * (1 - p) for the logistic one.
        shrinkage: L2 penalty of leaf values.
        parallel: Trees of each round; many in one round of rate 1 are a random forest.
        objective: Loss: ``squared`` for any number, ``logistic`` for the chance of a label that is 0 or 1.
    """

    trees: int
    depth: int
    rate: float
    subsample: float = 1.0
    columns: float = 1.0
    leaf_weight: float = 1.0
    shrinkage: float = 1.0
    parallel: int = 1
    objective: Literal["squared", "logistic"] = "squared"

    def parameters(self, seed: int, threads: int) -> dict[str, Any]:
        """Parameters of ``xgboost.train``; ``threads`` 0 means all."""
        return {
            "objective": _OBJECTIVES[self.objective],
            "tree_method": "hist",
            "max_depth": self.depth,
            "eta": self.rate,
            "subsample": self.subsample,
            "colsample_bynode": self.columns,
            "min_child_weight": self.leaf_weight,
            "lambda": self.shrinkage,
            "num_parallel_tree": self.parallel,
            "seed": seed % 2**31,
            "nthread": threads,
            "verbosity": 0,
        }


class Trees:
    """Boosted trees that predict one number: a value, or a chance under the logistic loss.

    Args:
        booster: A trained booster.
        threads: Threads for batches of ``SMALL_BATCH`` rows and more; 0 means all.
    """

    def __init__(self, booster: Booster, threads: int = 1) -> None:
        self._booster = booster
        self._threads = threads
        self._set: int | None = None

    @classmethod
    def fit(cls, x: Matrix, y: Vector, weight: Vector, settings: TreeSettings, seed: int, threads: int = 1) -> Trees:
        """Train on ``x`` float32 ``[n, F]``; ``base_score`` is the weighted mean of ``y``.

        Under the logistic loss ``y`` holds both 0 and 1: the base score is a chance between them.
        """
        import xgboost

        threads_now = 1 if len(y) < SMALL_BATCH else threads
        matrix = xgboost.DMatrix(x, y, weight=weight, nthread=threads_now or -1)
        parameters = settings.parameters(seed, threads_now)
        parameters["base_score"] = float(np.average(y, weights=weight))
        return cls(xgboost.train(parameters, matrix, num_boost_round=settings.trees), threads)

    def continued(self, x: Matrix, y: Vector, weight: Vector, settings: TreeSettings, seed: int) -> Trees:
        """These trees, unchanged, and more that predict what they leave of ``y``; fitted with one thread.

        It equals the sum of two models, and asking one is cheaper than asking two.
        """
        import xgboost

        matrix = xgboost.DMatrix(x, y, weight=weight, nthread=1)
        parameters = settings.parameters(seed, 1)
        more = xgboost.train(parameters, matrix, num_boost_round=settings.trees, xgb_model=self._booster)
        return Trees(more, self._threads)

    def predict(self, x: Matrix) -> Vector:
        """One value a row."""
        if not len(x):  # xgboost 3.4 answers with a matrix
            return np.zeros(0)
        threads = 1 if len(x) < SMALL_BATCH else self._threads
        if threads != self._set:
            self._booster.set_param({"nthread": threads})
            self._set = threads
        return np.asarray(self._booster.inplace_predict(x, validate_features=False), np.float64)

    def to_bytes(self) -> bytes:
        """As a model file holds it."""
        return files.pack(bytes(self._booster.save_raw(raw_format="ubj")))

    @classmethod
    def from_bytes(cls, data: bytes, threads: int = 1) -> Trees:
        """The trees again.

        Raises:
            ModelMismatchError: XGBoost cannot read them.
        """
        import xgboost

        raw = files.unpack(data)
        try:
            booster = xgboost.Booster()
            booster.load_model(raw)
        except xgboost.core.XGBoostError as error:
            raise ModelMismatchError(f"XGBoost {xgboost.__version__} cannot read it: {error}", "train again") from error
        return cls(booster, threads)


def unpack_trees(boosters: Mapping[str, bytes], name: str, threads: int = 1) -> Trees:
    """The trees called ``name`` in a model file.

    Raises:
        ModelMismatchError: The file has none of that name.
    """
    if name not in boosters:
        raise ModelMismatchError(f"the model file has no trees called {name!r}", "train it again with this version")
    return Trees.from_bytes(boosters[name], threads)
