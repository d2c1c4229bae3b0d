"""Figures against values worked out by hand."""

import numpy as np
import pytest

from autosched.features import FEATURES
from autosched.models import Dataset
from autosched.models.metrics import bootstrap, geometric_mean, mean
from autosched.offline.figures import Judge, interval, log_curve

LATENCIES = {"one": [1.0, 2.0, 4.0], "two": [5.0, 10.0]}


def dataset() -> Dataset:
    """Two workloads, each in a space of its own; roofline time 1."""
    names = [w for w, times in LATENCIES.items() for _ in times]
    n = len(names)
    return Dataset(
        x=np.zeros((n, len(FEATURES)), np.float32),
        y=-np.log([t for times in LATENCIES.values() for t in times]),
        spaces=names,
        keys=names,
        devices=["H200"] * n,
        strata=["uniform"] * n,
        noise=np.full(n, 0.01),
    )


def test_a_curve_of_different_scores() -> None:
    curve = log_curve(np.array([-1.0, 0.0, -3.0, -2.0]), np.array([1.0, 2.0, 4.0, 3.0]), longest=5)
    assert curve == pytest.approx([-3.0, -2.0, 0.0, 0.0, 0.0])


def test_equal_scores_are_taken_in_random_order() -> None:
    """Of {0, -1, -3}: one drawn has mean -4/3; of the pairs two hold 0 and one is {-1, -3}."""
    y = np.array([-1.0, 0.0, -3.0])
    assert log_curve(y, np.zeros(3), longest=5) == pytest.approx([-4 / 3, -1 / 3, 0.0, 0.0, 0.0])
    assert log_curve(y, np.zeros(3), longest=2) == pytest.approx([-4 / 3, -1 / 3])
    # First -2, then 0, -1 and -3 in random order, of which -3 is no gain.
    y, scores = np.array([-1.0, -2.0, 0.0, -3.0]), np.array([0.0, 1.0, 0.0, 0.0])
    assert log_curve(y, scores, longest=4) == pytest.approx([-2.0, -1.0, -1 / 3, 0.0])


def test_the_expectation_is_the_mean_of_many_orders() -> None:
    rng = np.random.default_rng(0)
    y, scores = rng.normal(size=40), rng.integers(0, 4, 40).astype(float)
    orders = [np.lexsort((rng.random(40), -scores)) for _ in range(20_000)]
    mean_of = np.mean([np.maximum.accumulate(y[o]) - y.max() for o in orders], axis=0)
    assert log_curve(y, scores, longest=40) == pytest.approx(mean_of, abs=0.02)


def test_figures_are_means_over_workloads() -> None:
    """Order of one: 2, 1, 4 (one of three pairs is wrong); of two: the better first."""
    figures = Judge(dataset()).judge(np.array([2.0, 3.0, 1.0, 1.0, 0.0]))
    assert figures.values["top1"] == pytest.approx({"one@H200": 0.5, "two@H200": 1.0})
    assert figures.means["top1"] == pytest.approx(0.5**0.5)
    assert figures.means["top5"] == figures.means["top64"] == 1.0
    assert figures.curve[:3] == pytest.approx([0.5**0.5, 1.0, 1.0])
    assert figures.means["pairwise_accuracy"] == pytest.approx((2 / 3 + 1) / 2)
    assert figures.means["spearman"] == pytest.approx((0.5 + 1) / 2)
    assert figures.means["pairwise_ceiling"] == pytest.approx(1.0)
    assert figures.intervals["top1"] == pytest.approx((0.5, 1.0))
    data = figures.to_dict()
    assert data["top1"] == figures.means["top1"]
    assert data["intervals"]["top1"] == pytest.approx([0.5, 1.0])
    assert data["pairwise_top_quarter"] is None, "the best quarter of three rows is one row"


def test_the_random_baseline_is_an_expectation() -> None:
    """top1 of one: 8^(-1/3), the geometric mean of 1, 1/2, 1/4; of two: 2^(-1/2)."""
    figures = Judge(dataset()).judge(np.zeros(5))
    assert figures.values["top1"] == pytest.approx({"one@H200": 0.5, "two@H200": 0.5**0.5})
    assert figures.means["top1"] == pytest.approx(0.5**0.75)
    assert figures.means["pairwise_accuracy"] == 0.5
    assert figures.means["spearman"] == 0.0
    assert figures.curve[1] == pytest.approx(np.exp((np.log(0.5) / 3 + 0) / 2))


def test_differences_are_paired_by_workload() -> None:
    judge = Judge(dataset())
    good = judge.judge(np.array([3.0, 2.0, 1.0, 1.0, 0.0]))
    bad = judge.judge(np.array([1.0, 2.0, 3.0, 1.0, 0.0]))  # the worst of one first, two the same
    difference = judge.difference(good, bad, "top1")
    assert difference.mean == pytest.approx((0.75 + 0.0) / 2)
    assert (difference.low, difference.high) == pytest.approx((0.0, 0.75))
    assert judge.difference(good, good, "top8").to_dict() == {"mean": 0.0, "low": 0.0, "high": 0.0}


def test_what_has_no_score_has_no_figures() -> None:
    judge = Judge(dataset())
    figures = judge.judge(np.array([np.nan, np.nan, np.nan, 1.0, 0.0]))
    assert np.isnan(figures.values["top1"]["one@H200"])
    assert figures.means["top1"] == 1.0
    nothing = judge.judge(np.full(5, np.nan))
    assert nothing.to_dict()["top1"] is None
    assert np.isnan(nothing.curve).all()


@pytest.mark.parametrize("logs", [False, True])
def test_intervals_are_those_of_the_metrics(logs: bool) -> None:
    rng = np.random.default_rng(0)
    values = {str(i): float(v) for i, v in enumerate(rng.uniform(0.5, 1.0, 12))}
    values["3"] = float("nan")
    space_of = {name: f"space{int(name) % 5}" for name in values}
    expected = bootstrap(values, space_of, geometric_mean if logs else mean, np.random.default_rng(7))
    assert interval(values, space_of, np.random.default_rng(7), logs=logs) == pytest.approx(expected)
    assert np.isnan(interval({"a": float("nan")}, {"a": "s"}, rng)).all()
