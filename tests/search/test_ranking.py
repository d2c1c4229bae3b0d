"""What is chosen of scored rows: the best, of tiles, ties and families each a share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autosched.search.ranking import DEPTH, best_distinct
from autosched.sketches.schedule import Schedule, ScheduleBatch
from tests.search.conftest import generated_space

#: Variants of a schedule in knobs that seldom matter.
SELDOM = [{"maxnreg": 0, "unroll": 1}, {"maxnreg": 128, "unroll": 1}, {"maxnreg": 0, "unroll": 2}]
SKETCH = generated_space().sketches[0]


def families(stages: tuple[int, ...]) -> ScheduleBatch:
    """The variants of each of some schedules, one schedule after the other."""
    schedules = [Schedule.of(SKETCH, block_m=64, block_n=64, stages=s, **seldom) for s in stages for seldom in SELDOM]
    return ScheduleBatch.of((SKETCH,), schedules)


def chosen(batch: ScheduleBatch, scores: NDArray[np.float64], n: int, exclude: tuple[int, ...] = ()) -> list[int]:
    keys = batch.keys()
    best = best_distinct(batch, scores, n, {keys[i] for i in exclude}, 1.0)
    return [keys.index(key) for key in best.keys()]  # noqa: SIM118 - not a dict


def test_of_a_family_the_best_comes_before_the_others() -> None:
    batch = families((2, 3, 4, 5))
    scores = -np.arange(12) / 1000

    assert chosen(batch, scores, 3) == [0, 3, 6]
    assert chosen(batch, scores, 1) == [0]
    assert chosen(batch, scores[::-1], 2) == [11, 8]
    # What is measured makes room for the next of its family, and all that is left is better than nothing.
    assert chosen(batch, scores, 3, exclude=(0, 3)) == [1, 4, 6]
    assert chosen(batch, scores, 6) == [0, 1, 2, 3, 6, 9]
    assert chosen(batch, scores, 20) == list(range(12))


def test_a_family_is_of_one_sketch_and_of_the_same_other_knobs() -> None:
    sketches = generated_space().sketches[:2]
    schedules = [Schedule.of(s, stages=2, group_m=g) for g in (1, 2) for s in sketches]
    batch = ScheduleBatch.of(sketches, schedules)

    assert chosen(batch, -np.arange(4) / 1000, 3) == [0, 1, 2]


def test_ties_are_looked_for_among_families() -> None:
    # All but the last family have the same score: more rows than are looked through, but fewer families.
    n = 2
    stages = (2, 3, 4, 5, 6, 7)
    schedules = [
        Schedule.of(SKETCH, block_m=64, block_n=64, block_k=k, stages=s, **seldom)
        for k in (32, 64)
        for s in stages
        for seldom in SELDOM
    ]
    batch = ScheduleBatch.of((SKETCH,), schedules)
    scores = np.where(np.arange(36) < 33, 0.0, -0.5)

    assert DEPTH * n < 33
    assert chosen(batch, scores, n) == [0, 33]
