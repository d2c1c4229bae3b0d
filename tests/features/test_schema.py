"""The schema's identity follows what a model depends on."""

from dataclasses import replace

from autosched.features import COLUMN, FEATURES, SCHEMA, schema_id
from autosched.sketches.knobs import KNOBS


def test_schema_changes_with_a_name_a_unit_and_the_order() -> None:
    renamed = (replace(FEATURES[0], name="other"), *FEATURES[1:])
    other_unit = (replace(FEATURES[0], unit="metres"), *FEATURES[1:])
    swapped = (FEATURES[1], FEATURES[0], *FEATURES[2:])
    ids = {schema_id(x) for x in (FEATURES, renamed, other_unit, swapped, FEATURES[:-1])}
    assert len(ids) == 5
    assert schema_id(FEATURES) == SCHEMA


def test_schema_does_not_change_with_the_wording_of_a_source() -> None:
    assert schema_id((replace(FEATURES[0], source="said otherwise"), *FEATURES[1:])) == SCHEMA


def test_names_are_unique_and_every_feature_is_explained() -> None:
    assert len(COLUMN) == len(FEATURES)
    assert all(f.name and f.unit and f.source for f in FEATURES)
    assert all(f.unit.startswith("log2") == f.name.startswith("log2_") for f in FEATURES)


def test_every_knob_has_a_feature_of_its_name() -> None:
    assert {f.name.removeprefix("log2_") for f in FEATURES} >= set(KNOBS)
