"""The running score of a model: pairs counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.models.prequential import FEWEST_PAIRS, Prequential


def test_nothing_is_said_before_the_first_pair() -> None:
    score = Prequential()
    score.add(np.array([0.3]), np.array([-1.0]))
    assert (score.pairs, score.accuracy, score.at_chance) == (0, None, False)


def test_pairs_are_counted_within_a_round_and_beyond_the_noise() -> None:
    score = Prequential()
    # Measured apart: 0-2, 1-2 and not 0-1 (1% apart). Predicted: 0 before 2 right, 1 before 2 wrong.
    score.add(np.array([0.5, 0.1, 0.2]), np.array([-1.0, -1.01, -2.0]))
    assert (score.pairs, score.accuracy) == (2, 0.5)
    score.add(np.array([0.0, 0.0]), np.array([-1.0, -3.0]))  # an equal prediction counts half
    assert (score.pairs, score.accuracy) == (3, 0.5)
    score.add(np.array([1.0, 0.0]), np.array([-1.0, -3.0]))
    assert score.pairs == 4
    assert score.accuracy == pytest.approx(2.5 / 4)


def test_a_model_is_called_no_better_than_chance_only_after_enough_pairs() -> None:
    score, y = Prequential(), np.arange(5, dtype=np.float64)
    while score.pairs + 10 < FEWEST_PAIRS:
        score.add(-y, y)
        assert not score.at_chance
    score.add(-y, y)
    assert score.at_chance
    for _ in range(10):
        score.add(y, y)
    assert not score.at_chance
