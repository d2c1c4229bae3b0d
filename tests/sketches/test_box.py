"""Box maps worked out by hand: which way round, folded over the batch or not, or none."""

from __future__ import annotations

import pytest

from autosched.sketches.box import BoxMap, box_map
from autosched.sketches.builders import bmm, contraction, gemm
from autosched.sketches.op import Op
from autosched.sketches.view import matrix_views

PLAIN, TURNED = BoxMap(transposed=False), BoxMap(transposed=True)
FOLDED, FOLDED_TURNED = BoxMap(transposed=False, folded=True), BoxMap(transposed=True, folded=True)


def boxes(op: Op, *, swapped: bool = False) -> dict[str, BoxMap | None]:
    """Of a, b and the output, with the groups as a sketch reads and writes them."""
    (view,) = matrix_views(op)
    rows, columns = ("b", "a") if swapped else ("a", "b")
    view = view.transposed() if swapped else view
    groups = {rows: ("m", "k"), columns: ("k", "n"), "out": ("m", "n")}
    return {name: box_map(view, op.operand(name), *groups[name]) for name in ("a", "b", "out")}


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (gemm(64, 64, 64), {"a": PLAIN, "b": PLAIN, "out": PLAIN}),
        (gemm(64, 64, 64, layout="tn"), {"a": TURNED, "b": PLAIN, "out": PLAIN}),
        (gemm(64, 64, 64, layout="nt"), {"a": PLAIN, "b": TURNED, "out": PLAIN}),
        (gemm(64, 63, 64), {"a": PLAIN, "b": None, "out": None}),  # rows of 126 bytes
        (gemm(64, 60, 64), {"a": PLAIN, "b": None, "out": None}),  # 120 = 7.5 * 16
        (gemm(64, 60, 64, dtype="fp32"), {"a": PLAIN, "b": PLAIN, "out": PLAIN}),  # 240
        (gemm(64, 72, 64, dtype="int8"), {"a": PLAIN, "b": None, "out": PLAIN}),  # 72 bytes; 288
        (gemm(64, 64, 64, strides={"a": (72, 1)}), {"a": PLAIN}),
        (gemm(64, 64, 64, strides={"a": (65, 1)}), {"a": None}),
        (gemm(64, 64, 64, strides={"a": (128, 2)}), {"a": None}),
        (gemm(64, 64, 64, strides={"a": (0, 1)}), {"a": None}),
        (gemm(64, 64, 64, strides={"a": (1, 64)}), {"a": TURNED}),
        (contraction("mk,kn->nm", {"m": 64, "k": 64, "n": 64}), {"a": PLAIN, "b": PLAIN, "out": TURNED}),
        (contraction("mk,kn->nm", {"m": 63, "k": 64, "n": 64}), {"a": PLAIN, "b": PLAIN, "out": None}),
        (contraction("mxk,kn->mxn", {"m": 4, "x": 8, "k": 64, "n": 64}), {"a": PLAIN, "out": PLAIN}),  # m and x fuse
        (contraction("xmk,kn->mxn", {"m": 4, "x": 8, "k": 64, "n": 64}), {"a": None, "b": PLAIN, "out": PLAIN}),
        (gemm(64, 64, 64, layout="nt", dynamic=["M"]), {"a": PLAIN, "b": TURNED, "out": PLAIN}),
    ],
)
def test_matrices(op: Op, expected: dict[str, BoxMap | None]) -> None:
    assert {name: box for name, box in boxes(op).items() if name in expected} == expected


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (bmm(3, 64, 64, 64), {"a": FOLDED, "b": FOLDED, "out": FOLDED}),
        (bmm(3, 64, 64, 64, layout="tt"), {"a": FOLDED_TURNED, "b": FOLDED_TURNED, "out": FOLDED}),
        (bmm(1, 64, 64, 64), {"a": PLAIN, "b": PLAIN, "out": PLAIN}),
        (bmm(3, 64, 64, 64, strides={"a": (0, 64, 1)}), {"a": PLAIN, "b": FOLDED}),  # one matrix for all
        (bmm(3, 64, 64, 64, strides={"a": (64 * 64 + 64, 64, 1)}), {"a": None, "b": FOLDED}),  # a row between them
        (bmm(3, 64, 64, 64, strides={"a": (64 * 72, 72, 1)}), {"a": FOLDED}),  # padded rows, no gap
        (bmm(3, 64, 64, 64, strides={"a": (64, 3 * 64, 1)}), {"a": None}),  # interleaved
        (bmm(3, 64, 63, 64), {"a": FOLDED, "b": None, "out": None}),
        (bmm(3, 64, 64, 64, dynamic=["B"]), {"a": FOLDED, "b": FOLDED, "out": FOLDED}),
        (bmm(1, 64, 64, 64, dynamic=["B"]), {"a": FOLDED, "b": FOLDED, "out": FOLDED}),  # there may be more
        (contraction("bmhk,bnhk->bhmn", dict(zip("bmhkn", (2, 64, 4, 64, 64), strict=True))), {"a": None, "b": None}),
    ],
)
def test_batches(op: Op, expected: dict[str, BoxMap | None]) -> None:
    assert {name: box for name, box in boxes(op).items() if name in expected} == expected


def test_a_swapped_view_turns_every_box() -> None:
    """Rows are b's columns, so [K, N] is read as its transpose, and [M, N] is written as that."""
    assert boxes(gemm(16, 64, 64), swapped=True) == {"a": TURNED, "b": TURNED, "out": TURNED}
    assert boxes(gemm(16, 64, 64, layout="nt"), swapped=True) == {"a": TURNED, "b": PLAIN, "out": TURNED}
