"""The grid: one sweep, spread evenly wherever it is cut off."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.search import Grid
from autosched.search.landing import Landing
from autosched.sketches.knobs import KNOBS
from autosched.sketches.schedule import ScheduleBatch
from tests.search.conftest import generated_space, knob_score, small_space, table_space


def proposed(n: int, exclude: set[bytes] | None = None) -> ScheduleBatch:
    return Grid(generated_space()).propose(n, knob_score, np.random.default_rng(0), exclude or set())


@pytest.mark.parametrize("times", [1, 3, 10])
def test_every_prefix_visits_all_sketches_equally(times: int) -> None:
    sketches = len(generated_space().sketches)
    counts = np.bincount(proposed(times * sketches).sketch_index, minlength=sketches)

    assert counts.tolist() == [times] * sketches


@pytest.mark.parametrize("knob", ["block_m", "block_n", "block_k", "warps", "stages", "group_m"])
def test_a_short_sweep_visits_every_value_of_a_knob(knob: str) -> None:
    values, counts = np.unique(proposed(64).column(knob), return_counts=True)
    domain = next(k.values for k in generated_space().sketches[0].knobs if k.name == knob)

    assert set(values[values >= 0].tolist()) == set(domain)
    assert counts.max() <= 3 * 64 / len(domain)


@pytest.mark.parametrize("knob", ["unroll", "maxnreg"])
def test_a_knob_that_seldom_matters_is_mostly_left_at_its_default(knob: str) -> None:
    values = proposed(400).column(knob)
    share = (values == KNOBS[knob].default).sum() / (values >= 0).sum()

    assert 0.7 < share < 0.95
    assert len(np.unique(values[values >= 0])) > 1


def test_a_longer_sweep_begins_with_the_shorter_one_and_steps_over_what_is_excluded() -> None:
    keys = proposed(40).keys()

    assert keys[:10] == proposed(10).keys()
    assert proposed(20, set(keys[:5]) | {keys[7]}).keys() == [*keys[5:7], *keys[8:26]]


def test_it_meets_every_member_of_a_small_space_once() -> None:
    batch = Grid(small_space()).propose(100, knob_score, np.random.default_rng(0), set())

    assert len(batch) == len(set(batch.keys())) == 24


def test_a_row_lands_on_the_nearest_free_member_of_a_table() -> None:
    space = table_space(rows=30)
    landing = Landing(space)
    members = space.members()
    row = members.values[4:5].copy()
    row[0, 4] = 16 if row[0, 4] != 16 else 8

    assert landing.land(row, set()).keys() == members.take([4]).keys()
    assert landing.land(np.repeat(members.values[4:5], 2, axis=0), set()).keys()[0] == members.keys()[4]
    assert not {members.keys()[4]} & set(landing.land(row, {members.keys()[4]}).keys())
    assert len(landing.land(row, set(members.keys()))) == 0
    assert len(landing.land(np.repeat(row, 40, axis=0), set())) == 30
