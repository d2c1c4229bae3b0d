"""What every model's file says of the model, around the state that is the recipe's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from autosched.features import SCHEMA
from autosched.models import files
from autosched.models.base import CostModel
from autosched.models.validity import ValidityModel, boosters

M = TypeVar("M", bound=CostModel)


def write(
    path: str | Path, model: CostModel, seed: int, *, state: Mapping[str, Any] | None = None, **trees: bytes
) -> None:
    """Writes a model with its validity model; see ``CostModel.save``.

    Args:
        path: The file.
        model: What is saved.
        seed: Of its randomness.
        state: Its own numbers, JSON-able.
        trees: Its own boosters by name.
    """
    content = files.ModelFile(
        recipe=model.recipe,
        schema=SCHEMA,
        digest=model.digest,
        spaces=model.spaces,
        seed=seed,
        state=dict(state or {}),
        boosters={**trees, **boosters(model.validity)},
    )
    files.write(path, content)


def read(path: str | Path, recipe: str, make: Callable[[int], M]) -> tuple[M, files.ModelFile]:
    """A model as ``make`` makes it from its seed, with what every file holds, and the file's contents.

    Raises:
        ModelMismatchError: As ``files.read``.
    """
    content = files.read(path, recipe)
    model = make(content.seed)
    model.digest, model.spaces = content.digest, content.spaces
    model.validity = ValidityModel.from_boosters(content.boosters, content.seed)
    return model, content
