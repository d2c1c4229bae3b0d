"""Operators as they are built and keyed, and what bad input gets."""

from __future__ import annotations

from typing import Any

import pytest

from autosched.errors import InvalidInputError, UnsupportedError, UsageError
from autosched.sketches.builders import bmm, build, build_named, contraction, gemm


def test_keys_hold_what_changes_the_kernel() -> None:
    assert gemm(4096, 4096, 512).key() == "M4096,N4096,K512/a[MK]bf16,b[KN]bf16,out[MN]bf16"
    assert (
        gemm(8, 16, 32, dtype="fp16", layout="nt", epilogue=["bias", "gelu"]).key()
        == "M8,N16,K32/a[MK]fp16,b[NK]fp16,bias[N]fp16,out[MN]fp16/bias+gelu"
    )
    assert gemm(8, 16, 32, dynamic=["M"]).key().startswith("M?8,N16,K32/")
    assert "a[MK]bf16@40x1" in gemm(8, 16, 32, strides={"a": (40, 1)}).key()
    assert (
        gemm(8, 16, 32, dtype="fp8e4m3", layout="nt", scales="row_column", fast_accumulate=True).key()
        == "M8,N16,K32/a[MK]fp8e4m3,b[NK]fp8e4m3,a_scale[M]fp32,b_scale[N]fp32,out[MN]bf16/row_scale+column_scale/fast"
    )
    assert (
        gemm(8, 16, 32, alpha=0.5, beta=2.0, epilogue=["swiglu"]).key()
        == "M8,N16,K32/a[MK]bf16,b[KN]bf16,up[KN]bf16,c[MN]bf16,out[MN]bf16/a*b+a*up/alpha0.5+residual2+silu+gate"
    )


def test_each_new_choice_has_a_key_of_its_own() -> None:
    ops = [
        gemm(8, 16, 32, dtype="fp8e4m3", **options)
        for options in (
            {},
            {"fast_accumulate": True},
            {"scales": "tensor"},
            {"scales": "row_column"},
            {"epilogue": ["swiglu"]},
            {"epilogue": ["geglu"]},
            {"epilogue": ["silu"]},
            {"alpha": 0.5},
            {"alpha": 0.25},
            {"beta": 1.0},
            {"beta": 0.5},
            {"epilogue": ["residual"]},
        )
    ]
    assert len({op.key() for op in ops}) == len(ops)


def test_types_of_outputs_accumulators_and_added_operands() -> None:
    def types(dtype: str, **options: Any) -> tuple[str, str, str]:
        op = gemm(8, 16, 32, dtype=dtype, epilogue=["bias"], **options)
        return op.accumulate, op.output.dtype.name, op.operand("bias").dtype.name

    assert types("fp8e4m3") == types("fp8e5m2") == ("fp32", "bf16", "bf16")
    assert types("fp8e4m3", out_dtype="fp16") == ("fp32", "fp16", "fp16")
    assert types("int8") == ("int32", "int32", "int32")
    assert types("int8", out_dtype="bf16", scales="tensor") == ("int32", "bf16", "bf16")
    assert types("bf16", out_dtype="fp32") == ("fp32", "fp32", "bf16")
    scales = gemm(8, 16, 32, dtype="int8", scales="row_column")
    assert [(o.name, o.dtype.name, o.shape) for o in scales.operands[2:]] == [
        ("a_scale", "fp32", (8,)),
        ("b_scale", "fp32", (16,)),
    ]


def test_the_second_operand_of_a_gated_pair_is_stored_like_the_first() -> None:
    op = gemm(8, 16, 32, layout="nt", epilogue=["swiglu"], strides={"b": (40, 1)})
    b, up = op.operand("b"), op.operand("up")
    assert (up.shape, up.strides, up.index, up.dtype) == (b.shape, b.strides, b.index, b.dtype)
    assert op.flops == 2 * gemm(8, 16, 32).flops
    assert op.accumulators == ("acc", "acc_up")
    assert [(s.kind, s.accumulator) for s in op.epilogue] == [("silu", None), ("gate", "acc_up")]


def test_defaults_are_left_out_of_specs() -> None:
    assert gemm(8, 16, 32).spec == {"builder": "gemm", "shape": [8, 16, 32], "layout": "nn", "dtype": "bf16"}
    assert gemm(8, 16, 32, dtype="int8", out_dtype="int32").spec == gemm(8, 16, 32, dtype="int8").spec
    assert build_named("gemm", (8, 16, 32), dtype="int8", scales="tensor") == gemm(
        8, 16, 32, dtype="int8", scales="tensor"
    )


