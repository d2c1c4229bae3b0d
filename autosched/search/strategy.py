"""What a search strategy is: it proposes schedules and is told how they fared; it knows no model, file or clock."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError

if TYPE_CHECKING:
    from autosched.search.space import Space
    from autosched.sketches.schedule import ScheduleBatch

#: Scores of a batch, float64 ``[n]``, higher is better; nan counts as the worst.
Score = Callable[["ScheduleBatch"], NDArray[np.float64]]

#: Draws of a batch from an infinite space before its members are enumerated instead.
DRAWS = 16


class Strategy(Protocol):
    """Chooses what to measure next in one space.

    The same generator state, scores and observations give the same proposals, in another process too.

    Attributes:
        asks_model: Whether it looks at scores. One that does not is asked for exactly what will be measured.
    """

    asks_model: ClassVar[bool]

    def __init__(self, space: Space) -> None: ...

    def propose(self, n: int, score: Score, rng: np.random.Generator, exclude: AbstractSet[bytes]) -> ScheduleBatch:
        """Choose ``n`` schedules, best guess first.

        Args:
            n: How many.
            score: Rates a batch of any length.
            rng: The only source of randomness.
            exclude: Row keys (``ScheduleBatch.keys``) that must not be proposed: what was measured.

        Returns:
            ``n`` distinct valid members of the space, or all that are left if these are fewer.

        Raises:
            InvalidInputError: ``n`` is negative.
        """

    def observe(self, batch: ScheduleBatch, latencies: NDArray[np.float64]) -> None:
        """Take note of measurements.

        Args:
            batch: What was measured, proposed by this strategy or not.
            latencies: Microseconds ``[n]``, nan for a failure of any kind.

        Raises:
            InvalidInputError: Not one latency for each row, or the batch is over other sketches than the space.
        """


def check_observed(space: Space, batch: ScheduleBatch, latencies: NDArray[np.float64]) -> None:
    """Refuse measurements that cannot be told apart.

    Raises:
        InvalidInputError: Not one latency for each row, or the batch is over other sketches than the space.
    """
    if np.shape(latencies) != (len(batch),):
        raise InvalidInputError(
            f"{np.shape(latencies)} latencies for {len(batch)} schedules", "give one a schedule, nan for failures"
        )
    if batch.sketches != space.sketches:
        raise InvalidInputError("the batch counts through other sketches than the space", "use space.sketches")


def check_count(n: int) -> None:
    """Refuse a negative number of proposals.

    Raises:
        InvalidInputError: ``n`` is negative.
    """
    if n < 0:
        raise InvalidInputError(f"cannot propose {n} schedules", "ask for 0 or more")


def draw_distinct(space: Space, n: int, rng: np.random.Generator, exclude: AbstractSet[bytes]) -> ScheduleBatch:
    """Draw ``n`` distinct members at random that are not in ``exclude``, or all there are if these are fewer.

    A finite space is permuted. Any other is sampled; where ``DRAWS`` samples do not suffice (a small space, most of it
    excluded) its members are enumerated.
    """
    check_count(n)
    members = space.members()
    if members is not None:
        return first_distinct(members.take(rng.permutation(len(members))), n, exclude)
    found = space.sample(rng, 0)
    taken = set(exclude)
    for _ in range(DRAWS):
        if len(found) >= n:
            return found
        fresh = first_distinct(space.sample(rng, 2 * (n - len(found)) + 16), n - len(found), taken)
        taken.update(fresh.keys())
        found = type(found).concat([found, fresh])
    for chunk in space.enumerate(rng):
        if len(found) >= n:
            break
        fresh = first_distinct(chunk, n - len(found), taken)
        taken.update(fresh.keys())
        found = type(found).concat([found, fresh])
    return found


def filled_up(
    chosen: ScheduleBatch, space: Space, n: int, rng: np.random.Generator, exclude: AbstractSet[bytes]
) -> ScheduleBatch:
    """``chosen``, and random members after it up to ``n`` rows in all, or all that are left if these are fewer."""
    if len(chosen) >= n:
        return chosen
    rest = draw_distinct(space, n - len(chosen), rng, {*exclude, *chosen.keys()})
    return type(chosen).concat([chosen, rest])


def first_distinct(batch: ScheduleBatch, n: int, exclude: AbstractSet[bytes]) -> ScheduleBatch:
    """The first ``n`` distinct rows that are not in ``exclude``, fewer where there are no more."""
    chosen: list[int] = []
    seen: set[bytes] = set()
    for i, key in enumerate(batch.keys()):
        if len(chosen) == n:
            break
        if key not in exclude and key not in seen:
            seen.add(key)
            chosen.append(i)
    return batch.take(np.array(chosen, np.intp))
