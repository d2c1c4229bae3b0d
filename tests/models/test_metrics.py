"""Metrics against values worked out by hand."""

import numpy as np
import pytest

from autosched.errors import InvalidInputError
from autosched.features import FEATURES
from autosched.models import Dataset, grouped_folds, score_model
from autosched.models.metrics import (
    bootstrap,
    geometric_mean,
    mean,
    pairwise_accuracy,
    pairwise_ceiling,
    spearman,
    top_k,
)


def test_top_k() -> None:
    y = np.log(np.array([1.0, 0.5, 0.8, 0.25]))
    scores = np.array([0.0, 3.0, 2.0, 1.0])
    assert top_k(y, scores, 1) == pytest.approx(0.5)
    assert top_k(y, scores, 2) == pytest.approx(0.8)
    assert top_k(y, scores, 3) == pytest.approx(0.8)
    assert top_k(y, scores, 64) == pytest.approx(1.0)


def test_pairwise_accuracy_counts_only_gaps_beyond_twice_the_noise() -> None:
    y = np.array([0.0, 0.1, 1.0])
    noise = np.full(3, 0.1)
    assert pairwise_accuracy(y, np.array([0.0, -1.0, 1.0]), noise) == 1.0
    assert pairwise_accuracy(y, np.array([2.0, -1.0, 1.0]), noise) == 0.5
    assert pairwise_accuracy(y, np.zeros(3), noise) == 0.5
    assert np.isnan(pairwise_accuracy(y, y, np.full(3, 1.0)))


def test_ceiling_is_the_chance_that_noise_did_not_swap_a_pair() -> None:
    y, noise = np.array([0.0, 0.3]), np.array([0.06, 0.08])
    assert pairwise_ceiling(y, noise) == pytest.approx(0.99865, abs=1e-5)  # three standard deviations
    assert np.isnan(pairwise_ceiling(y, noise * 10))


def test_spearman_with_ties() -> None:
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0])) == pytest.approx(0.5)
    assert spearman(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(0.8660254)
    assert np.isnan(spearman(np.ones(3), np.array([0.0, 1.0, 2.0])))


def test_means_leave_out_what_is_not_known() -> None:
    assert mean(np.array([1.0, np.nan, 3.0])) == 2.0
    assert geometric_mean(np.array([1.0, 4.0, np.nan])) == pytest.approx(2.0)
    assert np.isnan(mean(np.array([np.nan])))


def test_bootstrap_draws_spaces_not_workloads() -> None:
    values = {"a": 0.0, "b": 0.0, "c": 1.0}
    same = dict.fromkeys(values, "one")
    rng = np.random.default_rng(0)
    assert bootstrap(values, same, mean, rng) == pytest.approx((1 / 3, 1 / 3))
    apart = {"a": "one", "b": "one", "c": "two"}
    assert bootstrap(values, apart, mean, rng) == (0.0, 1.0)


def dataset(y: list[float], spaces: list[str], keys: list[str], strata: list[str]) -> Dataset:
    n = len(y)
    return Dataset(
        x=np.zeros((n, len(FEATURES)), np.float32),
        y=np.array(y),
        spaces=spaces,
        keys=keys,
        devices=["H200"] * n,
        strata=strata,
        noise=np.full(n, 0.01),
    )


def test_score_weighs_workloads_alike_and_pairs_only_uniform_rows() -> None:
    big, small = ["big"] * 6, ["small"] * 2
    data = dataset(
        y=[0, 1, 2, 3, 4, 5, 0, float(np.log(0.25))],
        spaces=big + small,
        keys=big + small,
        strata=["uniform"] * 4 + ["grid"] * 2 + [""] * 2,
    )
    scores = np.array([0.0, 1.0, 2.0, 3.0, -5.0, -6.0, 0.0, 1.0])
    result = score_model(data, scores, resamples=20)
    assert result.workloads == 2
    assert result.pairwise_accuracy == 0.5  # the first is right throughout, the second's only pair is wrong
    assert result.spearman == pytest.approx(0.0)
    assert result.top[1] == pytest.approx(np.sqrt(np.exp(-2.0) * 0.25))
    assert result.top[64] == 1.0
    flat = result.to_dict()
    assert flat["top1"] == result.top[1]
    assert flat["intervals"]["pairwise_accuracy"] == [0.0, 1.0]


def test_folds_keep_spaces_whole() -> None:
    spaces = [name for name, n in (("a", 5), ("b", 3), ("c", 3), ("d", 1)) for _ in range(n)]
    folds = grouped_folds(spaces, 2)
    assert sorted(np.concatenate(folds)) == list(range(12))
    assert [sorted({spaces[i] for i in fold}) for fold in folds] == [["a", "d"], ["b", "c"]]
    assert len(grouped_folds(spaces, 9)) == 4
    for spaces_of_one, n in ((["a", "a"], 2), (spaces, 1)):
        with pytest.raises(InvalidInputError, match="folds"):
            grouped_folds(spaces_of_one, n)
