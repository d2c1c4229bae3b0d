"""Odd sizes that cover every pair of extents of two different axes, at most one extent above 200 a case."""

from __future__ import annotations

from itertools import combinations, product

SIZES = (1, 7, 17, 129, 511, 1000)
LARGE = 200


def cases() -> list[tuple[int, int, int]]:
    """(M, N, K) triples; greedy, so small and always the same."""
    allowed = [c for c in product(SIZES, SIZES, SIZES) if sum(x > LARGE for x in c) <= 1]
    pending = {pair for case in allowed for pair in _pairs(case)}
    chosen = []
    while pending:
        best = max(allowed, key=lambda case: (len(_pairs(case) & pending), [-x for x in case]))
        chosen.append(best)
        pending -= _pairs(best)
    return chosen


def _pairs(case: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
    return {(i, case[i], j, case[j]) for i, j in combinations(range(3), 2)}
