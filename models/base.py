"""The interface of every cost model, and the checks that they share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError
from autosched.features import FEATURES

if TYPE_CHECKING:
    from autosched.models.dataset import Dataset
    from autosched.models.validity import ValidityModel

Matrix = NDArray[np.float32]
Vector = NDArray[np.float64]

#: Batches of fewer rows are predicted, and fitted, with one thread: beside busy compile workers two are much slower.
SMALL_BATCH = 2000


@runtime_checkable
class CostModel(Protocol):
    """Predicts log(roofline time / measured time) of schedules from their features; higher is better.

    The expected loss of a choice is ``1 - exp(mean - best mean)``.

    Attributes:
        recipe: Name of the model in ``RECIPES``.
        digest: Digest of the training data, empty before ``fit``.
        spaces: Iteration spaces that it was trained on.
        validity: What was learnt of failures beside it, saved in the same file; ``None`` if nothing was.
    """

    recipe: str
    digest: str
    spaces: tuple[str, ...]
    validity: ValidityModel | None

    def __init__(self, seed: int = 0) -> None:
        """A model that is not fitted yet."""
        ...

    def fit(self, data: Dataset) -> None:
        """Learn from ``data``, forgetting what was learnt before.

        Raises:
            InvalidInputError: The data set has no rows.
        """
        ...

    def predict(self, x: Matrix) -> tuple[Vector, Vector]:
        """Mean and spread (one standard deviation within a workload) for features ``x``, float32 ``[n, F]``.

        Raises:
            InvalidInputError: The model is not fitted, or ``x`` has not one column a feature.
        """
        ...

    def score(self, x: Matrix) -> Vector:
        """The mean alone, for inner loops."""
        ...

    def save(self, path: str | Path) -> None:
        """Write the model as one JSON file, whole or not at all."""
        ...

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model that ``save`` wrote.

        Raises:
            ModelMismatchError: The file is damaged, of another recipe, or of another feature schema.
        """
        ...


def check_matrix(x: Matrix) -> Matrix:
    """``x`` as C-contiguous float32.

    Raises:
        InvalidInputError: It is not a matrix with one column a feature.
    """
    if x.ndim != 2 or x.shape[1] != len(FEATURES):
        raise InvalidInputError(
            f"features of shape {x.shape}, the schema has {len(FEATURES)} columns", "make them with features.extract"
        )
    return np.ascontiguousarray(x, np.float32)


def check_dataset(data: Dataset) -> None:
    """Refuse a data set that nothing can be learnt from.

    Raises:
        InvalidInputError: It has no rows.
    """
    if not len(data):
        raise InvalidInputError("the data set has no rows", "give logs with successful trials")
    check_matrix(data.x)
