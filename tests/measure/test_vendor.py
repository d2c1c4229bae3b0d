"""The vendor library's call computes the op, in every layout and with every epilogue."""

from __future__ import annotations

from typing import Any

import pytest

from autosched.errors import UnsupportedError
from autosched.measure.proof import normal_case, prove
from autosched.measure.tensors import allocate
from autosched.measure.vendor import precision, vendor
from autosched.sketches.builders import bmm, contraction, gemm
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
    ]
    + [
        gemm(24, 40, 32, dtype="fp32", **options)
        for options in (
            {"alpha": 0.5},
            {"beta": 2.0},
            {"alpha": 0.5, "beta": -2.0},
            {"alpha": 0.5, "epilogue": ["bias", "relu"]},
            {"alpha": 3.0, "epilogue": ["relu"]},
            {"scales": "row_column", "alpha": 2.0, "beta": 0.5, "epilogue": ["bias"]},
            {"scales": "tensor", "epilogue": ["scale"]},
            {"epilogue": ["column_scale", "row_scale", "residual"]},
            {"epilogue": ["swiglu"]},
            {"epilogue": ["geglu", "bias"]},
            {"alpha": 0.5, "beta": 0.5, "epilogue": ["swiglu", "residual"]},
        )
    ]
    + [
        bmm(3, 24, 40, 32, dtype="fp32", alpha=0.5, beta=2.0),
        bmm(3, 24, 40, 32, dtype="fp32", alpha=0.5, epilogue=["bias"]),
        bmm(3, 24, 40, 32, dtype="fp32", scales="row_column", epilogue=["relu"]),
        bmm(3, 24, 40, 32, dtype="fp32", epilogue=["swiglu"]),
        contraction("abk,ckd->abcd", {"a": 3, "b": 4, "c": 5, "d": 6, "k": 32}, dtype="fp32", epilogue=["geglu"]),
    ]
    + [
        gemm(24, 48, 32, dtype="fp8e4m3", layout="nt", **options)
        for options in (
            {},
            {"fast_accumulate": True, "out_dtype": "fp16"},
            {"out_dtype": "fp32"},
            {"scales": "tensor"},
            {"scales": "row_column"},
            {"scales": "row_column", "epilogue": ["bias", "relu"]},
            {"scales": "tensor", "epilogue": ["bias"], "out_dtype": "fp16"},
            {"scales": "tensor", "out_dtype": "fp32", "beta": 1.0},
            {"epilogue": ["scale"]},
            {"epilogue": ["swiglu"], "out_dtype": "fp32"},
        )
    ]
    + [contraction("km,nk->mn", {"m": 32, "n": 48, "k": 64}, dtype="fp8e4m3", strides={"a": (1, 64)})]
    + [
        gemm(24, 48, 32, dtype="int8", **options)
        for options in (
            {},
            {"layout": "tt"},
            {"layout": "nt", "out_dtype": "bf16"},
            {"epilogue": ["bias", "relu"]},
            {"layout": "nt", "scales": "row_column", "epilogue": ["bias"], "out_dtype": "fp32"},
            {"layout": "nt", "alpha": 0.5, "beta": 2.0, "out_dtype": "fp32"},
            {"epilogue": ["geglu"], "out_dtype": "fp32"},
        )
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


def _counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[dict[str, Any]]:
    """The keywords of each call of a function of torch."""
    calls: list[dict[str, Any]] = []
    real = getattr(torch, name)

    def call(*tensors: Any, **keywords: Any) -> Any:
        calls.append(keywords)
        return real(*tensors, **keywords)

    monkeypatch.setattr(torch, name, call)
    return calls


def _run(op: Op) -> Any:
    case, out = normal_case(op, "cpu", 0), allocate(op.output, "cpu")
    return vendor(op)(case.tensors, out.tensor)


@pytest.mark.parametrize(
    ("options", "alpha", "beta"),
    [
        ({"alpha": 0.5, "beta": -2.0}, 0.5, -2.0),
        ({"beta": 3.0}, 1.0, 3.0),
        ({"alpha": 0.5}, 0.5, 0.0),
        ({"alpha": 0.5, "epilogue": ["bias", "swiglu"]}, 0.5, 1.0),
    ],
    ids=str,
)
def test_alpha_and_beta_go_into_the_librarys_call(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], alpha: float, beta: float
) -> None:
    calls = _counted(monkeypatch, "addmm")
    _run(gemm(24, 40, 32, dtype="fp32", **options))
    assert [(call["alpha"], call["beta"]) for call in calls] == [(alpha, beta)]


