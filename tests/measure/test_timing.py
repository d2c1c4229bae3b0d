"""What of the timing is arithmetic; the rest needs a GPU (``tests/gpu``)."""

from __future__ import annotations

import pytest

from autosched.measure.base import Protocol
from autosched.measure.timing import elapsed_us, launches_for


class Event:
    """A moment in milliseconds."""

    def __init__(self, at: float) -> None:
        self.at = at

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


@pytest.mark.parametrize(
    ("warmups_us", "launches"),
    [([5.0, 6.0, 7.0], 12), ([19_999.0] * 3, 12), ([20_001.0] * 3, 4), ([50_000.0, 9.0, 9.0], 12), ([], 12)],
)
def test_a_slow_kernel_gets_fewer_launches_whatever_its_first_one_took(warmups_us: list[float], launches: int) -> None:
    assert launches_for(Protocol(), warmups_us) == launches


def test_events_are_milliseconds_and_samples_microseconds() -> None:
    pairs = [(Event(1.0), Event(1.25)), (Event(2.0), Event(4.0))]
    assert elapsed_us(pairs) == [250.0, 2000.0]  # type: ignore[arg-type]
