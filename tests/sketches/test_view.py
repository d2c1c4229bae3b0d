"""Matrix views worked out by hand: which axes fuse, into which group they go, and how rows are aligned."""

from __future__ import annotations

import pytest

from autosched.sketches.builders import contraction, gemm
from autosched.sketches.op import Op
from autosched.sketches.view import MatrixView, matrix_views

SIZES = {"b": 2, "h": 3, "m": 4, "n": 5, "k": 6, "x": 7, "y": 8}


def view(op: Op) -> MatrixView:
    (found,) = matrix_views(op)
    return found


def einsum(equation: str, **arguments: object) -> Op:
    letters = set(equation) - set(",->")
    return contraction(equation, {x: SIZES[x] for x in letters}, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("equation", "tag"),
    [
        ("mk,kn->mn", "M=m N=n K=k"),
        ("mk,kn->nm", "M=m N=n K=k"),
        ("mk,nk->mn", "M=m N=n K=k"),
        ("bmk,bkn->bmn", "batch=b M=m N=n K=k"),
        ("bhmk,bhkn->bhmn", "batch=bh M=m N=n K=k"),  # b and h nest in all three tensors
        ("bmhk,bnhk->bhmn", "batch=b.h M=m N=n K=k"),  # in a, h steps by k and b by m*h*k: no nest
        ("bmk,kn->bmn", "M=bm N=n K=k"),  # without b in the right tensor, rows of all batches are one axis
        ("mbk,kn->bmn", "M=b.m N=n K=k"),  # a walks m outside b, the output b outside m
        ("mxy,xyn->mn", "M=m N=n K=xy"),
        ("mxy,yxn->mn", "M=m N=n K=x.y"),
        ("mk,kxy->mxy", "M=m N=xy K=k"),
        ("mk,kyx->mxy", "M=m N=x.y K=k"),
        ("m,n->mn", "M=m N=n K=1"),
        ("mk,k->m", "M=m N=1 K=k"),
        ("k,k->k", None),
        ("mn,mn->mn", "batch=mn M=1 N=1 K=1"),
    ],
)
def test_axes_are_grouped_and_fused(equation: str, tag: str | None) -> None:
    if tag is None:
        tag = "batch=k M=1 N=1 K=1"
    assert view(einsum(equation)).tag == tag


def test_a_fused_axis_has_the_strides_of_its_inner_one() -> None:
    found = view(einsum("bmk,kn->bmn"))
    (rows,) = found.m
    assert (rows.axes, rows.extent, rows.name) == (("b", "m"), 8, "bm")
    assert (rows.stride("a"), rows.stride("b"), rows.stride("out")) == (6, 0, 5)
    assert [found.extent(g) for g in ("batch", "m", "n", "k")] == [1, 8, 5, 6]
    assert found.group("batch") == ()


def test_padding_between_rows_ends_a_fusion() -> None:
    """Rows of a lie 8 apart and batches 40, not 4 * 8 = 32."""
    padded = view(einsum("bmk,kn->bmn", strides={"a": (40, 8, 1)}))
    assert padded.tag == "M=b.m N=n K=k"
    nested = view(einsum("bmk,kn->bmn", strides={"a": (32, 8, 1)}))
    assert nested.tag == "M=bm N=n K=k"


def test_an_epilogue_operand_has_a_say_in_fusion() -> None:
    assert view(einsum("mk,kxy->mxy")).tag == "M=m N=xy K=k"
    assert view(einsum("mk,kxy->mxy", epilogue=["residual"])).tag == "M=m N=xy K=k"
    assert view(einsum("mk,kxy->mxy", epilogue=["bias"])).tag == "M=m N=x.y K=k"  # bias walks y alone


def test_a_dynamic_axis_fuses_only_as_the_outer_one() -> None:
    outer = view(einsum("bmk,kn->bmn", dynamic=["b"]))
    assert (outer.tag, outer.is_dynamic("m"), outer.is_dynamic("n")) == ("M=bm N=n K=k", True, False)
    plain = view(gemm(4, 5, 6, dynamic=["M"]))
    assert (plain.is_dynamic("m"), plain.extent("m")) == (True, 4)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        # Bytes of a row start: stride * 2 for bf16; the largest power of two that divides it, 16 at most.
        (gemm(64, 64, 64), {"a": 16, "b": 16, "out": 16}),
        (gemm(64, 100, 64), {"a": 16, "b": 8, "out": 8}),  # 200 = 8 * 25
        (gemm(64, 64, 1000), {"a": 16, "b": 16, "out": 16}),  # 2000 = 16 * 125
        (gemm(64, 1002, 1001), {"a": 2, "b": 4, "out": 4}),  # 2002, 2004
        (gemm(64, 1002, 1001, dtype="fp32"), {"a": 4, "b": 8, "out": 8}),
        (gemm(1001, 64, 64, layout="tn"), {"a": 2, "b": 16, "out": 16}),  # stored [K, M]: rows of 1001
        (gemm(64, 64, 1001, layout="nt"), {"a": 2, "b": 2, "out": 16}),
        (gemm(1, 64, 1001), {"a": 16, "b": 16, "out": 16}),  # one row starts at the base address
        (gemm(64, 64, 64, strides={"a": (72, 1)}), {"a": 16, "b": 16, "out": 16}),  # 144
        (gemm(64, 64, 64, strides={"a": (65, 1)}), {"a": 2, "b": 16, "out": 16}),
        (gemm(64, 64, 64, strides={"a": (128, 2)}), {"a": 1, "b": 16, "out": 16}),  # no contiguous axis
        (gemm(1, 64, 1001, dynamic=["M"]), {"a": 2, "b": 16, "out": 16}),  # there may be more rows
        (contraction("bmk,bkn->bmn", {"b": 3, "m": 5, "k": 4, "n": 8}), {"a": 8, "b": 16, "out": 16}),
        (gemm(64, 100, 64, epilogue=["bias", "residual"]), {"bias": 16, "residual": 8}),
    ],
)
def test_row_alignment(op: Op, expected: dict[str, int]) -> None:
    found = view(op)
    assert {name: found.row_alignment(op.operand(name)) for name in expected} == expected


def test_a_transposed_view_exchanges_rows_and_columns() -> None:
    op = gemm(4, 5, 6, epilogue=["swiglu"])
    plain = view(op)
    turned = plain.transposed()
    assert turned.tag == "M=N N=M K=K, rows from the right operand"
    assert (turned.extent("m"), turned.extent("n"), turned.swapped) == (5, 4, True)
    assert [plain.left(p) for p in op.products] == ["a", "a"] == [turned.right(p) for p in op.products]
    assert [plain.right(p) for p in op.products] == ["b", "up"] == [turned.left(p) for p in op.products]
    assert turned.transposed() == plain
