"""Schedules and batches: round trips, columns, moves."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.errors import InvalidInputError
from autosched.sketches.builders import conv2d, gemm
from autosched.sketches.constraints import REASONS, explain_invalid, shared_lower_bound, why_invalid
from autosched.sketches.knobs import SELDOM, Knob
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import ABSENT, Schedule, ScheduleBatch
from autosched.sketches.target import PRESETS

H200 = PRESETS["H200"]
OP = gemm(4096, 4096, 4096)
SKETCHES = {s.name: s for s in derive(OP, H200)}
PLAIN = SKETCHES["grid.ptr-ptr.direct-ptr"]
BOXES = SKETCHES["persistent.tma-tma.subtiled-tma"]


def test_knobs_own_neighbours_nearest_and_encoding() -> None:
    knob = Knob("block_m", (16, 32, 64))
    assert knob.neighbours(16) == (32,)
    assert knob.neighbours(32) == (16, 64)
    assert knob.nearest(128) == 64
    assert knob.nearest(20) == 16
    assert knob.encode(np.asarray([16, 64])).tolist() == [4.0, 6.0]
    assert Knob("stages", (2, 3)).encode(np.asarray([3])).tolist() == [3.0]
    assert set(knob.sample(np.random.default_rng(0), 100).tolist()) == {16, 32, 64}


def test_json_round_trip_is_exact() -> None:
    rng = np.random.default_rng(0)
    for sketch in SKETCHES.values():
        schedule = Schedule.of(sketch, **{k.name: int(k.sample(rng, 1)[0]) for k in sketch.knobs})
        assert Schedule.from_json(schedule.to_json(), list(SKETCHES.values())) == schedule
        assert {v for k, v in zip(schedule.to_json(), schedule.values, strict=False) if v == ABSENT} <= {ABSENT}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"sketch": "nonesuch"}, "nonesuch"),
        ({"sketch": PLAIN.name, "block_m": 48}, "48"),
        ({"sketch": PLAIN.name, "split_k": 2}, "split_k"),
        ({"sketch": PLAIN.name, "block_m": "64"}, "'64'"),
        ({"sketch": PLAIN.name, "block_m": True}, "True"),
    ],
)
def test_rebuilding_checks_every_value(data: dict[str, int | str], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        Schedule.from_json(data, list(SKETCHES.values()))


def test_a_batch_is_columns_of_a_union() -> None:
    one, two = Schedule.of(PLAIN, block_m=64), Schedule.of(BOXES, flatten=1)
    batch = ScheduleBatch.of(tuple(SKETCHES.values()), [one, two])
    assert batch[0] == one
    assert batch[1] == two
    assert batch.column("block_m").tolist() == [64, 128]
    assert batch.column("flatten").tolist() == [ABSENT, 1]
    assert batch.fact("persistent").tolist() == [0, 1]
    assert batch.take([1])[0] == two
    assert len(set(ScheduleBatch.concat([batch, batch]).keys())) == 2


def reason(**knobs: int) -> str | None:
    name = knobs.pop("sketch", None)
    sketch = BOXES if name else PLAIN
    return explain_invalid(OP, H200, Schedule.of(sketch, **knobs))


def test_reasons() -> None:
    assert reason() is None
    # 6 x (256 + 256) x 64 x 2 bytes = 393,216 > 232,448
    assert "shared memory" in str(reason(block_m=256, block_n=256, stages=7, warps=8))
    assert "registers" in str(reason(block_m=256, block_n=256, block_k=16, stages=1, warps=4))
    split = SKETCHES["split.ptr-ptr.workspace"]
    short = Schedule.of(split, block_k=256, split_k=20, stages=1)  # 16 steps
    assert "more parts than steps" in str(explain_invalid(OP, H200, short))
    narrow = Schedule.of(BOXES, block_n=16, subtile=4)  # 4 columns of 2 bytes
    assert "narrower" in str(explain_invalid(OP, H200, narrow))


def test_reasons_of_knobs_that_seldom_matter() -> None:
    pointers = SKETCHES["persistent.tma-tma.subtiled-ptr"]
    assert explain_invalid(OP, H200, Schedule.of(pointers, specialize=1, block_m=64)) is None
    for knobs in ({"warps": 8}, {"flatten": 1}, {"block_m": 128}):
        assert "specialize" in str(
            explain_invalid(OP, H200, Schedule.of(pointers, **{"specialize": 1, "block_m": 64, **knobs}))
        )
    assert "specialize" in str(explain_invalid(OP, H200, Schedule.of(BOXES, specialize=1)))
    # 128 x 128 accumulators of 128 threads are 128 registers each, and some 24 are always taken
    assert reason(maxnreg=168) is None
    assert "maxnreg" in str(reason(maxnreg=128))
    assert reason(maxnreg=128, block_n=64) is None


def test_a_plain_load_has_one_cache_option() -> None:
    """What is copied asynchronously takes both; evict 1 is of the columns' operand, 2 of the rows'."""
    both = {"cache": 1, "evict": 1}
    assert reason(**both) is None
    assert "cache" in str(reason(**both, stages=1))
    assert reason(cache=1, stages=1) is reason(evict=1, stages=1) is None
    mixed = SKETCHES["grid.tma-ptr.direct-ptr"]  # boxes have no such options
    for evict, refused in ((1, True), (2, False)):
        schedule = Schedule.of(mixed, cache=1, evict=evict, stages=1)
        assert ("cache" in str(explain_invalid(OP, H200, schedule))) is refused
    odd = gemm(4096, 4097, 4096)  # rows of b begin at multiples of two bytes
    plain = derive(odd, H200)[0]
    assert "cache" in str(explain_invalid(odd, H200, Schedule.of(plain, **both)))
    assert explain_invalid(odd, H200, Schedule.of(plain, cache=1, evict=2)) is None


def test_a_box_that_is_stored_turned_is_as_wide_as_its_rows() -> None:
    op = conv2d(1, 16, 9, 16, 16, 3, 3, 1, 1, groups=16, layout="nchw")
    sketch = next(s for s in derive(op, H200) if s.name == "grid.ptr-ptr.channel.direct-tma")
    assert explain_invalid(op, H200, Schedule.of(sketch, block_m=8, block_n=16)) is None
    assert "narrower" in str(explain_invalid(op, H200, Schedule.of(sketch, block_m=4, block_n=16)))


def test_pieces_have_the_bounds_of_their_narrowest() -> None:
    """192 = 128 + 64 columns: four pieces of the latter are 16 wide, of 32 columns 8."""
    small = {"block_m": 64, "subtile": 4}
    assert explain_invalid(OP, H200, Schedule.of(BOXES, block_n=192, **small)) is None
    assert explain_invalid(OP, H200, Schedule.of(BOXES, block_n=96, **small)) is None  # 8 columns are 16 bytes
    wide = gemm(4096, 4096, 4096, dtype="int8", layout="nt", out_dtype="bf16")
    assert explain_invalid(wide, H200, Schedule.of(derive(wide, H200)[0], block_n=96, block_k=32)) is None


def test_a_sum_has_an_element_for_each_thread_and_no_pipeline_in_the_bound() -> None:
    op = gemm(1, 4096, 4096)
    sketch = next(s for s in derive(op, H200) if s.combine.summed)
    assert explain_invalid(op, H200, Schedule.of(sketch, block_n=16, block_k=16, warps=8)) is None  # 256 of 256
    few = gemm(1, 16, 4096)
    knobs = {k.name: k.values for k in next(s for s in derive(few, H200) if s.combine.summed).knobs}
    assert (knobs["block_m"], knobs["block_n"]) == ((1,), (16,))
    batch = ScheduleBatch.of((sketch,), [Schedule.of(sketch, stages=5)])
    assert shared_lower_bound(op, H200, batch).tolist() == [0]


def test_the_operands_of_a_gated_pair_are_counted_on_their_side() -> None:
    """One a of 128 x 64, two b of 64 x 128; where it is swapped, two of the rows and one of the columns."""
    op = gemm(48, 4096, 4096, epilogue=["swiglu"])
    sketches = {s.name: s for s in derive(op, H200)}
    plain = Schedule.of(sketches["grid.tma-tma-tma.direct-ptr"], block_m=64, block_n=128, stages=2)
    turned = Schedule.of(sketches["swap.grid.tma-tma-tma.direct-ptr"], block_m=128, block_n=16, stages=2)
    batch = ScheduleBatch.of((plain.sketch, turned.sketch), [plain, turned])
    one, two = 2 * (64 + 2 * 128) * 64 * 2, 2 * (2 * 128 + 16) * 64 * 2
    assert shared_lower_bound(op, H200, batch).tolist() == [one, two]


def test_samples_leave_a_knob_that_seldom_matters_at_its_default() -> None:
    rng = np.random.default_rng(0)
    drawn = Knob("maxnreg", (0, 128, 168, 232)).sample(rng, 4000)
    share = float(np.mean(drawn == 0))
    assert abs(share - (SELDOM + (1 - SELDOM) / 4)) < 0.03
    assert set(drawn.tolist()) == {0, 128, 168, 232}
    even = Knob("warps", (1, 2, 4, 8)).sample(rng, 4000)
    assert abs(float(np.mean(even == 4)) - 0.25) < 0.03


def test_shared_lower_bound_by_hand() -> None:
    batch = ScheduleBatch.of((PLAIN, BOXES), [Schedule.of(PLAIN, stages=4), Schedule.of(BOXES, stages=1)])
    tile = (128 * 64 + 64 * 128) * 2
    assert shared_lower_bound(OP, H200, batch).tolist() == [4 * tile, tile // 2]
    deep = ScheduleBatch.of((BOXES,), [Schedule.of(BOXES, stages=3, subtile=2), Schedule.of(BOXES, stages=3, warps=2)])
    assert shared_lower_bound(OP, H200, deep).tolist() == [3 * tile + 128 * 64 * 2, 2 * tile + 128 * 128 * 2]


def test_a_loop_of_one_step_has_no_pipeline() -> None:
    op = gemm(4096, 4096, 64)
    sketch = derive(op, H200)[0]
    assert shared_lower_bound(op, H200, ScheduleBatch.of((sketch,), [Schedule.of(sketch, stages=7)])).tolist() == [0]


def bound(op: Op, name: str, **knobs: int) -> int:
    sketch = next(s for s in derive(op, H200) if s.name == name)
    return int(shared_lower_bound(op, H200, ScheduleBatch.of((sketch,), [Schedule.of(sketch, **knobs)]))[0])


def test_a_loop_unrolled_into_one_turn_has_no_pipeline() -> None:
    """4 steps: two turns of 2, or one of 4, after which the boxes lie one after the other."""
    op, name = gemm(4096, 4096, 256), "grid.tma-tma.direct-ptr"
    box = 128 * 64 * 2
    assert bound(op, name, unroll=2) == 2 * 3 * 2 * box  # each copy of the body has buffers of its own
    assert bound(op, name, unroll=4) == box
    persistent = "persistent.tma-tma.subtiled-ptr"  # the loop over tiles remains
    assert bound(op, persistent, unroll=4) == 4 * 3 * 2 * box
    assert bound(op, persistent, unroll=4, flatten=1) == 4 * 3 * 2 * box
    assert bound(op, persistent, unroll=4, block_k=128) == 2 * box  # 2 steps: what is left over is not pipelined
    assert bound(op, persistent, unroll=4, block_k=128, flatten=1) == 3 * 2 * 2 * box


def test_pointers_to_8_bit_numbers_are_pipelined_where_the_reduction_runs_along_their_rows() -> None:
    """128 x 64 of a, 64 x 128 of b, a byte each: b is pipelined if stored K-major only."""
    tile = 128 * 64
    for layout, tiles in (("nt", 2), ("nn", 1), ("tn", 0)):
        op = gemm(4096, 4096, 4096, dtype="fp8e4m3", layout=layout)
        assert bound(op, "grid.ptr-ptr.direct-ptr", stages=3, block_k=64) == 3 * tiles * tile, layout


def test_without_a_pipeline_the_pieces_of_a_tile_lie_one_after_the_other() -> None:
    """192 columns are a box of 128 and one of 64; the rows' box of 16 is smaller."""
    op, name = gemm(4096, 4096, 4096), "grid.tma-tma.direct-ptr"
    assert bound(op, name, block_m=16, block_n=192, stages=1) == 64 * 128 * 2
    assert bound(op, name, block_m=16, block_n=192, stages=2, warps=4) == (16 + 192) * 64 * 2


def test_a_gated_pairs_operands_are_copied_one_by_one() -> None:
    """16 x 16 elements are 2 bytes for each of 256 threads, too few for an asynchronous copy of either operand."""
    op = gemm(4096, 4096, 4096, epilogue=["swiglu"])
    small = {"block_m": 16, "block_n": 16, "block_k": 16}
    assert bound(op, "grid.ptr-ptr-ptr.direct-ptr", **small, warps=8) == 0
    assert bound(op, "grid.ptr-ptr-ptr.direct-ptr", **small, warps=4) == 2 * 3 * 16 * 16 * 2


def test_rejections_are_counted_by_reason() -> None:
    batch = ScheduleBatch.of((PLAIN,), [Schedule.of(PLAIN), Schedule.of(PLAIN, block_m=256, block_n=256, warps=1)])
    verdict = why_invalid(OP, H200, batch)
    assert verdict.valid.tolist() == [True, False]
    assert sum(verdict.counts().values()) == 1
    assert set(verdict.counts()) < set(REASONS)
