"""The judge of search quality: the oracle's best is the space's, its figures follow by hand, a short run prints."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from autosched.features import roofline_us
from autosched.models import RooflineModel
from autosched.models.boosting import TreeSettings
from autosched.models.xgboost_model import XGBoostSettings
from autosched.recorded import recorded_measurer
from autosched.sketches.builders import gemm
from autosched.sketches.target import PRESETS
from benchmarks import search_quality
from benchmarks.search_quality import Oracle, Run, fraction, one_round, over_workloads, recorded_ops, trials_table
from tests.tuning import plain_sketches

OP = gemm(64, 512, 512)
TARGET = PRESETS["H200"]


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(OP, TARGET, RooflineModel(), plain_sketches(OP, TARGET)[::6])


def test_the_best_is_that_of_the_whole_space(oracle: Oracle) -> None:
    scores = np.concatenate([oracle.score(c) for c in oracle.space.enumerate(np.random.default_rng(1))])

    assert oracle.size == len(scores)
    assert oracle.best_scores.tolist() == np.sort(scores)[::-1][:16].tolist()
    assert oracle.best_us == pytest.approx(roofline_us(OP, TARGET) * np.exp(-scores.max()))


def test_a_round_is_judged_by_the_space(oracle: Oracle) -> None:
    annealed, drawn = (one_round(oracle, strategy, 0) for strategy in ("annealing", "random"))

    assert annealed.best == pytest.approx(1.0, abs=1e-3)
    assert 0.5 < drawn.best <= 1.0
    assert annealed.mean >= 0.99
    assert 0 < annealed.scored <= 64_000
    assert drawn.scored <= 64_000


def test_workloads_weigh_the_same_whatever_their_seeds() -> None:
    keys, values = ["a", "a", "a", "b"], [1.0, 1.0, 1.0, 0.25]
    mean, plain = (over_workloads(keys, values, geometric=geometric) for geometric in (True, False))

    assert (mean.mean, mean.low, mean.high) == pytest.approx((0.5, 0.25, 1.0))
    assert (plain.mean, plain.low, plain.high) == pytest.approx((0.625, 0.25, 1.0))


def test_a_fraction_is_that_of_the_prefix() -> None:
    curve = [None, 20.0, 20.0, 10.0]

    assert [fraction(8.0, curve, n) for n in (2, 4, 64)] == [0.4, 0.8, 0.8]
    assert np.isnan(fraction(8.0, curve, 1))


def test_annealing_is_compared_with_the_others_by_workload_and_seed() -> None:
    runs = [
        Run(key, strategy, 0, {8: 0.1, 16: value, 64: 1.0}, 2.0)
        for key, strategy, value in (
            ("a", "annealing", 0.9),
            ("b", "annealing", 0.6),
            ("a", "tpe", 0.8),
            ("b", "tpe", 0.4),
        )
    ]
    first, second = (line.split("|") for line in trials_table(runs).splitlines()[2:])

    assert first[3].strip() == "0.7348 [0.6000, 0.9000]"
    assert first[5].strip() == ""
    assert second[5].strip() == "1.2990 [1.1250, 1.5000]"
    assert second[6].strip() == "1.0000 [1.0000, 1.0000]"


def test_workloads_are_chosen_by_their_extents() -> None:
    records = recorded_measurer().records

    assert [op.key().partition("/")[0] for op in recorded_ops(records, ["64,4096,14336"])] == ["M64,N4096,K14336"]
    assert len(recorded_ops(records, None)) == len({r.key for r in records})


@pytest.mark.slow
def test_a_short_run_prints_one_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = XGBoostSettings(mean=TreeSettings(10, 4, 0.3), fold=TreeSettings(2, 2, 0.3))
    monkeypatch.setattr(search_quality, "SURROGATE", small)
    for module in ("autosched.tuner", "autosched.search.space"):  # a space that is listed in a second
        monkeypatch.setattr(f"{module}.derive", lambda op, target: plain_sketches(op, target)[::6])
    arguments = ["search_quality", "--shape", "64,4096,14336", "--strategies", "random,grid", "--seeds", "1", "--json"]
    monkeypatch.setattr(sys, "argv", arguments)
    search_quality.main()
    data = json.loads(capsys.readouterr().out)

    assert {r["strategy"] for r in data["runs"]} == {"random", "grid"}
    assert [r["strategy"] for r in data["rounds"]] == ["random"]
    assert all(0.0 < f <= 1.0 for r in data["runs"] for f in r["fractions"].values())