@pytest.mark.parametrize("fast", [False, True])
def test_scales_and_bias_of_8_bit_floats_go_into_the_librarys_call(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    calls = _counted(monkeypatch, "_scaled_mm")
    op = gemm(24, 48, 32, dtype="fp8e4m3", layout="nt", scales="row_column", epilogue=["bias"], fast_accumulate=fast)
    _run(op)
    (call,) = calls
    assert call["use_fast_accum"] is fast
    assert (tuple(call["scale_a"].shape), tuple(call["scale_b"].shape)) == ((24, 1), (1, 48))
    assert tuple(call["bias"].shape) == (48,)
    assert call["scale_a"].is_contiguous()
    assert call["scale_b"].is_contiguous()


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (gemm(32, 32, 32, dtype="fp8e4m3"), "K contiguous"),
        (gemm(32, 32, 32, dtype="fp8e4m3", layout="tt"), "K contiguous"),
        (gemm(32, 32, 32, dtype="fp8e5m2", layout="nt"), "fp8e5m2"),
        (gemm(32, 24, 32, dtype="fp8e4m3", layout="nt"), "divisible by 16"),
        (gemm(32, 32, 40, dtype="fp8e4m3", layout="nt"), "divisible by 16"),
        (gemm(32, 32, 32, dtype="fp8e4m3", layout="nt", strides={"a": (40, 1)}), "divisible by 16"),
        (gemm(32, 32, 32, dtype="fp8e4m3", layout="nt", strides={"out": (40, 1)}), "dense row-major"),
        (bmm(2, 32, 32, 32, dtype="fp8e4m3", layout="nt"), "one matrix product"),
        (bmm(2, 32, 32, 32, dtype="int8"), "one matrix product"),
        (gemm(16, 32, 32, dtype="int8"), "M above 16"),
        (gemm(32, 36, 32, dtype="int8"), "divisible by 8"),
        (gemm(32, 32, 36, dtype="int8"), "divisible by 8"),
        (contraction("mk,nk->nm", {"m": 32, "n": 32, "k": 32}, dtype="int8"), "dense row-major"),
        (gemm(32, 256, 256, dtype="fp8e4m3", layout="nt", scales="block"), r"a_scale .* of 1, not 2.*\(1, 32\)"),
        (gemm(32, 256, 256, dtype="fp8e4m3", scales="block", strides={"a_scale": (1, 32)}), "takes b .* of 1, not 256"),
        (gemm(32, 256, 256, dtype="fp8e5m2", layout="nt", scales="block"), "no scales of blocks"),
        (gemm(32, 256, 256, scales="block"), "no scales of blocks"),
    ],
    ids=lambda value: value.key() if isinstance(value, Op) else "",
)
def test_what_the_library_does_not_take_is_unsupported(op: Op, text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        vendor(op)


def test_scales_of_blocks_go_into_the_librarys_call_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """As cuBLAS takes them: those of a column by column, those of b with the blocks of the reduction side by side."""
    options = {"layout": "nt", "scales": "block", "epilogue": ["bias", "relu"], "strides": {"a_scale": (1, 48)}}
    op = gemm(48, 256, 384, dtype="fp8e4m3", out_dtype="fp32", **options)  # type: ignore[arg-type]
    calls: list[dict[str, Any]] = []

    def scaled_mm(left: Any, right: Any, *, out: Any, **keywords: Any) -> Any:
        calls.append({"left": left, "right": right, **keywords})
        a = left.float() * keywords["scale_a"].repeat_interleave(128, 1)
        of_b = keywords["scale_b"].repeat_interleave(128, 0).repeat_interleave(128, 1)
        return out.copy_(a @ (right.float() * of_b))

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    run = vendor(op)

    def launch(*tensors: Any, workspace: object = None) -> None:
        tensors[-1].copy_(run(tensors[:-1], tensors[-1]))
        assert (calls[-1]["left"].data_ptr(), calls[-1]["right"].data_ptr()) == tuple(t.data_ptr() for t in tensors[:2])
        assert (calls[-1]["scale_a"].data_ptr(), calls[-1]["scale_b"].data_ptr()) == tuple(
            t.data_ptr() for t in tensors[2:4]
        )

    verdict = prove(op, launch, device="cpu")
    assert verdict.ok, verdict.reason
    call = calls[-1]
    assert (tuple(call["scale_a"].shape), call["scale_a"].stride()) == ((48, 3), (1, 48))
    assert (tuple(call["scale_b"].shape), call["scale_b"].T.is_contiguous()) == ((3, 2), True)
    assert (call["left"].stride(), call["right"].stride()) == ((384, 1), (1, 384))


def test_what_this_device_has_no_scales_of_blocks_for_is_unsupported() -> None:
    op = gemm(48, 256, 384, dtype="fp8e4m3", layout="nt", scales="block", strides={"a_scale": (1, 48)})
    with pytest.raises(UnsupportedError, match="the vendor library refuses"):
        _run(op)


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (ValueError("Expected b to be column-major"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul"), True),
        (RuntimeError("mat2 shape must be divisible by 16"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (torch.OutOfMemoryError("out of memory"), False),
    ],
    ids=str,
)
def test_a_refusal_is_unsupported_and_a_failure_is_not(
    monkeypatch: pytest.MonkeyPatch, error: Exception, refused: bool
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(torch, "_int_mm", fail)
    with pytest.raises(UnsupportedError if refused else type(error), match=str(error)):
        _run(gemm(32, 32, 32, dtype="int8"))
