"""Means, caps, intervals and standings, against values worked out by hand."""

from __future__ import annotations

from math import sqrt

import pytest

from autosched.benching.result import Bench
from autosched.benching.row import EqualSeconds, RivalRow
from autosched.benching.summary import CAP, capped_mean, summarize
from tests.benching.rivals import row

ROWS = (
    row(1.21, shape=(4096, 4096, 4096), group="large"),
    row(1.00, shape=(8192, 8192, 8192), group="large"),
    row(2.00, shape=(1, 4096, 4096), group="skinny"),
    row(0.80, shape=(4095, 4097, 4099), group="odd_strides"),
    row(0.90, shape=(4096, 4096, 4096), group="large", layout="nt"),
    row(0.90, shape=(4096, 4096, 4096), group="large", dtype="fp16"),
    row(0.90, shape=(4096, 14336, 4096), group="large", epilogue=("bias",)),
    row(0.90, shape=(128, 4096, 4096), group="dynamic", dynamic=("M",)),
    row(None, shape=(512, 512, 512), group="medium"),
)


def test_the_headline_is_over_bf16_nn_rows_without_odd_strides() -> None:
    summary = summarize(ROWS)
    assert summary.geomean is not None
    assert summary.with_odd_strides is not None
    assert summary.everything is not None
    assert summary.geomean.value == pytest.approx((1.21 * 1.00 * CAP) ** (1 / 3)), "2.00 counts as 1.25"
    assert summary.geomean.rows == 3
    assert summary.with_odd_strides.value == pytest.approx((1.21 * 1.00 * CAP * 0.80) ** (1 / 4))
    assert summary.everything.value == pytest.approx((1.21 * 1.00 * CAP * 0.80 * 0.9**4) ** (1 / 8))


def test_means_by_class_leave_other_kinds_of_rows_out() -> None:
    by_class = summarize(ROWS).by_class
    assert {name: (mean.rows, mean.value) for name, mean in by_class.items()} == {
        "large": (2, pytest.approx(sqrt(1.21))),
        "skinny": (1, CAP),
        "odd_strides": (1, pytest.approx(0.80)),
    }


def test_without_odd_strides_and_without_any_ratio() -> None:
    assert summarize(ROWS[:3]).with_odd_strides is None
    nothing = summarize(ROWS[8:])
    assert (nothing.geomean, nothing.everything, nothing.by_class) == (None, None, {})
    assert nothing.failed == {"gemm 512,512,512 bf16 nn": "the builder refused"}


def test_grouped_rows_have_a_class_but_no_place_in_the_headline() -> None:
    rows = [
        row(1.2, op="conv2d", layout="nhwc", group="body"),
        row(0.8, op="conv2d", layout="nhwc", group="depthwise", groups=144),
    ]
    summary = summarize(rows)
    assert summary.geomean is not None
    assert summary.geomean.value == pytest.approx(1.2)
    assert summary.by_class["depthwise"].value == pytest.approx(0.8)


def test_intervals() -> None:
    mean = capped_mean([1.0, 1.21])
    assert mean is not None
    assert mean.value == pytest.approx(1.1)
    # Of two rows a quarter of the resamples holds the first alone, a quarter the second alone.
    assert mean.interval == pytest.approx((1.0, 1.21))
    assert mean == capped_mean([1.0, 1.21]), "the same each time"
    single = capped_mean([1.1])
    assert single is not None
    assert single.interval is None
    assert capped_mean([]) is None
    wide, narrow = capped_mean([0.8, 1.2] * 4), capped_mean([0.8, 1.2] * 64)
    assert wide is not None and wide.interval is not None
    assert narrow is not None and narrow.interval is not None
    assert narrow.interval[1] - narrow.interval[0] < 0.5 * (wide.interval[1] - wide.interval[0])


def test_standings() -> None:
    standing = summarize(ROWS).rivals["cublas"].standing
    assert (len(standing.ahead), len(standing.tied), len(standing.behind)) == (2, 1, 5)
    assert standing.tied == ("gemm 8192,8192,8192 bf16 nn",)
    assert standing.behind["gemm 4095,4097,4099 bf16 nn"] == 0.80
    assert standing.mean is not None
    assert standing.mean.value == pytest.approx((1.21 * CAP * 0.80 * 0.9**4) ** (1 / 8))


def test_standings_at_equal_seconds_and_failures_of_a_rival() -> None:
    def against(rival: RivalRow, m: int) -> object:
        return row(1.1, shape=(m, m, m), rivals={"inductor": rival})

    rows = (
        against(RivalRow(ratio=1.3, interval=(1.2, 1.4), ahead=True, equal_seconds=EqualSeconds(ahead=False)), 1),
        against(
            RivalRow(
                ratio=1.3,
                interval=(1.2, 1.4),
                ahead=True,
                equal_seconds=EqualSeconds(latency_us=9.0, ratio=1.1, ahead=True),
            ),
            2,
        ),
        against(RivalRow(error="no memory"), 3),
    )
    found = summarize(rows).rivals["inductor"]  # type: ignore[arg-type]
    assert found.failed == {"gemm 3,3,3 bf16 nn": "no memory"}
    assert (found.standing.rows, found.equal_seconds.rows) == (2, 2)
    assert found.equal_seconds.behind == {"gemm 1,1,1 bf16 nn": None}
    data = found.to_dict()
    assert (data["ahead"], data["geomean"]) == (2, CAP)
    assert data["equal_seconds"]["geomean"] == pytest.approx(1.1)


def test_json() -> None:
    data = Bench("gemm", ROWS, 12.0).to_dict()
    assert data["format"] == 1
    assert (data["op"], data["device"], data["runs"]) == ("gemm", "H200", ["r1"])
    assert data["geomean"] == pytest.approx((1.21 * CAP) ** (1 / 3))
    assert data["geomean_by_class"]["large"] == pytest.approx(1.1)
    low, high = data["intervals"]["geomean"]
    assert 1.0 <= low < data["geomean"] < high <= CAP
    assert data["intervals"]["geomean_by_class"]["skinny"] is None
    assert data["goals"]["geomean_by_class"]["long_k"] == 1.06
    assert data["failed"] == {"gemm 512,512,512 bf16 nn": "the builder refused"}
    assert len(data["rows"]) == 9
