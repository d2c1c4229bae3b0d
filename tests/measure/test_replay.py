"""Replay answers with what was recorded, pooled, and says what it does not hold."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from autosched.errors import InvalidInputError, NotRecordedError
from autosched.log import Header, TuningLog, Vendor
from autosched.measure.base import Measurer
from autosched.measure.replay import ReplayMeasurer
from autosched.record import Measurement, Record, Status
from autosched.sketches.builders import gemm
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import PRESETS

OP = gemm(512, 512, 512)
SKETCHES = derive(OP, PRESETS["H200"])
A = Schedule.of(SKETCHES[0])
B = Schedule.of(SKETCHES[0], block_m=64)
C = Schedule.of(SKETCHES[1])


def row(schedule: Schedule, *samples: float, status: Status = Status.OK, **changes: object) -> Record:
    base = Record(
        key=OP.key(),
        op=OP.spec,
        device="H200",
        schedule=schedule.to_json(),
        measurement=Measurement(status=status, samples_us=samples),
    )
    return msgspec.structs.replace(base, **changes)


ROWS = [
    row(A, 3.0),  # lucky once
    row(B, 6.0, 8.0, 7.0),
    row(A, 9.0, 9.5, 10.0, 9.2, origin="retimed"),
    row(C, status=Status.OUT_OF_RESOURCES),
]


def test_it_is_a_measurer_without_processes() -> None:
    with ReplayMeasurer(ROWS) as measurer:
        assert isinstance(measurer, Measurer)
        assert (measurer.source, measurer.target) == ("recorded", PRESETS["H200"])


def test_rows_of_a_schedule_are_pooled() -> None:
    a, b, a_again, c = ReplayMeasurer(ROWS).measure(OP, [A, B, A, C])
    assert a.samples_us == (3.0, 9.0, 9.5, 10.0, 9.2)
    assert (a.latency_us, b.latency_us, a_again) == (9.2, 7.0, a)
    assert (c.status, c.latency_us) == (Status.OUT_OF_RESOURCES, None)


def test_the_best_is_a_pooled_median_and_not_the_luckiest_row() -> None:
    assert ReplayMeasurer(ROWS).best(OP) == (B, 7.0)
    assert ReplayMeasurer([ROWS[3]]).best(OP) is None


def test_rows_that_only_teach_are_no_part_of_the_table() -> None:
    replay = ReplayMeasurer([*ROWS, row(C, 1.0, stratum="sweep")])
    assert replay.best(OP) == ReplayMeasurer(ROWS).best(OP)
    assert len(replay.records) == len(ROWS)


def test_a_wrong_result_outweighs_samples_and_samples_outweigh_other_failures() -> None:
    wrong = row(B, status=Status.WRONG_RESULT)
    crash = row(A, status=Status.WORKER_CRASH)
    a, b = ReplayMeasurer([*ROWS, wrong, crash]).measure(OP, [A, B])
    assert (a.latency_us, b.status) == (9.2, Status.WRONG_RESULT)


def test_the_space_is_the_table_and_stale_rows_are_counted() -> None:
    gone = msgspec.structs.replace(row(A, 1.0), schedule={"sketch": "of another time", "block_m": 64})
    odd = msgspec.structs.replace(row(A, 1.0), schedule={**A.to_json(), "block_m": 63})
    measurer = ReplayMeasurer([*ROWS, gone, odd])
    space = measurer.space(OP)
    assert space.schedules() == [A, B, C]
    assert space.sketches == SKETCHES
    assert measurer.stale(OP) == 2
    assert measurer.holds(OP, A)
    assert len(measurer.measure(OP, space.schedules())) == 3


def test_what_is_not_recorded_is_said_with_what_is() -> None:
    measurer = ReplayMeasurer(ROWS)
    other = gemm(256, 256, 256)
    for ask in (measurer.space, measurer.best, lambda op: measurer.measure(op, [A])):
        with pytest.raises(NotRecordedError, match=r"M256.* is not recorded on H200 .recorded workloads: M512"):
            ask(other)
    assert measurer.baseline(other) is None
    with pytest.raises(NotRecordedError, match=r"block_m.*is not recorded for"):
        measurer.measure(OP, [A, Schedule.of(SKETCHES[0], block_m=32)])
    with pytest.raises(NotRecordedError, match="no trials"):
        ReplayMeasurer([])


def test_one_of_several_devices_has_to_be_chosen() -> None:
    mixed = [*ROWS, row(A, 50.0, device="A100")]
    with pytest.raises(InvalidInputError, match="rows of A100, H200"):
        ReplayMeasurer(mixed)
    assert ReplayMeasurer(mixed, "h200").best(OP) == (B, 7.0)
    with pytest.raises(NotRecordedError, match=r"nothing is recorded on H100 .recorded devices: A100, H200"):
        ReplayMeasurer(mixed, "H100")


def test_the_vendors_time_comes_from_the_log(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    with TuningLog(path) as log:
        log.append_header(Header(session="s", key=OP.key(), op=OP.spec, device="H200"))
        for samples in ((8.0, 9.0), (7.0,)):
            log.append_vendor(
                Vendor(key=OP.key(), device="H200", name="cublas", latency_us=99.0, samples_us=samples, default_us=6.5)
            )
        log.append_vendor(Vendor(key=OP.key(), device="A100", name="cublas", latency_us=1.0))
        for r in ROWS:
            log.finish_trial(r)
    measurer = ReplayMeasurer(TuningLog.read(path))
    baseline = measurer.baseline(OP)
    assert baseline is not None
    assert (baseline.name, baseline.latency_us, baseline.default_us) == ("cublas", 8.0, 6.5)
    comparison = measurer.compare(OP, [B, C])
    assert comparison.ratios == (8.0 / 7.0, None)
    assert comparison.errors == ("", "recorded as a failure")
    assert not comparison.tie(0)
    with pytest.raises(NotRecordedError, match="no vendor library's time"):
        ReplayMeasurer(ROWS).compare(OP, [B])


def test_space_keys_find_their_rows_again() -> None:
    space = ReplayMeasurer(ROWS).space(OP)
    assert len(set(space.keys())) == 3
    np.testing.assert_array_equal(space.column("block_m"), [s.knobs["block_m"] for s in (A, B, C)])
