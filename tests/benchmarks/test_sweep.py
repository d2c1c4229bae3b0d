"""The grid of a sweep: what was asked for, as far as it is valid, and no more than was allowed."""

from __future__ import annotations

from autosched.sketches.builders import gemm
from autosched.sketches.constraints import explain_invalid
from autosched.sketches.target import PRESETS
from benchmarks.sweep import grid

OP, TARGET = gemm(512, 512, 4096), PRESETS["H200"]
NAMES = ["split.tma-tma.workspace", "grid.tma-tma.direct-tma"]


def test_every_valid_combination_once() -> None:
    knobs = {"block_m": [64, 128], "split_k": [4, 8], "stages": [3], "subtile": [2]}
    found = grid(OP, TARGET, NAMES, knobs, 100, seed=0)
    tiles = sorted((s.sketch.name, s.knobs["block_m"], s.knobs.get("split_k", 0)) for s in found)
    split = [(NAMES[0], m, k) for m in (64, 128) for k in (4, 8)]
    assert tiles == sorted([*split, (NAMES[1], 64, 0), (NAMES[1], 128, 0)])
    assert {s.knobs["stages"] for s in found} == {3}


def test_no_more_than_allowed_and_none_that_a_constraint_rejects() -> None:
    knobs = {"block_m": [64, 128, 256], "block_n": [64, 128, 256], "block_k": [64, 128, 256], "stages": [2, 4, 7]}
    every = grid(OP, TARGET, NAMES, knobs, 1000, seed=0)
    some = grid(OP, TARGET, NAMES, knobs, 10, seed=1)
    assert len(every) < 2 * 81
    assert len(some) == 10
    assert set(some) < set(every)
    assert [explain_invalid(OP, TARGET, s) for s in every] == [None] * len(every)
