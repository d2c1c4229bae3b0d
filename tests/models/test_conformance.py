"""What every recipe must do. A new recipe is tested by being in ``RECIPES``."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from autosched.errors import InvalidInputError, ModelMismatchError
from autosched.models import RECIPES, CostModel, Dataset, ValidityModel, create, files, load

pytestmark = pytest.mark.parametrize("recipe", RECIPES)


def fitted(recipe: str, data: Dataset, seed: int = 0) -> CostModel:
    model = create(recipe, seed)
    model.fit(data)
    return model


def test_predicts_a_mean_and_a_spread_for_each_row(recipe: str, data: Dataset) -> None:
    model = fitted(recipe, data)
    assert isinstance(model, CostModel)
    for n in (0, 1, 128):
        mean, spread = model.predict(data.x[:n])
        assert mean.shape == spread.shape == (n,)
        assert mean.dtype == spread.dtype == np.float64
        assert np.isfinite(mean).all()
        assert (spread > 0).all()
        assert np.array_equal(model.score(data.x[:n]), mean)


def test_is_the_same_for_a_seed_and_in_any_order(recipe: str, data: Dataset) -> None:
    mean, spread = fitted(recipe, data, seed=7).predict(data.x)
    again = fitted(recipe, data, seed=7)
    assert np.array_equal(again.score(data.x), mean)
    assert np.array_equal(again.score(data.x[::-1].copy()), mean[::-1])
    assert np.array_equal(again.predict(data.x)[1], spread)


def test_is_the_same_after_saving_and_loading(recipe: str, data: Dataset, tmp_path: Path) -> None:
    model = fitted(recipe, data, seed=3)
    model.save(tmp_path / "model")
    for again in (load(tmp_path / "model"), RECIPES[recipe].load(tmp_path / "model")):
        assert np.array_equal(again.score(data.x), model.score(data.x))
        assert np.array_equal(again.predict(data.x)[1], model.predict(data.x)[1])
        assert (again.recipe, again.digest, again.spaces) == (recipe, data.digest(), tuple(sorted(set(data.spaces))))
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_file_holds_what_is_known_of_failures_or_nothing(recipe: str, data: Dataset, tmp_path: Path) -> None:
    model = fitted(recipe, data)
    model.save(tmp_path / "without")
    assert load(tmp_path / "without").validity is None
    model.validity = ValidityModel()
    model.save(tmp_path / "unfitted")
    assert load(tmp_path / "unfitted").validity is None
    model.validity.fit(data.x, data.y < np.median(data.y))
    model.save(tmp_path / "with")
    again = load(tmp_path / "with")
    assert again.validity is not None
    assert np.array_equal(again.validity.predict(data.x), model.validity.predict(data.x))
    assert np.array_equal(again.score(data.x), model.score(data.x))


def test_refuses_a_damaged_or_foreign_file(recipe: str, data: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "model"
    fitted(recipe, data).save(path)
    whole = path.read_bytes()
    content = files.read(path)
    other = next(name for name in RECIPES if name != recipe)
    for damaged, word in (
        (whole[: len(whole) // 2], "truncated"),
        (b"", "truncated"),
        (whole.replace(b'"seed":0', b'"seed":1'), "checksum"),
        (b"\x80\x04]q\x00.", "no model file"),
    ):
        path.write_bytes(damaged)
        for read in (load, RECIPES[recipe].load):
            with pytest.raises(ModelMismatchError, match=word):
                read(path)
    for changes, word in (
        ({"schema": "1-0000000000000000"}, "schema"),
        ({"format": 99}, "format"),
        ({"recipe": other}, "recipe"),
    ):
        files.write(path, msgspec.structs.replace(content, **changes))
        with pytest.raises(ModelMismatchError, match=word):
            RECIPES[recipe].load(path)
    with pytest.raises(ModelMismatchError, match="absent"):
        load(tmp_path / "absent")


def test_refuses_features_of_another_width_and_no_rows(recipe: str, data: Dataset) -> None:
    model = fitted(recipe, data)
    with pytest.raises(InvalidInputError, match="columns"):
        model.predict(data.x[:, 1:])
    with pytest.raises(InvalidInputError, match="no rows"):
        create(recipe, 0).fit(data.take(np.arange(0)))


def test_learns_from_one_row(recipe: str, data: Dataset) -> None:
    mean, spread = fitted(recipe, data.take(np.arange(1))).predict(data.x[:5])
    assert np.isfinite(mean).all()
    assert np.isfinite(spread).all()
