"""Sampling, moves and neighbourhoods of the two kinds of space."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autosched.errors import InvalidInputError
from autosched.search import GeneratedSpace, Space, TableSpace
from autosched.search.domains import SKETCH_MOVE, Domains
from autosched.sketches.builders import gemm
from autosched.sketches.constraints import why_invalid
from autosched.sketches.knobs import KNOB_NAMES, KNOBS
from autosched.sketches.nodes import SPLITS
from autosched.sketches.rules import derive
from autosched.sketches.schedule import ABSENT, Schedule, ScheduleBatch
from autosched.sketches.target import PRESETS
from tests.search.conftest import generated_space, plain_space, table_space


def in_domain(batch: ScheduleBatch) -> bool:
    """Whether rebuilding from JSON, which checks every value, gives each row again."""
    return all(Schedule.from_json(s.to_json(), batch.sketches) == s for s in batch.schedules())


def test_samples_are_valid_members(space: Space) -> None:
    batch = space.sample(np.random.default_rng(0), 200)

    assert len(batch) == 200
    assert in_domain(batch)
    assert space.contains(batch).all()
    assert why_invalid(gemm(4096, 4096, 4096), PRESETS["H200"], batch).valid.all()


def test_a_sample_of_the_generated_space_reaches_every_sketch_and_value() -> None:
    space = generated_space()
    batch = space.sample(np.random.default_rng(0), 4000)

    assert set(batch.sketch_index.tolist()) == set(range(len(space.sketches)))
    for knob in space.sketches[0].knobs:
        mine = batch.column(knob.name)[batch.sketch_index == 0]
        assert set(mine.tolist()) == set(knob.values), knob.name


def test_a_move_changes_one_knob_or_the_sketch() -> None:
    space = generated_space()
    rng = np.random.default_rng(0)
    before = space.sample(rng, 2000)
    after = space.mutate(rng, before)
    other = before.sketch_index != after.sketch_index
    changed = (before.values[:, 1:] != after.values[:, 1:]).sum(1)

    assert in_domain(after)
    assert why_invalid(space.op, space.target, after).valid.all()
    assert set(changed[~other].tolist()) == {0, 1}
    stayed = ~other & (changed == 0)
    assert stayed.sum() == sum(space.rejected.values()) - rejected_by_sampling(space)
    assert 0.5 * SKETCH_MOVE < other.mean() < 1.5 * SKETCH_MOVE


def rejected_by_sampling(space: GeneratedSpace) -> int:
    fresh = GeneratedSpace(space.op, space.target)
    fresh.sample(np.random.default_rng(0), 2000)
    return sum(fresh.rejected.values())


def test_a_move_of_a_knob_is_mostly_to_a_neighbour() -> None:
    space = generated_space()
    rng = np.random.default_rng(1)
    before = space.sample(rng, 2000)
    after = space.mutate(rng, before)
    near = total = 0
    for was, now in zip(before.schedules(), after.schedules(), strict=True):
        if was.sketch == now.sketch and was != now:
            name = next(k for k in KNOB_NAMES if was.knobs.get(k) != now.knobs.get(k))
            knob = next(k for k in was.sketch.knobs if k.name == name)
            near += now.knobs[name] in knob.neighbours(was.knobs[name])
            total += 1

    assert total > 800
    assert 0.8 < near / total < 1.0


def test_a_change_of_sketch_keeps_what_both_have() -> None:
    space = generated_space()
    rng = np.random.default_rng(2)
    before = space.sample(rng, 4000)
    after = space.mutate(rng, before)
    moved = np.flatnonzero(before.sketch_index != after.sketch_index)
    shared = (before.values[moved, 1:] != ABSENT) & (after.values[moved, 1:] != ABSENT)

    assert (before.values[moved, 1:] == after.values[moved, 1:])[shared].all()
    fresh = (before.values[moved, 1:] == ABSENT) & (after.values[moved, 1:] != ABSENT)
    assert fresh.any(1).sum() > 20
    subtiles = after.column("subtile")[moved][fresh[:, KNOB_NAMES.index("subtile")]]
    assert len(set(subtiles.tolist())) > 1


def test_a_shared_knob_goes_to_the_nearest_value_of_the_new_domain() -> None:
    first, second = generated_space().sketches[:2]
    second = replace(second, knobs=tuple(replace(k, values=k.values[::2]) for k in second.knobs))
    domains = Domains.of((first, second))
    start = np.array([(0, *Schedule.of(first, block_m=128, block_n=32, stages=7).values)] * 4000, np.int32)
    moved = domains.move(np.random.default_rng(0), start)
    row = moved[moved[:, 0] == 1][0]
    expected = {k.name: k.nearest(int(start[0, 1 + KNOB_NAMES.index(k.name)])) for k in second.knobs}

    assert {k.name: int(row[1 + KNOB_NAMES.index(k.name)]) for k in second.knobs} == expected
    assert domains.contains(moved).all()


def test_a_knob_that_seldom_matters_is_moved_a_quarter_as_often() -> None:
    sketch = next(s for s in generated_space().sketches if s.name == "persistent.tma-tma.subtiled-ptr")
    start = np.array([(0, *Schedule.of(sketch).values)] * 40_000, np.int32)
    moved = Domains.of((sketch,)).move(np.random.default_rng(0), start)
    changed = dict(zip(KNOB_NAMES, (moved != start).sum(0)[1:].tolist(), strict=True))
    seldom = [k.name for k in sketch.knobs if KNOBS[k.name].seldom]
    others = [k.name for k in sketch.knobs if not KNOBS[k.name].seldom]
    lot = len(start) / (len(seldom) + 4 * len(others))

    assert seldom == ["specialize", "unroll", "maxnreg"]
    assert [changed[name] for name in seldom] == pytest.approx([lot] * 3, rel=0.1)
    assert [changed[name] for name in others] == pytest.approx([4 * lot] * len(others), rel=0.1)


def test_a_change_of_sketch_draws_a_new_knob_as_samples_do() -> None:
    sketches = {s.name: s for s in derive(gemm(1, 4096, 4096), PRESETS["H200"])}
    names = ("grid.ptr-ptr.sum.direct-ptr", "split.ptr-ptr.workspace", "persistent.ptr-ptr.subtiled-ptr")
    domains = Domains.of([sketches[name] for name in names])
    start = np.array([(0, *Schedule.of(sketches[names[0]]).values)] * 100_000, np.int32)
    moved = domains.move(np.random.default_rng(0), start)

    def shares(sketch: int, knob: str) -> dict[int, float]:
        values = moved[moved[:, 0] == sketch, 1 + KNOB_NAMES.index(knob)]
        return {int(v): float((values == v).mean()) for v in np.unique(values)}

    seldom = {0: 0.75 + 0.25 / 4, 128: 0.25 / 4, 168: 0.25 / 4, 232: 0.25 / 4}
    assert shares(1, "maxnreg") == pytest.approx(seldom, abs=0.02)
    assert shares(2, "maxnreg") == pytest.approx(seldom, abs=0.02)
    assert shares(1, "dependent") == pytest.approx({0: 0.5, 1: 0.5}, abs=0.03)
    assert shares(2, "specialize") == pytest.approx({0: 0.875, 1: 0.125}, abs=0.02)
    assert shares(2, "flatten") == pytest.approx({0: 0.5, 1: 0.5}, abs=0.03)
    assert shares(1, "split_k") == pytest.approx(dict.fromkeys(SPLITS, 1 / len(SPLITS)), abs=0.02)
    assert domains.contains(moved).all()


def test_the_batch_moved_from_is_left_alone(space: Space) -> None:
    rng = np.random.default_rng(0)
    before = space.sample(rng, 64)
    copy = before.values.copy()
    after = space.mutate(rng, before)

    assert (before.values == copy).all()
    assert (after.values != copy).any()
    assert not np.shares_memory(after.values, before.values)


def test_foreign_rows_are_no_members(space: Space) -> None:
    batch = space.sample(np.random.default_rng(0), 3)
    values = batch.values.copy()
    values[0, 1] = 17
    values[1, 0] = len(space.sketches)
    values[2, 1 + KNOB_NAMES.index("split_k")] = 77

    assert not space.contains(ScheduleBatch(batch.sketches, values)).any()


def test_an_enumeration_has_every_schedule_once() -> None:
    sketches = plain_space().sketches[:1]
    domains = Domains.of(sketches)
    rows = np.concatenate(list(domains.enumerate(np.random.default_rng(0), 1000)))

    assert len(rows) == np.prod([len(k.values) for k in sketches[0].knobs])
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert domains.contains(rows).all()


def test_a_table_drops_repeats_and_keeps_the_order() -> None:
    batch = generated_space().sample(np.random.default_rng(0), 5)
    space = TableSpace(batch.take([3, 1, 3, 0, 1]))

    assert space.members().keys() == batch.take([3, 1, 0]).keys()


def test_a_move_in_a_table_goes_mostly_to_near_rows() -> None:
    space = table_space(rows=300)
    domains = Domains.of(space.sketches)
    rng = np.random.default_rng(0)
    before = space.members().take(rng.integers(300, size=1000))
    after = space.mutate(rng, before)
    points = [domains.encode(b.values, 2.0) for b in (before, after, space.members())]
    moved = np.linalg.norm(points[0] - points[1], axis=1)
    distances = np.sort(np.linalg.norm(points[0][:, None] - points[2], axis=2), axis=1)

    assert set(after.keys()) <= set(space.members().keys())
    assert (moved <= distances[:, 8] + 1e-4).mean() > 0.85
    assert (moved > distances[:, 8] + 1e-4).mean() > 0.05


def test_a_table_of_one_row_and_of_none() -> None:
    batch = generated_space().sample(np.random.default_rng(0), 1)
    space = TableSpace(batch)

    assert space.mutate(np.random.default_rng(0), batch).keys() == batch.keys()
    with pytest.raises(InvalidInputError, match="without rows"):
        TableSpace(batch.take([False]))


def test_a_space_with_nothing_valid_says_why() -> None:
    sketch = generated_space().sketches[0]
    knobs = tuple(
        replace(k, values={"block_m": (256,), "block_n": (256,), "warps": (1,)}.get(k.name, k.values[:1]))
        for k in sketch.knobs
    )
    space = GeneratedSpace(gemm(4096, 4096, 4096), PRESETS["H200"], (replace(sketch, knobs=knobs),))

    with pytest.raises(InvalidInputError, match="registers"):
        space.sample(np.random.default_rng(0), 4)
