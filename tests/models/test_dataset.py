"""Records become rows: pooled, checked, and without the failures."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from autosched.features import extract, roofline_us
from autosched.models import Dataset, Outcomes
from autosched.record import Measurement, Record, Status
from autosched.sketches.builders import gemm
from autosched.sketches.op import Op
from autosched.sketches.schedule import ScheduleBatch
from autosched.sketches.target import PRESETS

H200 = PRESETS["H200"]
MakeBatch = Callable[[Op, int, np.random.Generator], ScheduleBatch]


@pytest.fixture(scope="module")
def op() -> Op:
    return gemm(512, 1024, 2048, epilogue=["relu"])


@pytest.fixture(scope="module")
def batch(op: Op, make_batch: MakeBatch) -> ScheduleBatch:
    batch = make_batch(op, 40, np.random.default_rng(1))
    _, first = np.unique(batch.values, axis=0, return_index=True)
    return batch.take(np.sort(first)[:20])


def record(op: Op, batch: ScheduleBatch, i: int, *samples: float, stratum: str = "", **changes: object) -> Record:
    measurement = Measurement(status=Status.OK, samples_us=samples)
    fields = {
        "key": op.key(),
        "op": op.spec,
        "device": "H200",
        "schedule": batch[i].to_json(),
        "measurement": measurement,
        "stratum": stratum,
    }
    return Record(**{**fields, **changes})  # type: ignore[arg-type]


def through_json(records: list[Record]) -> list[Record]:
    return [msgspec.json.decode(msgspec.json.encode(r), type=Record) for r in records]


def test_rows_hold_features_and_labels_of_their_records(op: Op, batch: ScheduleBatch) -> None:
    records = [record(op, batch, i, 10.0 + i, 11.0 + i, 12.0 + i, stratum="uniform") for i in range(20)]
    data = Dataset.from_records(through_json(records))
    assert len(data) == 20
    assert np.array_equal(data.x, extract(op, H200, batch))
    assert data.y == pytest.approx(np.log(roofline_us(op, H200) / (11.0 + np.arange(20))))
    assert set(data.keys) == {op.key()}
    assert set(data.spaces) == {op.iteration_space()}
    assert set(data.strata) == {"uniform"}
    assert (data.skipped, data.failed) == (0, 0)
    assert (data.noise >= 0.01).all()


def test_passes_of_one_schedule_are_pooled(op: Op, batch: ScheduleBatch) -> None:
    records = [
        record(op, batch, 0, 10.0, stratum="uniform"),
        record(op, batch, 1, 50.0),
        record(op, batch, 0, 20.0, 21.0, 22.0, 23.0, stratum="retimed"),
    ]
    data = Dataset.from_records(records)
    assert len(data) == 2
    assert data.y[0] == pytest.approx(np.log(roofline_us(op, H200) / 21.0))
    assert data.strata == ["uniform", ""]
    assert data.noise[0] > 0.1 > data.noise[1]


def test_failures_never_enter_the_labels(op: Op, batch: ScheduleBatch) -> None:
    good = [record(op, batch, i, 10.0) for i in range(3)]
    bad = [
        record(op, batch, 3 + i, 1.0, measurement=Measurement(status=status, error="x"))
        for i, status in enumerate(Status)
        if status is not Status.OK
    ]
    data = Dataset.from_records([*bad[:4], *good, *bad[4:]])
    assert len(data) == 3
    assert data.failed == len(Status) - 1
    assert np.array_equal(data.x, Dataset.from_records(good).x)
    assert len(Dataset.from_records(bad)) == 0


def test_a_later_line_of_a_trial_replaces_the_earlier(op: Op, batch: ScheduleBatch) -> None:
    wrong = Measurement(status=Status.WRONG_RESULT, error="launch 57 differs")
    records = [
        record(op, batch, 0, 10.0, session="s", trial=0),
        record(op, batch, 1, 11.0, session="s", trial=1),
        record(op, batch, 2, 12.0, session="other", trial=0),
        record(op, batch, 3, 13.0),
        record(op, batch, 4, 14.0),
        record(op, batch, 0, 1.0, session="s", trial=0, measurement=wrong),
    ]
    data = Dataset.from_records(records)
    assert np.array_equal(data.x, extract(op, H200, batch)[1:5])
    assert data.failed == 1
    outcomes = Outcomes.from_records(records)
    assert np.array_equal(outcomes.x, extract(op, H200, batch)[:5])
    assert outcomes.ok.tolist() == [False, True, True, True, True]


def test_outcomes_keep_the_failures_of_the_kernel(op: Op, batch: ScheduleBatch) -> None:
    bad = [
        record(op, batch, i, 1.0, stratum="uniform", measurement=Measurement(status=status, error="x"))
        for i, status in enumerate(Status)
        if status not in (Status.OK, Status.BELOW_FLOOR)
    ]
    skipped = record(op, batch, 18, 10.0, schedule={"sketch": "none of this version"})
    unbelieved = record(op, batch, 19, 1.0, measurement=Measurement(status=Status.BELOW_FLOOR, error="x"))
    outcomes = Outcomes.from_records(through_json([*bad, record(op, batch, 15, 10.0), skipped, unbelieved]))
    assert len(outcomes) == len(Status) - 1
    assert outcomes.ok.tolist() == [False] * (len(Status) - 2) + [True]
    assert np.array_equal(outcomes.x, extract(op, H200, batch)[[*range(1, len(Status) - 1), 15]])
    assert outcomes.spaces == [op.iteration_space()] * len(outcomes)
    assert outcomes.strata == ["uniform"] * (len(Status) - 2) + [""]
    assert outcomes.skipped == 1
    assert Outcomes.from_records([]).x.shape == (0, outcomes.x.shape[1])


def test_a_schedule_that_was_ever_wrong_is_no_success(op: Op, batch: ScheduleBatch) -> None:
    wrong, timeout = (Measurement(status=s, error="x") for s in (Status.WRONG_RESULT, Status.RUN_TIMEOUT))
    records = [
        record(op, batch, 0, 10.0),
        record(op, batch, 0, 1.0, measurement=wrong),
        record(op, batch, 1, 1.0, measurement=timeout),
        record(op, batch, 1, 10.0),
    ]
    assert Outcomes.from_records(records).ok.tolist() == [False, True]


def test_what_cannot_be_rebuilt_is_skipped_and_counted(op: Op, batch: ScheduleBatch) -> None:
    data = Dataset.from_records(
        [
            record(op, batch, 0, 10.0),
            record(op, batch, 1, 10.0, schedule={"sketch": "none of this version", "block_m": 64}),
            record(op, batch, 2, 10.0, device="Z80"),
            msgspec.structs.replace(record(op, batch, 3, 10.0), key="other", op={"builder": "softmax"}),
            record(op, batch, 4, 10.0, key="not its key"),
        ]
    )
    assert len(data) == 1
    assert data.skipped == 4
    assert sum(data.reasons.values()) == 4
    assert any("Z80" in reason for reason in data.reasons)


def test_digest_follows_what_is_learnt_from(op: Op, batch: ScheduleBatch) -> None:
    records = [record(op, batch, i, 10.0 + i) for i in range(5)]
    data = Dataset.from_records(records)
    assert data.digest() == Dataset.from_records(records).digest()
    assert data.digest() != Dataset.from_records(records[:4]).digest()
    slower = [*records[:4], record(op, batch, 4, 99.0)]
    assert data.digest() != Dataset.from_records(slower).digest()


def test_take_and_concat_keep_rows_together(data: Dataset) -> None:
    mask = np.array([s == data.spaces[0] for s in data.spaces])
    parts = Dataset.concat([data.take(mask), data.take(np.flatnonzero(~mask))])
    assert parts.digest() == data.digest()
    assert list(data.groups) == list(dict.fromkeys(data.workloads))
    assert len(Dataset.concat([])) == 0
