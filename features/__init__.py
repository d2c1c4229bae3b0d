"""Features: the fixed, named, versioned numbers by which a cost model knows a schedule."""

from autosched.features.analytic import COLUMN, FEATURES, SCHEMA, Extractor, extract
from autosched.features.roofline import roofline_us
from autosched.features.schema import Feature, schema_id

__all__ = ["COLUMN", "FEATURES", "SCHEMA", "Extractor", "Feature", "extract", "roofline_us", "schema_id"]
