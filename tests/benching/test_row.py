"""What a row says of its rivals, at the end and at equal seconds, against values worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from autosched.benching.row import BenchRow, EqualSeconds, RivalRow, best_at, rival_rows
from autosched.measure.base import Competition, Rival
from tests.benching.rivals import row

HISTORY = [(1.0, 16.0), (2.0, 12.0), (5.0, 8.0)]
"""Best so far: 16 us after 1 s, 12 after 2, 8 after 5. The choice reads 10 us in the competition: scale 1.25."""


def rival(ratio: float | None, low: float, high: float, seconds: float | None) -> RivalRow:
    """The row of a rival against a choice of 10 us."""
    found = Rival(
        name="x",
        latency_us=None if ratio is None else 10.0 * ratio,
        ratio=ratio,
        interval=None if ratio is None else (low, high),
        tuning_seconds=seconds,
    )
    competition = Competition(latency_us=10.0, rivals=(found,), blocks=5)
    return rival_rows(competition, HISTORY, total=6.0, scale=1.25)["x"]


@pytest.mark.parametrize(
    ("low", "high", "ahead"),
    [(1.01, 1.03, True), (0.99, 1.03, None), (1.0, 1.03, None), (0.97, 1.0, None), (0.95, 0.99, False)],
)
def test_an_interval_that_holds_1_is_a_tie(low: float, high: float, ahead: bool | None) -> None:
    assert rival((low + high) / 2, low, high, None).ahead is ahead


def test_best_so_far() -> None:
    assert [best_at(HISTORY, s) for s in (0.5, 1.0, 1.9, 2.0, 4.9, 99.0)] == [None, 16.0, 16.0, 12.0, 12.0, 8.0]


def test_equal_seconds() -> None:
    # After 3 s the best was 12 us, 15 us at the competition's level: 1.5 times as slow as the choice.
    found = rival(1.2, 1.1, 1.3, 3.0).equal_seconds
    assert found is not None
    assert found.latency_us == pytest.approx(15.0)
    assert found.ratio == pytest.approx(1.2 / 1.5)
    assert found.ahead is False
    # Its interval is 1.1/1.5 to 1.6/1.5, which holds 1.
    tied = rival(1.4, 1.1, 1.6, 3.0).equal_seconds
    assert tied is not None
    assert tied.ahead is None


def test_equal_seconds_at_the_ends() -> None:
    assert rival(1.2, 1.1, 1.3, 0.5).equal_seconds == EqualSeconds(ahead=False), "there was nothing yet"
    assert rival(1.2, 1.1, 1.3, 6.0).equal_seconds == EqualSeconds(latency_us=10.0, ratio=1.2, ahead=True)
    assert rival(1.2, 1.1, 1.3, None).equal_seconds is None, "it does not tune"
    assert rival(1.2, 1.1, 1.3, 0.0).equal_seconds is None
    assert rival(None, 0, 0, 3.0).equal_seconds is None


def test_json_has_the_keys_that_programs_rely_on() -> None:
    data = row(1.1).to_dict()
    assert list(data)[:5] == ["op", "shape", "class", "dtype", "layout"]
    assert data.keys() >= {
        "op", "key", "class", "dtype", "layout", "latency_us", "baseline", "baseline_us", "ratio", "interval", "trials",
        "compiled", "seconds", "shape", "epilogue", "scales", "dynamic", "status", "error", "run", "device", "versions",
        "schedule", "rivals",
    }  # fmt: skip
    assert data["rivals"]["cublas"].keys() == {
        "latency_us", "ratio", "interval", "tuning_seconds", "error", "ahead", "equal_seconds",
    }  # fmt: skip
    assert (data["class"], data["shape"]) == ("medium", [512, 512, 512])
    assert msgspec.convert(data, BenchRow) == row(1.1)


def test_a_tie_with_the_vendor_library() -> None:
    assert (row(1.005).tie, row(1.05).tie, row(None).tie) == (True, False, False)
