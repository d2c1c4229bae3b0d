"""The vendor library's call computes the op, in every layout and with every epilogue."""

from __future__ import annotations

from typing import Any

import pytest

from autosched.measure.proof import prove
from autosched.measure.vendor import precision, vendor
from autosched.sketches.builders import contraction, gemm
from autosched.sketches.op import Op

torch = pytest.importorskip("torch")

SIZES = {"b": 3, "m": 16, "n": 24, "k": 32}


@pytest.mark.parametrize(
    "op",
    [gemm(24, 40, 32, dtype="fp32", layout=layout) for layout in ("nn", "nt", "tn", "tt")]
    + [
        gemm(24, 40, 32, dtype="fp32", epilogue=epilogue)
        for epilogue in (["bias"], ["residual"], ["relu"], ["bias", "relu"], ["gelu"], ["bias", "silu", "residual"])
    ]
    + [gemm(24, 40, 32, dtype="fp32", strides={"a": (40, 1), "out": (64, 1)})]
    + [gemm(24, 40, 32, out_dtype="fp32", dtype="bf16")]
    + [
        contraction("bmk,bkn->bmn", SIZES, dtype="fp32"),
        contraction("mbk,bnk->bmn", SIZES, dtype="fp32", epilogue=["residual"]),
        contraction("bmk,bkn->bnm", SIZES, dtype="fp32", epilogue=["bias"]),
        contraction("mk,kn->nm", {x: SIZES[x] for x in "mnk"}, dtype="fp32", epilogue=["bias"]),
        contraction("bmk,kn->bmn", SIZES, dtype="fp32", epilogue=["bias"]),
        contraction("m,n->mn", {x: SIZES[x] for x in "mn"}, dtype="fp32"),
    ],
    ids=lambda op: op.key(),
)
def test_it_computes_the_op(op: Op) -> None:
    run = vendor(op)

    def launch(*tensors: Any, workspace: object = None) -> None:
        found = run(tensors[:-1], tensors[-1])
        assert found.dtype == tensors[-1].dtype
        if found is not tensors[-1]:
            tensors[-1].copy_(found)

    verdict = prove(op, launch, device="cpu")
    assert verdict.ok, verdict.reason


def test_precision_is_set_and_restored() -> None:
    matmul = torch.backends.cuda.matmul
    names = ("allow_tf32", "allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")

    def state() -> list[bool]:
        return [bool(getattr(matmul, name)) for name in names]

    before = state()
    with precision(gemm(16, 16, 16, dtype="tf32"), reduced=False):
        assert state() == [True, False, False]
    with precision(gemm(16, 16, 16), reduced=True):
        assert state() == [False, True, True]
    assert state() == before
