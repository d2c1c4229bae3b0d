"""TPE: learns from what it is told, counts its rejects, and says what it needs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from autosched.errors import UnsupportedError
from autosched.search import STRATEGIES
from tests.search.conftest import generated_space, knob_score, table_space


def test_without_optuna_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("autosched.search.tpe.find_spec", lambda name: None if name == "optuna" else found(name))
    with pytest.raises(UnsupportedError, match=r"pip install autosched\[tpe\]"):
        STRATEGIES["tpe"](generated_space())


def test_the_table_of_strategies_does_not_load_optuna() -> None:
    code = "import sys, autosched.search.tpe; print('optuna' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


def test_it_learns_from_rows_that_it_did_not_propose(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    space = generated_space()
    told, blind = (STRATEGIES["tpe"](space) for _ in range(2))
    rows = space.sample(np.random.default_rng(3), 200)
    told.observe(rows, np.exp(-0.3 * knob_score(rows)))
    means = [
        float(np.median(knob_score(strategy.propose(16, knob_score, np.random.default_rng(0), set()))))
        for strategy in (told, blind)
    ]

    assert means[0] > np.quantile(knob_score(rows), 0.9)
    assert means[0] > means[1] + 2.0
    assert capfd.readouterr() == ("", "")


def test_rejected_draws_are_counted_and_not_proposed() -> None:
    pytest.importorskip("optuna")
    from autosched.search import TPE

    strategy = TPE(generated_space())
    batch = strategy.propose(64, knob_score, np.random.default_rng(0), set())

    assert len(batch) == 64
    assert strategy.rejected > 5
    assert generated_space().contains(batch).all()


def test_in_a_table_it_is_told_of_the_row_that_it_landed_on() -> None:
    pytest.importorskip("optuna")
    from autosched.search import TPE

    space = table_space(rows=300)
    late: list[float] = []
    for seed in range(2):
        strategy = TPE(space)
        seen: set[bytes] = set()
        for r in range(8):
            batch = strategy.propose(8, knob_score, np.random.default_rng([seed, r]), seen)
            seen.update(batch.keys())
            strategy.observe(batch, np.exp(-0.3 * knob_score(batch)))
            late += knob_score(batch).tolist() if r >= 4 else []
        assert strategy.rejected == 0

    assert np.mean(late) > np.quantile(knob_score(space.members()), 0.6)
