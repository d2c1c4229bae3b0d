"""Sessions of one workload at one level."""

from __future__ import annotations

import pytest

from autosched.log import LogContents, Vendor, aligned
from autosched.record import Measurement, Record, Status


def row(session: str, *samples: float, key: str = "K") -> Record:
    status = Status.OK if samples else Status.COMPILE_ERROR
    return Record(
        key=key, op={}, device="H200", schedule={}, measurement=Measurement(status=status, samples_us=samples),
        session=session,
    )  # fmt: skip


def vendor(session: str, latency: float, key: str = "K") -> Vendor:
    return Vendor(key=key, device="H200", name="cublas", latency_us=latency, session=session)


def test_later_sessions_take_the_level_of_the_first() -> None:
    contents = LogContents(
        records=[row("one", 20.0), row("two", 21.0, 23.0), row("two", 4.0), row("two"), row("three", 9.0)],
        vendors=[vendor("one", 10.0), vendor("one", 11.0), vendor("two", 12.0), vendor("two", 13.0)],
    )
    samples = [r.measurement.samples_us for r in aligned(contents).records]
    # the vendor library read 10 and 12: 2 us less; a shift of half a latency is none, nor is one without a vendor
    assert samples == [(20.0,), (19.0, 21.0), (4.0,), (), (9.0,)]
    assert contents.records[1].measurement.samples_us == (21.0, 23.0)
    assert [v.latency_us for v in aligned(contents).vendors] == [10.0, 11.0, 10.0, 11.0]


def test_other_workloads_and_single_sessions_stay_as_they_are() -> None:
    contents = LogContents(
        records=[row("one", 20.0), row("two", 30.0, key="L")],
        vendors=[vendor("one", 10.0), vendor("two", 15.0, key="L")],
    )
    assert aligned(contents) is contents


def test_an_outlier_never_moves_below_what_a_shift_may_take() -> None:
    contents = LogContents(
        records=[row("one", 20.0), row("two", 20.0, 20.0, 2.0)], vendors=[vendor("one", 10.0), vendor("two", 14.0)]
    )
    assert aligned(contents).records[1].measurement.samples_us == pytest.approx((16.0, 16.0, 1.5))
