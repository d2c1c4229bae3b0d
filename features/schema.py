"""What a feature is, and how a list of features is named, versioned and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

#: Raised whenever a feature keeps its name and changes its meaning.
VERSION = 6


@dataclass(frozen=True, slots=True)
class Feature:
    """One column of the feature matrix.

    Attributes:
        name: Unique in the schema.
        unit: Unit of the value; ``log2 X`` is the binary logarithm of a value in X, ``1`` is a pure number.
        source: The formula or the place that the value comes from.
    """

    name: str
    unit: str
    source: str


def schema_id(features: Iterable[Feature]) -> str:
    """Version and digest of a list of features: a model is used only with the schema that it was trained on.

    The digest covers names and units in their order; the wording of a source may change.
    """
    text = "\n".join(f"{f.name}\t{f.unit}" for f in features)
    return f"{VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
