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


@pytest.mark.parametrize(
    "op",
    [
        gemm(7, 9, 11, dtype="fp32", layout="tt", epilogue=["bias", "relu"], out_dtype="bf16"),
        gemm(8, 16, 32, dynamic=["M"], strides={"a": (40, 1)}, deterministic=True),
        bmm(3, 4, 5, 6, dtype="fp16", layout="nt", epilogue=["residual"], dynamic=["B"]),
        contraction("bmk,bkn->bmn", {"b": 3, "m": 4, "k": 5, "n": 6}, dtype="fp16"),
    ],
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
        (lambda: gemm(1, 1, 1, dtype="int8"), UnsupportedError, "int8"),
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
