"""The validity model: its silence, its calibration on recorded failures, and its time."""

import numpy as np
import pytest

from autosched.errors import InvalidInputError
from autosched.features import COLUMN, FEATURES
from autosched.models import Dataset, Outcomes, ValidityModel, grouped_folds
from autosched.recorded import recorded_devices, recorded_log

pytest.importorskip("xgboost")

REGISTERS = COLUMN["register_fraction"]


@pytest.fixture(scope="module")
def recorded() -> Outcomes:
    """All recorded trials that were drawn from the whole space, those that nothing could run included."""
    records = [r for device in recorded_devices() for r in recorded_log(device).records if r.stratum == "uniform"]
    return Outcomes.from_records(records)


def test_says_one_until_it_has_seen_both(data: Dataset) -> None:
    x = data.x[:64]
    model = ValidityModel()
    assert np.array_equal(model.predict(x), np.ones(64))
    for ok in (np.ones(64, bool), np.zeros(64, bool)):
        model.fit(x, ok)
        assert np.array_equal(model.predict(x), np.ones(64))
        assert not model.fitted
    model.fit(x[:0], np.zeros(0, bool))
    assert model.predict(x[:0]).shape == (0,)


def test_learns_a_bound_from_few_rows_and_forgets_it(data: Dataset) -> None:
    ok = data.x[:, REGISTERS] < 1.0
    assert 0.2 < ok.mean() < 0.9
    model = ValidityModel()
    model.fit(data.x[:128], ok[:128])
    chance = model.predict(data.x[128:])
    assert chance.dtype == np.float64
    assert ((chance >= 0) & (chance <= 1)).all()
    assert np.mean((chance > 0.5) == ok[128:]) > 0.95
    model.fit(data.x[:128], ~ok[:128])
    assert np.mean((model.predict(data.x[128:]) > 0.5) == ~ok[128:]) > 0.95
    model.fit(data.x[:2], np.ones(2, bool))
    assert np.array_equal(model.predict(data.x), np.ones(len(data)))


def test_beats_the_base_rate_on_recorded_workloads_held_out(recorded: Outcomes) -> None:
    chance = np.empty(len(recorded))
    base_rate = np.empty(len(recorded))
    for rows in grouped_folds(recorded.spaces, 5):
        seen = np.setdiff1d(np.arange(len(recorded)), rows)
        model = ValidityModel()
        model.fit(recorded.x[seen], recorded.ok[seen])
        chance[rows], base_rate[rows] = model.predict(recorded.x[rows]), recorded.ok[seen].mean()
    brier, constant = (float(np.mean((p - recorded.ok) ** 2)) for p in (chance, base_rate))
    assert 0.6 < recorded.ok.mean() < 0.99
    assert brier < 0.5 * constant
    assert np.mean((chance > 0.5) == recorded.ok) > recorded.ok.mean() + 0.05


def test_learns_within_a_run(recorded: Outcomes) -> None:
    spaces = np.array(recorded.spaces)
    gain = []
    for space in np.unique(spaces):
        rows = np.flatnonzero(spaces == space)
        run, rest = rows[:64], rows[64:]
        model = ValidityModel()
        model.fit(recorded.x[run], recorded.ok[run])
        constant = np.mean((recorded.ok[run].mean() - recorded.ok[rest]) ** 2)
        gain.append(constant - np.mean((model.predict(recorded.x[rest]) - recorded.ok[rest]) ** 2))
    assert np.mean(gain) > 0.03


def test_starts_from_other_workloads_and_learns_on(recorded: Outcomes) -> None:
    spaces = np.array(recorded.spaces)
    rows = spaces == spaces[0]
    base = ValidityModel()
    base.fit(recorded.x[~rows], recorded.ok[~rows])
    before = base.predict(recorded.x[rows])
    model = ValidityModel(base=base)
    assert np.array_equal(model.predict(recorded.x[rows]), before)
    surprise = recorded.x[rows][recorded.ok[rows]][:40]
    model.fit(surprise, np.zeros(len(surprise), bool))
    assert (model.predict(surprise) < 0.5).all()
    assert np.array_equal(base.predict(recorded.x[rows]), before)
    model.fit(surprise[:0], np.zeros(0, bool))
    assert np.array_equal(model.predict(recorded.x[rows]), before)


def test_is_the_same_again(data: Dataset) -> None:
    ok = data.x[:, REGISTERS] < 1.0
    chances = []
    for _ in range(2):
        model = ValidityModel(seed=3)
        model.fit(data.x[:200], ok[:200])
        chances.append(model.predict(data.x))
    assert np.array_equal(chances[0], chances[1])


def test_refuses_rows_that_do_not_match(data: Dataset) -> None:
    with pytest.raises(InvalidInputError, match="3 rows of features with 2 outcomes"):
        ValidityModel().fit(data.x[:3], np.ones(2, bool))
    with pytest.raises(InvalidInputError, match="columns"):
        ValidityModel().predict(np.zeros((1, len(FEATURES) + 1), np.float32))
