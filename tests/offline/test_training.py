"""What a model is trained on."""

from pathlib import Path

import pytest

import autosched
from autosched.errors import InvalidInputError, LogNotFoundError, ModelMismatchError
from autosched.features import FEATURES, SCHEMA
from autosched.offline.training import make_dataset, run_training
from autosched.sketches.builders import gemm
from tests.offline.tables import contents, record, schedules, table, write

OP, OTHER = gemm(512, 512, 512), gemm(256, 256, 256)


def test_counts() -> None:
    first, second = schedules(OP, 2)
    rows = [
        *table(OTHER, [10.0, 11.0, None, 13.0]),
        record(OP, first, 20.0),
        record(OP, first, 22.0, stratum="retimed"),
        record(OP, second, 30.0, stratum=""),
        record(OP, second, None),
    ]
    training = run_training(contents(rows), recipe="roofline")
    assert training.model.spaces == ("M256.N256.K256", "M512.N512.K512")
    data = training.to_dict()
    assert data.pop("seconds") > 0
    assert data.pop("digest") == training.model.digest
    assert data == {
        "format": 1,
        "model": "",
        "recipe": "roofline",
        "workloads": 2,
        "records": 6,
        "rows": 5,
        "failed": 2,
        "skipped": 0,
        "damaged": 0,
        "features": len(FEATURES),
        "schema": SCHEMA,
    }


def test_times_of_one_schedule_are_pooled_into_the_stratum_it_had_before() -> None:
    (schedule,) = schedules(OP, 1)
    retimed = [record(OP, schedule, t, stratum="retimed") for t in (12.0, 14.0)]
    data = make_dataset([*retimed, record(OP, schedule, 10.0)])
    assert data.strata == ["uniform"]
    single = make_dataset([record(OP, schedule, 12.0)])
    assert data.y == pytest.approx(single.y), "the median of 10, 12 and 14"


def test_train_from_files(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", table(OP, [10.0, 12.0, 14.0]))
    write(tmp_path / "deep.jsonl", table(OTHER, [5.0, 6.0]))
    model = autosched.train(tmp_path, recipe="random", seed=3)
    assert model.spaces == ("M256.N256.K256", "M512.N512.K512")
    model.save(tmp_path / "model.json")
    loaded = autosched.load_model(tmp_path / "model.json")
    assert (loaded.recipe, loaded.digest, loaded.spaces) == ("random", model.digest, model.spaces)
    one = autosched.train([tmp_path / "a.jsonl"], recipe="random")
    assert one.spaces == ("M512.N512.K512",)


def test_nothing_to_learn_from(tmp_path: Path) -> None:
    foreign = record(OP, schedules(OP, 1)[0], 5.0, device="T1000")
    with pytest.raises(InvalidInputError, match="none of 3 trials can be learnt from") as caught:
        autosched.train(contents([*table(OP, [None, None]), foreign]))
    assert "2 failed, 1 this version cannot rebuild" in caught.value.message
    with pytest.raises(LogNotFoundError):
        autosched.train(tmp_path)


def test_bad_arguments_are_refused_before_logs_are_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="recipe 'oracle'"):
        autosched.train(tmp_path / "nothing", recipe="oracle")
    with pytest.raises(InvalidInputError, match="seed -1"):
        autosched.train(tmp_path / "nothing", seed=-1)
    with pytest.raises(ModelMismatchError):
        autosched.load_model(tmp_path / "nothing")
