"""Few cases that cover every pair of values of two different factors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import combinations, product
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

SIZES = (1, 7, 17, 129, 511, 1000)
LARGE = 200


def covering(
    factors: Sequence[Sequence[T]], allowed: Callable[[tuple[T, ...]], bool] = lambda case: True
) -> list[tuple[T, ...]]:
    """Cases, one value of each factor, that hold every pair that an allowed case holds; greedy and always the same."""
    order = [{value: i for i, value in enumerate(values)} for values in factors]
    pairs = {
        case: frozenset((i, case[i], j, case[j]) for i, j in combinations(range(len(case)), 2))
        for case in product(*factors)
        if allowed(case)
    }
    ranked = sorted(pairs, key=lambda case: [places[x] for places, x in zip(order, case, strict=True)])
    pending = set().union(*pairs.values())
    chosen = []
    while pending:
        best = max(ranked, key=lambda case: len(pairs[case] & pending))  # the first of the best
        chosen.append(best)
        pending -= pairs[best]
    return chosen


def cases() -> list[tuple[int, int, int]]:
    """Odd (M, N, K), at most one of them above ``LARGE``."""
    found = covering((SIZES, SIZES, SIZES), lambda case: sum(x > LARGE for x in case) <= 1)
    return [(m, n, k) for m, n, k in found]
