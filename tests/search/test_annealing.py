"""Annealing: better than random, exact on tables, spread over tiles, and with chains that last."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.errors import InvalidInputError
from autosched.search import Annealing, RandomSearch
from autosched.search.annealing import POLISH
from autosched.search.strategy import draw_distinct
from autosched.sketches.schedule import ScheduleBatch
from tests.search.conftest import family_bests, generated_space, knob_score, plain_space, table_space


class Counted:
    """A score that counts the rows and calls it was asked for."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.rows = 0
        self.calls = 0

    def __call__(self, batch: ScheduleBatch) -> np.ndarray:
        self.rows += len(batch)
        self.calls += 1
        return self.scale * knob_score(batch)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_beats_random_search_at_equally_many_scored_rows(seed: int) -> None:
    space = generated_space()
    score = Counted()
    annealed = Annealing(space, chains=32, steps=60).propose(8, score, np.random.default_rng(seed), set())
    drawn = draw_distinct(space, score.rows, np.random.default_rng(seed), set())
    best = np.sort(knob_score(drawn))[::-1][:8]

    assert score.rows <= 32 * (63 + POLISH)
    assert knob_score(annealed)[0] >= best[0]
    assert knob_score(annealed).mean() > best.mean() + 0.1


def test_it_finds_the_best_schedule_of_the_space() -> None:
    space = generated_space()
    every = plain_space().enumerate(np.random.default_rng(0))  # the score asks for no knob that seldom matters
    best = max(float(knob_score(chunk).max()) for chunk in every if len(chunk))
    found = Annealing(space).propose(1, knob_score, np.random.default_rng(0), set())

    assert knob_score(found)[0] == pytest.approx(best, abs=1e-9)


def test_the_scale_of_the_scores_does_not_matter() -> None:
    one, other = (
        Annealing(generated_space(), steps=50).propose(8, Counted(scale), np.random.default_rng(0), set())
        for scale in (1.0, 2.0**-10)
    )

    assert one.keys() == other.keys()


def test_on_a_table_it_is_the_argmax() -> None:
    space = table_space(rows=300)
    score = Counted()
    best = family_bests(space.members(), knob_score(space.members()))

    chosen = Annealing(space, share=1.0).propose(10, score, np.random.default_rng(0), set())
    after = Annealing(space).propose(1, score, np.random.default_rng(0), set(best.take(np.arange(5)).keys()))

    assert chosen.keys() == best.take(np.arange(10)).keys()
    ranked = space.members().take(np.argsort(-knob_score(space.members()), kind="stable")).keys()
    assert after.keys() == [next(key for key in ranked if key not in set(best.keys()[:5]))]
    assert score.calls == 2
    assert score.rows == 600


def test_a_table_above_the_limit_is_annealed() -> None:
    space = table_space(rows=300)
    score = Counted()
    chosen = Annealing(space, chains=8, steps=30).propose(4, score, np.random.default_rng(0), set())

    assert score.rows <= 8 * (33 + POLISH)
    assert knob_score(chosen)[0] >= np.quantile(knob_score(space.members()), 0.97)


def cells(batch: ScheduleBatch) -> list[tuple[int, ...]]:
    names = ("block_m", "block_n", "block_k")
    return list(zip(batch.sketch_index.tolist(), *(batch.column(x).tolist() for x in names), strict=True))


@pytest.mark.parametrize(("share", "most"), [(0.125, 2), (0.01, 1)])
def test_no_tile_has_more_than_its_share(share: float, most: int) -> None:
    batch = Annealing(generated_space(), share=share).propose(16, knob_score, np.random.default_rng(0), set())
    free = Annealing(generated_space(), share=1.0).propose(16, knob_score, np.random.default_rng(0), set())
    largest, unlimited = (max(cells(b).count(cell) for cell in cells(b)) for b in (batch, free))

    assert len(batch) == 16
    assert largest <= most < unlimited
    assert (np.diff(knob_score(batch)) <= 0).all()


def test_chains_persist_between_rounds() -> None:
    space = generated_space()
    strategy = Annealing(space, steps=60)
    first = knob_score(strategy.propose(1, knob_score, np.random.default_rng(0), set()))[0]
    starts: list[np.ndarray] = []

    def recording(batch: ScheduleBatch) -> np.ndarray:
        starts.append(knob_score(batch))
        return knob_score(batch)

    strategy.propose(1, recording, np.random.default_rng(1), set())
    fresh, ends = starts[0], starts[1]

    assert len(ends) == 128
    assert ends.max() >= first - 1.0
    assert np.median(ends) > np.quantile(fresh, 0.95)


def test_a_round_starts_from_the_best_measured_schedules() -> None:
    space = generated_space()
    measured = space.sample(np.random.default_rng(5), 40)
    latencies = np.linspace(100.0, 139.0, 40)
    latencies[0] = np.nan
    seen: list[bytes] = []

    def recording(batch: ScheduleBatch) -> np.ndarray:
        seen.extend(batch.keys())
        return knob_score(batch)

    strategy = Annealing(space, steps=1)
    strategy.observe(measured, latencies)
    strategy.propose(1, recording, np.random.default_rng(0), set())

    assert set(measured.take(np.arange(1, 33)).keys()) <= set(seen)
    assert measured.keys()[0] not in seen
    assert measured.keys()[33] not in seen


def test_it_stops_when_nothing_changes() -> None:
    score = Counted(scale=0.0)
    Annealing(generated_space(), steps=500).propose(4, score, np.random.default_rng(0), set())

    assert score.calls < 60


def test_random_search_does_not_look_at_scores() -> None:
    score = Counted()
    RandomSearch(generated_space()).propose(8, score, np.random.default_rng(0), set())

    assert score.calls == 0


def test_bad_arguments() -> None:
    space = generated_space()
    batch = space.sample(np.random.default_rng(0), 3)

    with pytest.raises(InvalidInputError, match="0 chains"):
        Annealing(space, chains=0)
    with pytest.raises(InvalidInputError, match="share = 0"):
        Annealing(space, share=0.0)
    with pytest.raises(InvalidInputError, match="2,"):
        Annealing(space).observe(batch, np.array([1.0, 2.0]))
    with pytest.raises(InvalidInputError, match="other sketches"):
        Annealing(space).observe(ScheduleBatch(space.sketches[:1], batch.values), np.ones(3))


def test_of_schedules_with_the_same_score_the_first_comes_before_others_nearly_as_good() -> None:
    space = table_space(rows=300)

    def pairs(batch: ScheduleBatch) -> np.ndarray:
        rows = {key: i for i, key in enumerate(space.members().keys())}
        return np.array([-(rows[key] // 2) for key in batch.keys()], np.float64)  # noqa: SIM118 - not a dict

    def alike(batch: ScheduleBatch) -> np.ndarray:
        return np.where(pairs(batch) > -100, 1.0, 0.0)

    chosen = Annealing(space, share=1.0).propose(8, pairs, np.random.default_rng(0), set())
    after = Annealing(space, share=1.0).propose(2, pairs, np.random.default_rng(0), set(chosen.keys()))
    best = Annealing(space, share=1.0).propose(8, alike, np.random.default_rng(0), set())

    assert pairs(chosen).tolist() == [0, -1, -2, -3, -4, -5, -6, -7]
    assert pairs(after).tolist() == [0, -1]
    assert alike(best).tolist() == [1.0] * 8
