"""The learned models learn: on workloads held out, and within a run."""

import numpy as np
import pytest

from autosched.errors import InvalidInputError
from autosched.models import Dataset, Guided, create, grouped_folds, score_model
from autosched.models.metrics import spearman
from autosched.models.nearness import MOST_ROWS

pytest.importorskip("xgboost")


@pytest.fixture(scope="module")
def held_out(data: Dataset) -> dict[str, np.ndarray]:
    """Scores of every recipe for each space, by models that have not seen it."""
    scores = {}
    for recipe in ("random", "roofline", "ridge", "forest", "xgboost"):
        scores[recipe] = np.empty(len(data))
        for rows in grouped_folds(data.spaces, 5):
            model = create(recipe, 0)
            model.fit(data.take(np.setdiff1d(np.arange(len(data)), rows)))
            assert not set(model.spaces) & {data.spaces[i] for i in rows}
            scores[recipe][rows] = model.score(data.x[rows])
    return scores


def test_learned_models_beat_random_and_roofline_on_workloads_they_have_not_seen(
    data: Dataset, held_out: dict[str, np.ndarray]
) -> None:
    scores = {recipe: score_model(data, s, resamples=50) for recipe, s in held_out.items()}
    assert scores["random"].pairwise_accuracy == pytest.approx(0.5, abs=0.03)
    assert scores["roofline"].pairwise_accuracy > 0.7
    assert scores["xgboost"].pairwise_accuracy > scores["roofline"].pairwise_accuracy + 0.02
    assert scores["xgboost"].top[8] > max(scores["roofline"].top[8], scores["random"].top[8])
    assert scores["xgboost"].top[8] > 0.95
    for recipe in ("ridge", "forest"):
        assert scores[recipe].pairwise_accuracy > scores["roofline"].pairwise_accuracy, recipe


def test_spread_tells_sure_from_unsure(data: Dataset) -> None:
    rows = np.arange(len(data)) >= 200
    model = create("xgboost", 0)
    model.fit(data.take(rows))
    mean, spread = model.predict(data.x[:200])
    error = data.y[:200] - mean
    error = np.abs(error - error.mean())
    assert 0.3 < error.mean() / (spread.mean() * np.sqrt(2 / np.pi)) < 3.0


def test_guided_learns_what_the_base_got_wrong(data: Dataset) -> None:
    rows = data.groups[data.workloads[0]]
    x, y = data.x[rows], data.y[rows]
    base = create("xgboost", 0)
    base.fit(data.take(np.setdiff1d(np.arange(len(data)), rows)))
    frozen = base.score(x)
    for guided in (Guided(base), Guided()):
        before = np.abs(guided.score(x) - y)[100:].mean()
        order_before = spearman(guided.score(x)[100:], y[100:])
        guided.refit(x[:100], y[:100])
        assert np.abs(guided.score(x) - y)[100:].mean() < 0.8 * before
        assert spearman(guided.score(x)[100:], y[100:]) > order_before - 0.01
        mean, spread = guided.predict(x)
        assert np.array_equal(mean, guided.score(x))
        assert spread.shape == mean.shape
    assert np.array_equal(base.score(x), frozen)


def test_guided_with_few_measurements_corrects_the_level_alone(data: Dataset) -> None:
    guided = Guided()
    before = guided.score(data.x)
    guided.refit(data.x[:3], before[:3] + 0.5)
    assert guided.score(data.x) == pytest.approx(before + 0.5, abs=0.05)
    guided.refit(data.x[:0], before[:0])
    assert np.array_equal(guided.score(data.x), before)


def test_guided_does_not_depend_on_the_order_of_rows(data: Dataset) -> None:
    x, y = data.x[:200], data.y[:200]
    guided = Guided()
    guided.refit(x[:70], y[:70])
    order = np.random.default_rng(0).permutation(200)
    assert np.array_equal(guided.score(x)[order], guided.score(x[order]))
    assert guided.predict(x)[1][order] == pytest.approx(guided.predict(x[order])[1], rel=1e-6)
    assert np.array_equal(guided.score(x[:3]), guided.score(x)[:3])


def test_spread_of_guided_shrinks_where_the_run_has_measured(data: Dataset) -> None:
    rows = data.groups[data.workloads[0]]
    x = data.x[rows]
    base = create("xgboost", 0)
    base.fit(data.take(np.setdiff1d(np.arange(len(data)), rows)))
    guided = Guided(base)
    assert np.array_equal(guided.predict(x)[1], base.predict(x)[1])
    guided.refit(x[:100], base.score(x[:100]))
    share = guided.predict(x)[1] / base.predict(x)[1]
    assert share[:100].max() < 0.6
    assert (share < 1).all()
    assert share[100:].mean() > 1.3 * share[:100].mean()
    guided.refit(x[:100], base.score(x[:100]) + np.where(np.arange(100) % 2, 1.0, -1.0))
    assert (guided.predict(x)[1] > 1.5 * base.predict(x)[1] * share).all()


def test_spread_of_guided_is_that_of_its_errors(data: Dataset) -> None:
    within = []
    for workload in data.groups:
        rows = data.groups[workload]
        x, y = data.x[rows], data.y[rows]
        base = create("xgboost", 0)
        base.fit(data.take(np.setdiff1d(np.arange(len(data)), rows)))
        guided = Guided(base)
        guided.refit(x[:50], y[:50])
        mean, spread = guided.predict(x[50:])
        within.append(np.mean(np.abs(y[50:] - mean) < 2 * spread))
    assert 0.85 < np.mean(within) < 0.999


def test_the_spread_holds_the_last_rows_of_a_long_run(data: Dataset) -> None:
    guided = Guided()
    guided.refit(data.x, data.y)
    spread = guided.predict(data.x)[1] / guided.base.predict(data.x)[1]
    assert spread[-MOST_ROWS:].mean() < 0.7 * spread[:-MOST_ROWS].mean()


def test_guided_refuses_labels_of_failures(data: Dataset) -> None:
    with pytest.raises(InvalidInputError, match="failures"):
        Guided().refit(data.x[:2], np.array([0.1, np.nan]))
    with pytest.raises(InvalidInputError, match="2 rows with 1"):
        Guided().refit(data.x[:2], np.array([0.1]))


def test_an_unfitted_model_says_so(data: Dataset, tmp_path: object) -> None:
    with pytest.raises(InvalidInputError, match="not fitted"):
        create("xgboost", 0).score(data.x)
    with pytest.raises(InvalidInputError, match="not fitted"):
        create("xgboost", 0).save(f"{tmp_path}/model")
    with pytest.raises(InvalidInputError, match="unknown recipe 'oracle'"):
        create("oracle", 0)
