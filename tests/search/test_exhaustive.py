"""Exhaustive search: everything, once, in one order."""

from __future__ import annotations

import numpy as np

from autosched.search import Exhaustive
from tests.search.conftest import generated_space, knob_score, small_space, table_space


def nothing() -> dict[str, str]:
    """What another process answers that proposes otherwise than expected."""
    return {}


def test_nothing_is_proposed_twice_even_where_it_is_not_excluded() -> None:
    strategy = Exhaustive(small_space())
    sizes, keys = [], set()
    for r in range(5):
        batch = strategy.propose(10, knob_score, np.random.default_rng(r), set())
        sizes.append(len(batch))
        keys.update(batch.keys())

    assert sizes == [10, 10, 4, 0, 0]
    assert len(keys) == 24


def test_a_table_is_walked_in_its_own_order() -> None:
    space = table_space(rows=30)
    strategy = Exhaustive(space)
    first = strategy.propose(12, knob_score, np.random.default_rng(5), set(space.members().keys()[:2]))

    assert first.keys() == space.members().keys()[2:14]


def test_it_reaches_every_part_of_a_large_space_without_listing_it_first() -> None:
    space = generated_space()
    batch = Exhaustive(space).propose(20_000, knob_score, np.random.default_rng(0), set())

    assert len(set(batch.keys())) == 20_000
    assert len(np.unique(batch.sketch_index)) == len(space.sketches)
    assert set(np.unique(batch.column("block_m"))) == {16, 32, 64, 128, 256}