@pytest.mark.parametrize(
    "op",
    [
        gemm(7, 9, 11, dtype="fp32", layout="tt", epilogue=["bias", "relu"], out_dtype="bf16"),
        gemm(8, 16, 32, dynamic=["M"], strides={"a": (40, 1)}, deterministic=True),
        bmm(3, 4, 5, 6, dtype="fp16", layout="nt", epilogue=["residual"], dynamic=["B"]),
        contraction("bmk,bkn->bmn", {"b": 3, "m": 4, "k": 5, "n": 6}, dtype="fp16"),
        gemm(7, 9, 11, dtype="fp8e4m3", layout="nt", scales="row_column", epilogue=["bias"], fast_accumulate=True),
        gemm(7, 9, 11, dtype="fp8e5m2", scales="tensor", out_dtype="fp32"),
        gemm(7, 9, 11, dtype="int8", scales="row_column", out_dtype="fp16", beta=0.5),
        gemm(7, 9, 11, alpha=0.1, beta=-2.0, epilogue=["geglu", "scale"]),
        bmm(3, 4, 5, 6, dtype="fp16", alpha=2.0, epilogue=["swiglu", "row_scale"]),
        contraction("mk,kn->mn", {"m": 4, "k": 5, "n": 6}, beta=1.0, scales="tensor"),
    ],
    ids=lambda op: op.key(),
)
def test_specs_build_the_op_again(op: Any) -> None:
    again = build(op.spec)
    assert again == op
    assert again.key() == op.key()
    assert again.spec == op.spec


def test_flops_and_bytes() -> None:
    op = gemm(2, 3, 5, epilogue=["bias"])
    assert op.flops == 2 * 2 * 3 * 5
    assert op.compulsory_bytes == (2 * (2 * 5 + 5 * 3 + 3), 2 * 2 * 3)
    assert op.iteration_space() == "M2.N3.K5"


def test_bmm_is_the_contraction_that_it_is() -> None:
    op = build_named("bmm", (3, 4, 6, 5), layout="nt")
    same = contraction("BMK,BNK->BMN", {"B": 3, "M": 4, "N": 6, "K": 5})
    assert (op.axes, op.operands, op.output, op.key()) == (same.axes, same.operands, same.output, same.key())
    assert op.key() == "B3,M4,N6,K5/a[BMK]bf16,b[BNK]bf16,out[BMN]bf16"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: gemm(0, 1, 1), InvalidInputError, "M is 0"),
        (lambda: gemm(1, -3, 1), InvalidInputError, "N is -3"),
        (lambda: gemm(1, 1, 1.5), UsageError, "1.5"),  # type: ignore[arg-type]
        (lambda: gemm(1, 1, 1, dtype="bf17"), InvalidInputError, "bf17"),
        (lambda: gemm(1, 1, 1, dtype="int32"), UnsupportedError, "int32 has no products"),
        (lambda: gemm(1, 1, 1, out_dtype="fp8e4m3"), UnsupportedError, "out_dtype fp8e4m3"),
        (lambda: gemm(1, 1, 1, out_dtype="int32"), UnsupportedError, "int32 of bf16"),
        (lambda: gemm(1, 1, 1, scales="blocks"), InvalidInputError, "'blocks' .*tensor, row_column, block"),
        (lambda: bmm(1, 1, 1, 1, fast_accumulate=True), UnsupportedError, "fast_accumulate for bf16"),
        (lambda: gemm(1, 1, 1, dtype="int8", fast_accumulate=True), UnsupportedError, "fast_accumulate for int8"),
        (lambda: gemm(1, 1, 1, epilogue=["swiglu", "geglu"]), UnsupportedError, "second gate, 'geglu'"),
        (lambda: gemm(1, 1, 1, scales="tensor", epilogue=["swiglu"]), UnsupportedError, "gated pair"),
        (lambda: gemm(1, 1, 1, epilogue=["gate"]), InvalidInputError, "unknown epilogue 'gate'"),
        (lambda: gemm(1, 1, 1, epilogue=["alpha"]), InvalidInputError, "unknown epilogue 'alpha'"),
        (lambda: build_named("gemm", (1, 2, 3), scales="rows"), InvalidInputError, "'rows'"),
        (lambda: gemm(1, 1, 1, layout="nx"), InvalidInputError, "nx"),
        (lambda: gemm(1, 1, 1, epilogue=["tanh"]), InvalidInputError, "tanh"),
        (lambda: gemm(2**40, 2**40, 1), InvalidInputError, "2\\^63"),
        (lambda: gemm(8, 8, 8, layout="tn", dynamic=["M"]), UnsupportedError, "dynamic"),
        (lambda: gemm(8, 8, 8, dynamic=["Q"]), InvalidInputError, "'Q'"),
        (lambda: gemm(8, 8, 8, strides={"out": (0, 1)}), InvalidInputError, "overlap"),
        (lambda: build_named("gem", (1, 2, 3)), InvalidInputError, "gem"),
        (lambda: bmm(0, 1, 1, 1), InvalidInputError, "B is 0"),
        (lambda: bmm(1, 1, 1, 1, layout="n"), InvalidInputError, "layout 'n'"),
        (lambda: build_named("gemm", (1, 2)), InvalidInputError, "2 entries"),
        (lambda: build_named("gemm", {"M": 1, "N": 2}), InvalidInputError, "M, N, K"),
        (lambda: build({"builder": "os.system"}), InvalidInputError, "os.system"),
        (lambda: contraction("mk,kn", {"m": 1}), InvalidInputError, "malformed"),
        (lambda: contraction("mk,kn,nq->mq", {"m": 1}), UnsupportedError, "3 inputs"),
        (lambda: contraction("mm,mn->mn", {"m": 1, "n": 1}), UnsupportedError, "twice"),
        (lambda: contraction("mk,kn->mn", {"m": 1, "k": 2}), InvalidInputError, "sizes"),
    ],
)
def test_bad_input_is_named(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
