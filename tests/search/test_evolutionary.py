"""Evolutionary search: better than random, exact on tables, within its number of candidates."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.errors import InvalidInputError
from autosched.search import Evolutionary
from autosched.search.strategy import draw_distinct
from autosched.sketches.schedule import ScheduleBatch
from tests.search.conftest import family_bests, generated_space, knob_score, plain_space, small_space, table_space


class Counted:
    """A score that counts the rows it was asked for."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, batch: ScheduleBatch) -> np.ndarray:
        self.rows += len(batch)
        return knob_score(batch)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_beats_random_search_at_equally_many_scored_rows(seed: int) -> None:
    space = generated_space()
    score = Counted()
    evolved = Evolutionary(space, population=64, generations=20).propose(8, score, np.random.default_rng(seed), set())
    drawn = draw_distinct(space, score.rows, np.random.default_rng(seed), set())

    assert score.rows <= 64 * 22
    assert knob_score(evolved).mean() > np.sort(knob_score(drawn))[::-1][:8].mean() + 0.1
    assert (np.diff(knob_score(evolved)) <= 0).all()


def test_it_finds_the_best_schedule_of_the_space_within_an_annealing_rounds_candidates() -> None:
    space = generated_space()
    every = plain_space().enumerate(np.random.default_rng(0))  # the score asks for no knob that seldom matters
    best = max(float(knob_score(chunk).max()) for chunk in every if len(chunk))
    score = Counted()
    found = Evolutionary(space).propose(1, score, np.random.default_rng(0), set())

    assert knob_score(found)[0] == pytest.approx(best, abs=1e-9)
    assert score.rows <= 63_488 <= 128 * 500


def test_on_a_table_it_is_the_argmax() -> None:
    space = table_space(rows=300)
    rows, scores = space.members(), knob_score(space.members())
    best = family_bests(rows, scores)
    known = rows.take(np.flatnonzero(scores > knob_score(best)[3] + 1e-9))  # the best three and what ties with them
    chosen = Evolutionary(space, share=1.0).propose(10, knob_score, np.random.default_rng(0), set(known.keys()))

    assert chosen.keys() == best.keys()[3:13]


def test_a_table_above_the_limit_evolves() -> None:
    space = table_space(rows=300)
    score = Counted()
    chosen = Evolutionary(space, population=16, generations=10).propose(4, score, np.random.default_rng(0), set())

    assert score.rows <= 16 * 12
    assert knob_score(chosen)[0] >= np.quantile(knob_score(space.members()), 0.97)


def test_the_first_generation_holds_the_best_measured_schedules() -> None:
    space = generated_space()
    measured = space.sample(np.random.default_rng(5), 40)
    strategy = Evolutionary(space, population=32, generations=1)
    strategy.observe(measured, np.linspace(100.0, 139.0, 40))
    asked: list[ScheduleBatch] = []

    def recording(batch: ScheduleBatch) -> np.ndarray:
        asked.append(batch)
        return knob_score(batch)

    strategy.propose(4, recording, np.random.default_rng(0), set())

    assert asked[0].keys()[:8] == measured.keys()[:8]
    assert not set(asked[0].keys()) & set(measured.keys()[8:])


def test_children_cross_within_a_sketch() -> None:
    space = small_space()
    parents = space.sample(np.random.default_rng(0), 64)
    children = Evolutionary(space, population=64)._children(np.random.default_rng(1), parents)

    assert space.contains(children).all()
    assert len(children) == 64


@pytest.mark.parametrize("wrong", [{"population": 1}, {"generations": 0}, {"share": 0.0}, {"share": 1.5}])
def test_what_cannot_search_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=str(next(iter(wrong.values())))):
        Evolutionary(generated_space(), **wrong)  # type: ignore[arg-type]
