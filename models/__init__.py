"""Cost models: what predicts how fast a schedule is before it is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from autosched.errors import InvalidInputError, ModelMismatchError
from autosched.models import files
from autosched.models.base import CostModel
from autosched.models.dataset import Dataset, Outcomes, grouped_folds
from autosched.models.forest_model import ForestModel
from autosched.models.metrics import ModelScore, score_model
from autosched.models.random_model import RandomModel
from autosched.models.residual import Guided
from autosched.models.ridge_model import RidgeModel
from autosched.models.roofline_model import RooflineModel
from autosched.models.validity import ValidityModel
from autosched.models.xgboost_model import XGBoostModel

#: Every recipe that a model can be made by. A new one is a file, a line here and a line in the tests' table.
RECIPES: Mapping[str, type[CostModel]] = MappingProxyType(
    {
        "xgboost": XGBoostModel,
        "forest": ForestModel,
        "ridge": RidgeModel,
        "random": RandomModel,
        "roofline": RooflineModel,
    }
)


def create(recipe: str, seed: int = 0) -> CostModel:
    """A new model that is not fitted yet.

    Raises:
        InvalidInputError: No recipe has that name.
    """
    if recipe not in RECIPES:
        raise InvalidInputError(f"unknown recipe {recipe!r}", f"one of {', '.join(RECIPES)}")
    return RECIPES[recipe](seed)


def load(path: str | Path) -> CostModel:
    """The model in a file, whichever recipe made it.

    Raises:
        ModelMismatchError: The file is damaged, or of a recipe or feature schema that this version has not.
    """
    recipe = files.read(path).recipe
    if recipe not in RECIPES:
        raise ModelMismatchError(f"{path} is a model of unknown recipe {recipe!r}", f"one of {', '.join(RECIPES)}")
    return RECIPES[recipe].load(path)


__all__ = [
    "RECIPES",
    "CostModel",
    "Dataset",
    "ForestModel",
    "Guided",
    "ModelScore",
    "Outcomes",
    "RandomModel",
    "RidgeModel",
    "RooflineModel",
    "ValidityModel",
    "XGBoostModel",
    "create",
    "grouped_folds",
    "load",
    "score_model",
]
