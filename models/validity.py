"""The validity model: the chance that a schedule compiles, runs and is right."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError
from autosched.models.base import Matrix, Vector, check_matrix
from autosched.models.boosting import Trees, TreeSettings, unpack_trees

#: Small: it is fitted anew each round, beside busy compile workers. No least weight of a leaf, since rows of which the
#: base is sure have second derivatives near 0; the penalty of leaf values alone says how far few rows are believed.
#: Each node sees a fifth of the features: many tell one success apart from a dozen failures, and a tree that took the
#: first of them would call all else valid.
VALIDITY = TreeSettings(40, 4, 0.3, columns=0.2, leaf_weight=0.0, objective="logistic")
#: Name of its trees in a model's file.
BOOSTER = "validity"


class ValidityModel:
    """Boosted trees of logistic loss on all trials, failures included; one thread.

    It says 1 of everything until it has seen both a failure and a success, and so changes no choice that nothing is
    known against.

    Args:
        seed: Of the features that each node of a tree sees.
        base: A fitted model of other workloads. It is not changed; this one's trees predict what it leaves.
    """

    def __init__(self, seed: int = 0, base: ValidityModel | None = None) -> None:
        self.seed = seed
        self._base = None if base is None else base._trees
        self._trees: Trees | None = self._base

    @property
    def fitted(self) -> bool:
        """Whether it knows of a failure and of a success."""
        return self._trees is not None

    def fit(self, x: Matrix, ok: NDArray[np.bool_]) -> None:
        """Learn from ``ok``, one a row of ``x``, float32 ``[n, F]``, forgetting what was learnt before, the base apart.

        ``below_floor`` says nothing about a kernel's validity: leave such trials out (``Outcomes`` does).

        Raises:
            InvalidInputError: The lengths differ, or ``x`` has not one column a feature.
        """
        x, ok = check_matrix(x), np.asarray(ok, np.bool_)
        if len(x) != len(ok):
            raise InvalidInputError(f"{len(x)} rows of features with {len(ok)} outcomes", "give one outcome a row")
        self._trees = self._base
        label, weight = ok.astype(np.float64), np.ones(len(ok))
        if self._base is not None:
            if len(ok):
                self._trees = self._base.continued(x, label, weight, VALIDITY, self.seed)
        elif ok.any() and not ok.all():
            self._trees = Trees.fit(x, label, weight, VALIDITY, self.seed)

    def predict(self, x: Matrix) -> Vector:
        """Chance in [0, 1] that each row's schedule is valid, ``[n]``.

        Raises:
            InvalidInputError: ``x`` has not one column a feature.
        """
        x = check_matrix(x)
        return np.ones(len(x)) if self._trees is None else np.clip(self._trees.predict(x), 0.0, 1.0)

    @classmethod
    def from_boosters(cls, boosters: Mapping[str, bytes], seed: int = 0) -> ValidityModel | None:
        """The model that a cost model's file holds; ``None`` where it holds none.

        Raises:
            ModelMismatchError: XGBoost cannot read it.
        """
        if BOOSTER not in boosters:
            return None
        model = cls(seed)
        model._trees = unpack_trees(boosters, BOOSTER)
        return model


def boosters(model: ValidityModel | None) -> dict[str, bytes]:
    """What a cost model's file holds of it: nothing where there is none, or while it is not fitted."""
    return {} if model is None or model._trees is None else {BOOSTER: model._trees.to_bytes()}
