"""The proof finds every fault that it has to find, and lets right kernels pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autosched.measure.proof import (
    Kernel,
    check_timing_output,
    integer_case,
    normal_case,
    prove,
    prove_many,
    run_case,
)
from autosched.measure.tensors import allocate
from autosched.sketches.builders import contraction, gemm
from autosched.sketches.op import Op
from autosched.sketches.reference import reference

torch = pytest.importorskip("torch")

Launch = Callable[..., Any]


def right(op: Op) -> Launch:
    """A kernel that is right: it computes the reference."""

    def launch(*tensors: Any, workspace: Any = None) -> None:
        *inputs, out = tensors
        names = [operand.name for operand in op.operands]
        out.copy_(reference(op, dict(zip(names, inputs, strict=True))))

    return launch


def spoiled(op: Op, spoil: Callable[..., None]) -> Launch:
    """A right kernel that then does something else: ``spoil(out, *inputs)``."""
    good = right(op)

    def launch(*tensors: Any, workspace: Any = None) -> None:
        good(*tensors)
        spoil(tensors[-1], *tensors[:-1])

    return launch


GEMM = gemm(48, 40, 64)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "tf32"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_a_right_gemm_passes(dtype: str, layout: str) -> None:
    op = gemm(33, 40, 65, dtype=dtype, layout=layout)
    assert prove(op, right(op), device="cpu").ok


@pytest.mark.parametrize(
    "op",
    [
        gemm(32, 48, 64, epilogue=["bias", "relu"]),
        gemm(32, 48, 64, epilogue=["residual"], dtype="fp16"),
        gemm(32, 48, 64, epilogue=["bias", "gelu"]),
        gemm(32, 48, 64, epilogue=["silu", "residual"], dtype="fp16"),
        gemm(32, 48, 64, epilogue=["gelu_tanh"], dtype="fp32"),
        gemm(32, 48, 64, out_dtype="fp32"),
        gemm(32, 48, 64, strides={"a": (70, 1), "b": (50, 1), "out": (64, 1)}),
        gemm(32, 48, 64, dtype="fp8e4m3", layout="nt", scales="row_column", epilogue=["bias"]),
        gemm(32, 48, 64, dtype="fp8e4m3", layout="nt", scales="tensor", fast_accumulate=True, out_dtype="fp16"),
        gemm(32, 48, 64, dtype="fp8e5m2", epilogue=["swiglu"]),
        gemm(32, 48, 64, dtype="int8"),
        gemm(32, 48, 64, dtype="int8", epilogue=["bias", "relu"]),
        gemm(32, 48, 64, dtype="int8", scales="row_column", epilogue=["bias"], out_dtype="fp16"),
        gemm(32, 48, 64, epilogue=["bias", "swiglu"], dtype="fp16"),
        gemm(32, 48, 64, epilogue=["geglu", "residual"]),
        gemm(32, 48, 64, alpha=0.5, beta=-2.0),
        gemm(32, 48, 64, alpha=3.0, epilogue=["scale", "relu"], dtype="fp32"),
        contraction("bmk,bkn->bmn", {"b": 3, "m": 16, "n": 24, "k": 32}),
        contraction("mk,bkn->bmn", {"b": 3, "m": 16, "n": 24, "k": 32}, epilogue=["bias"]),
        contraction("abk,ckd->abcd", {"a": 3, "b": 4, "c": 5, "d": 6, "k": 32}),
    ],
    ids=lambda op: op.key(),
)
def test_right_kernels_of_other_ops_pass(op: Op) -> None:
    verdict = prove(op, right(op), device="cpu", launches=4)
    assert verdict.ok, verdict.reason
    functions = [s for s in op.epilogue if s.kind in ("gelu", "gelu_tanh", "silu")]
    assert integer_case(op, "cpu", 0, 0).tolerance.exact == (not functions)


def _column(out: Any, *_: Any) -> None:
    out[:, 7] = 0


def _element(out: Any, *_: Any) -> None:
    out[13, 5] += 1


def _nan(out: Any, *_: Any) -> None:
    out[47, 39] = float("nan")


def _behind(out: Any, *_: Any) -> None:
    out.as_strided((1,), (1,), out.storage_offset() + out.numel())[0] = 3


def _before(out: Any, *_: Any) -> None:
    out.as_strided((1,), (1,), out.storage_offset() - 1)[0] = 3


def _input(out: Any, a: Any, b: Any) -> None:
    b[3, 4] += 1


def _around_input(out: Any, a: Any, b: Any) -> None:
    a.as_strided((1,), (1,), a.storage_offset() + a.numel())[0] = 0


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(_column, "of 1920 elements are wrong", id="a column of zeros"),
        pytest.param(_element, "1 of 1920 elements are wrong, at worst (13, 5)", id="one element"),
        pytest.param(_nan, "at worst (47, 39): nan", id="NaN"),
        pytest.param(_behind, "1 elements outside the output were written", id="a write behind the output"),
        pytest.param(_before, "1 elements outside the output were written", id="a write before the output"),
        pytest.param(_input, "input b was changed (1 elements)", id="a changed input"),
        pytest.param(_around_input, "the memory around input a was changed", id="a write behind an input"),
    ],
)
def test_a_fault_is_found_and_named(spoil: Callable[..., None], reason: str) -> None:
    verdict = prove(GEMM, spoiled(GEMM, spoil), device="cpu", launches=4)
    assert not verdict.ok
    assert reason in verdict.reason


def test_a_wrong_element_is_described() -> None:
    op = gemm(48, 40, 64, dtype="fp32")
    verdict = prove(op, spoiled(op, _element), device="cpu")
    assert (verdict.index, verdict.wrong) == ((13, 5), 1)
    assert verdict.got is not None
    assert verdict.expected is not None
    assert verdict.got == verdict.expected + 1


def test_a_write_into_a_stride_gap_is_found() -> None:
    op = gemm(16, 24, 32, strides={"out": (32, 1)})

    def gap(out: Any, *_: Any) -> None:
        out.as_strided((1,), (1,), out.storage_offset() + 5 * 32 + 24)[0] = 0

    verdict = prove(op, spoiled(op, gap), device="cpu")
    assert verdict.reason == "launch 0: 1 elements outside the output were written"


def test_a_kernel_that_writes_nothing_is_found() -> None:
    def nothing(*_: Any, workspace: Any = None) -> None:
        pass

    verdict = prove(GEMM, nothing, device="cpu")
    assert verdict.wrong == 48 * 40
    assert "NaN: not written" in verdict.reason


def test_a_kernel_that_writes_nothing_is_found_though_a_right_one_left_its_answer_there() -> None:
    def nothing(*_: Any, workspace: Any = None) -> None:
        pass

    out, cases = allocate(GEMM.output, "cpu"), [integer_case(GEMM, "cpu", 0, 0)]
    assert prove(GEMM, right(GEMM), device="cpu", launches=1, cases=cases, out=out).ok
    assert prove(GEMM, nothing, device="cpu", launches=1, cases=cases, out=out).wrong == 48 * 40


def test_a_missing_term_is_found_although_bf16_rounds_it_away_in_large_sums() -> None:
    op = gemm(64, 64, 32768)

    def launch(a: Any, b: Any, out: Any, *, workspace: Any = None) -> None:
        out.copy_(a[:, :-1].float() @ b[:-1].float())

    verdict = prove(op, launch, device="cpu")
    assert not verdict.ok
    assert verdict.wrong > 0


def test_a_kernel_that_is_wrong_once_in_a_while_is_found_by_many_launches() -> None:
    launches = 0

    def rarely(out: Any, *_: Any) -> None:
        nonlocal launches
        launches += 1
        if launches == 40:
            out[0, 0] += 1

    op = gemm(16, 16, 16)
    verdict, other = prove_many(op, [spoiled(op, rarely), right(op)], device="cpu", launches=50)
    assert other.ok
    assert not verdict.ok
    assert verdict.reason.startswith("launch 39: 1 of 256")


def test_inputs_are_restored_after_a_kernel_changed_them() -> None:
    case = normal_case(GEMM, "cpu", 0)
    before = case.tensors[1].clone()
    out = allocate(GEMM.output, "cpu")
    run_case(Kernel(spoiled(GEMM, _input)), case, out, None)
    assert "input b was changed" in check_timing_output(GEMM, case, out).reason
    assert torch.equal(case.tensors[1], before)


def test_a_workspace_is_poisoned_unless_zeros_are_promised_and_its_guards_are_checked() -> None:
    def launch(a: Any, b: Any, out: Any, *, workspace: Any) -> None:
        workspace[: out.numel()] += (a.float() @ b.float()).flatten()
        out.copy_(workspace[: out.numel()].view(out.shape))

    def clean(a: Any, b: Any, out: Any, *, workspace: Any) -> None:
        launch(a, b, out, workspace=workspace)
        workspace[: out.numel()] = 0.0

    size = 4 * 48 * 40
    assert prove(GEMM, Kernel(clean, size, workspace_zeroed=size), device="cpu").ok
    assert "had to be left zero" in prove(GEMM, Kernel(launch, size, workspace_zeroed=size), device="cpu").reason
    assert "NaN" in prove(GEMM, Kernel(launch, size), device="cpu").reason

    def beyond(a: Any, b: Any, out: Any, *, workspace: Any) -> None:
        right(GEMM)(a, b, out)
        workspace.as_strided((1,), (1,), workspace.storage_offset() + workspace.numel())[0] = 1

    assert "1 elements outside the workspace" in prove(GEMM, Kernel(beyond, size), device="cpu").reason


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("k", [32, 4096])
def test_timing_output_of_a_right_kernel_passes_and_of_a_nearly_right_one_fails(dtype: str, k: int) -> None:
    op = gemm(64, 48, k, dtype=dtype, epilogue=["bias"])
    case = normal_case(op, "cpu", 0)
    out = allocate(op.output, "cpu")

    def chunked(a: Any, b: Any, bias: Any, out: Any, *, workspace: Any = None) -> None:
        total = torch.zeros(out.shape)
        for start in range(0, k, 32):
            total += a[:, start : start + 32].float() @ b[start : start + 32].float()
        out.copy_(total + bias.float())

    run_case(Kernel(chunked), case, out, None)
    assert check_timing_output(op, case, out).ok

    def last_term_missing(a: Any, b: Any, bias: Any, out: Any, *, workspace: Any = None) -> None:
        chunked(a[:, :-1], b[:-1], bias, out)

    run_case(Kernel(last_term_missing), case, out, None)
    verdict = check_timing_output(op, case, out)
    assert not verdict.ok
    assert verdict.reason.startswith("timed launch: ")


def _integers(k: int) -> Launch:
    def launch(a: Any, b: Any, out: Any, *, workspace: Any = None) -> None:
        out.copy_(a[:, :k].double() @ b[:k].double())

    return launch


@pytest.mark.parametrize("out_dtype", ["int32", "bf16", "fp32"])
def test_sums_of_int8_are_exact_on_timing_data_too(out_dtype: str) -> None:
    op = gemm(48, 40, 4096, dtype="int8", out_dtype=out_dtype)
    case, out = normal_case(op, "cpu", 0), allocate(op.output, "cpu")
    assert case.tolerance.exact
    assert case.expected.dtype == out.tensor.dtype
    run_case(Kernel(_integers(4096)), case, out, None)
    assert check_timing_output(op, case, out).ok
    out.tensor[3, 4] += 1 if out_dtype == "int32" else abs(out.tensor[3, 4]) / 128
    assert check_timing_output(op, case, out).wrong == 1


def test_an_integer_that_fp32_would_round_away_is_wrong_and_named() -> None:
    op = gemm(16, 16, 64, dtype="int8")
    case, out = normal_case(op, "cpu", 0), allocate(op.output, "cpu")
    case.expected.fill_(2**25)
    run_case(Kernel(lambda a, b, out, *, workspace: out.fill_(2**25)), case, out, None)
    out.tensor[2, 3] += 1
    verdict = check_timing_output(op, case, out)
    assert (verdict.index, verdict.got, verdict.expected) == ((2, 3), 2.0**25 + 1, 2.0**25)
    assert "33554433 instead of 33554432" in verdict.reason


def test_values_beyond_fp16_may_be_infinite_and_nothing_else() -> None:
    op = gemm(16, 16, 64, dtype="fp16")
    case, out = normal_case(op, "cpu", 0), allocate(op.output, "cpu")
    run_case(Kernel(right(op)), case, out, None)
    case.expected[1, 2] = 70000.0
    for value, ok in ((torch.inf, True), (65504.0, True), (-torch.inf, False), (60000.0, False), (torch.nan, False)):
        out.tensor[1, 2] = value
        assert check_timing_output(op, case, out).ok == ok, value


@pytest.mark.parametrize("step", ["swiglu", "geglu"])
def test_a_pair_that_is_gated_the_wrong_way_round_is_found(step: str) -> None:
    op = gemm(32, 48, 64, epilogue=[step])
    good = right(op)

    def turned(a: Any, b: Any, up: Any, out: Any, *, workspace: Any = None) -> None:
        good(a, up, b, out)

    assert prove(op, turned, device="cpu", launches=1).wrong > 32 * 48 // 4
