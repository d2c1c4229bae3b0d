"""Tolerances let right kernels pass and catch wrong ones, and follow from the op's data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autosched.measure.proof import Case, Kernel, check_timing_output, integer_case, normal_case, prove, run_case
from autosched.measure.tensors import allocate
from autosched.measure.tolerance import Tolerance, proof_tolerance, timing_tolerance
from autosched.sketches.builders import gemm
from autosched.sketches.op import Op
from autosched.sketches.reference import reference_fp32

torch = pytest.importorskip("torch")

STEP = 32
"""Products that the tensor cores add up at once."""


def _cut(values: Any, unit: Any) -> Any:
    return torch.trunc(values / unit) * unit


def _unit(largest: Any) -> Any:
    """Last of 13 fraction bits of each value."""
    return torch.ldexp(torch.ones_like(largest), torch.frexp(largest)[1] - 1 - 13)


def tensor_core_sums(a: Any, b: Any, run: int) -> Any:
    """``a @ b`` as the tensor cores of Hopper and Ada sum 8-bit floats, added up in fp32 after each ``run`` terms.

    Of 32 products and the sum so far, each is cut to 13 fraction bits of the largest; so is the new sum.
    """
    total = torch.zeros(a.shape[0], b.shape[1])
    part = torch.zeros_like(total)
    for start in range(0, a.shape[1], STEP):
        terms = a[:, start : start + STEP, None] * b[None, start : start + STEP]
        terms = torch.cat([terms, part[:, None]], 1)
        unit = _unit(terms.abs().amax(1))
        part = _cut(terms, unit[:, None]).sum(1)
        part = torch.where(part == 0, part, _cut(part, _unit(part.abs())))
        if (start + STEP) % run == 0:
            total += part
            part.zero_()
    return total + part


def float8_kernel(op: Op, *, missing: int = 0) -> Kernel:
    """A kernel in the tensor cores' arithmetic; ``missing`` terms of its last tile are left out in one element."""
    k = op.extents["K"]

    def launch(*tensors: Any, workspace: Any = None) -> None:
        named = dict(zip([o.name for o in op.operands], tensors[:-1], strict=True))
        sums = {}
        for product in op.products:
            a, b = named[product.left].float(), named[product.right].float().T
            sums[product.accumulator] = tensor_core_sums(a, b, k if op.fast_accumulate else 128)
            if missing:
                sums[product.accumulator][3, 5] -= (a[3, -missing:] * b[-missing:, 5]).sum()
        value = sums["acc"]
        if "a_scale" in named:
            value = value * named["a_scale"][:, None] * named["b_scale"]
        if len(sums) > 1:
            value = torch.nn.functional.silu(value) * sums["acc_up"]
        tensors[-1].copy_(value)

    return Kernel(launch)


def block_kernel(op: Op, *, missing: int = 0, step: int = 128) -> Kernel:
    """A kernel with scales of blocks in the tensor cores' arithmetic; terms may be missing in one element."""

    def launch(*tensors: Any, workspace: Any = None) -> None:
        named = dict(zip([o.name for o in op.operands], tensors[:-1], strict=True))
        a, b = named["a"].float(), named["b"].float().T
        of_b = named["b_scale"].T.repeat_interleave(128, 1)
        total = torch.zeros(a.shape[0], b.shape[1])
        for k in range(0, a.shape[1], step):
            part = tensor_core_sums(a[:, k : k + step], b[k : k + step], step)
            if op.operand("a").dtype.name == "int8":
                part = a[:, k : k + step] @ b[k : k + step]
            if k == 0 and missing:
                part[3, 5] -= (a[3, :missing] * b[:missing, 5]).sum()
            total += part * (named["a_scale"][:, k // 128, None] * of_b[k // 128])
        tensors[-1].copy_(total)

    return Kernel(launch)


def _judged(op: Op, kernel: Kernel, case: Case) -> Any:
    out = allocate(op.output, "cpu")
    run_case(kernel, case, out, None)
    return check_timing_output(op, case, out)


@pytest.mark.parametrize("fast", [False, True], ids=["fp32", "fast"])
@pytest.mark.parametrize("dtype", ["fp8e4m3", "fp8e5m2"])
@pytest.mark.parametrize(
    "options",
    [{}, {"out_dtype": "fp32"}, {"scales": "row_column"}, {"epilogue": ["swiglu"]}],
    ids=["bf16", "fp32", "scaled", "gated"],
)
@pytest.mark.parametrize("k", [64, 512, 2048])
def test_the_arithmetic_of_tensor_cores_passes(k: int, options: dict[str, Any], dtype: str, fast: bool) -> None:
    op = gemm(48, 40, k, dtype=dtype, layout="nt", fast_accumulate=fast, **options)
    verdict = _judged(op, float8_kernel(op), normal_case(op, "cpu", 0))
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("fast", [False, True], ids=["fp32", "fast"])
@pytest.mark.parametrize(
    "options", [{}, {"scales": "row_column"}, {"epilogue": ["swiglu"]}], ids=["", "scaled", "gated"]
)
def test_an_element_that_lacks_a_tile_is_caught(options: dict[str, Any], fast: bool) -> None:
    op = gemm(16, 16, 2048, dtype="fp8e4m3", layout="nt", fast_accumulate=fast, **options)
    kernel = float8_kernel(op, missing=128)
    caught = [_judged(op, kernel, normal_case(op, "cpu", seed)) for seed in range(12)]
    assert all(verdict.wrong <= 1 for verdict in caught)
    # a tile's sum is sometimes near 0, and silu is where its argument is negative
    assert sum(verdict.index == (3, 5) for verdict in caught) >= (4 if len(op.products) > 1 else 8)


@pytest.mark.parametrize("step", [32, 128])
@pytest.mark.parametrize("options", [{}, {"out_dtype": "fp32"}, {"dtype": "fp8e5m2"}, {"dtype": "int8"}], ids=str)
def test_scales_of_blocks_pass_and_a_missing_step_is_caught(options: dict[str, Any], step: int) -> None:
    wanted = {"dtype": "fp8e4m3", "out_dtype": "fp32", **options}
    op = gemm(24, 128, 2048, layout="nt", scales="block", **wanted)
    caught = 0
    for seed in range(6):
        case = normal_case(op, "cpu", seed)
        verdict = _judged(op, block_kernel(op, step=step), case)
        assert verdict.ok, verdict.reason
        verdict = _judged(op, block_kernel(op, missing=32, step=step), case)
        assert verdict.wrong <= 1
        caught += verdict.index == (3, 5)
    assert caught >= 4  # the step's sum is sometimes near 0


@pytest.mark.parametrize("launch", [0, 1])
@pytest.mark.parametrize("dtype", ["fp8e4m3", "int8"])
def test_the_proof_of_scales_of_blocks_is_exact(dtype: str, launch: int) -> None:
    op = gemm(24, 128, 4096, dtype=dtype, layout="nt", scales="block", out_dtype="fp32")
    case = integer_case(op, "cpu", 0, launch)
    assert case.tolerance.exact
    assert _judged(op, block_kernel(op), case).ok
    assert _judged(op, block_kernel(op, step=32), case).ok
    wrong = [_judged(op, block_kernel(op, missing=128), integer_case(op, "cpu", seed, launch)) for seed in range(8)]
    assert sum(verdict.wrong for verdict in wrong) >= (6, 2)[launch]  # about half a term of 128 is not 0 in odd ones


def test_scales_of_blocks_widen_the_tolerance_by_their_largest_product() -> None:
    plain = timing_tolerance(gemm(16, 128, 4096, dtype="fp8e4m3", layout="nt"), {})
    scaled = timing_tolerance(gemm(16, 128, 4096, dtype="fp8e4m3", layout="nt", scales="block"), {})
    assert scaled.absolute == pytest.approx(1.5**2 * plain.absolute)
    assert scaled.relative == plain.relative
    # int8: 2^-20 * 4096 of fp32, times (255^2 - 1) / 12, the deviation of a product, and (1.5 / 64)^2
    integers = timing_tolerance(gemm(16, 128, 4096, dtype="int8", scales="block", out_dtype="bf16"), {})
    assert integers.absolute == pytest.approx(2**-8 * 65024 / 12 * (1.5 / 64) ** 2)


@pytest.mark.parametrize("launch", [0, 1])
def test_the_proofs_integers_are_exact_in_the_tensor_cores(launch: int) -> None:
    op = gemm(32, 32, 8192, dtype="fp8e4m3", layout="nt", out_dtype="fp32")
    case = integer_case(op, "cpu", 0, launch)
    a, b = (tensor.float() for tensor in case.tensors)
    assert torch.equal(tensor_core_sums(a, b.T, 8192), case.expected)
    assert case.tolerance.exact


def test_an_fp32_kernel_of_a_float8_op_must_not_be_as_far_off_as_fast_accumulation() -> None:
    precise, fast = (
        timing_tolerance(gemm(16, 16, 16384, dtype="fp8e4m3", fast_accumulate=fast), {}).absolute
        for fast in (False, True)
    )
    assert fast > 10 * precise
    # 24 * 2^-13 sqrt(128) sqrt(512) + 1.5 * 2^-13 sqrt(128) * 4 sqrt(128), and 2^-20 * 16384 * 2 of fp32
    assert precise == pytest.approx(0.75 + 0.09375 + 0.03125, rel=1e-6)


def test_the_timing_tolerance_follows_dtype_and_length() -> None:
    short, long = (timing_tolerance(gemm(16, 16, k), {}) for k in (64, 65536))
    assert short.relative == long.relative == 2**-7
    assert short.absolute == 64 * 2**-20
    assert long.absolute == 65536 * 2**-20 * 4
    assert timing_tolerance(gemm(16, 16, 64, dtype="tf32"), {}).absolute > 100 * short.absolute


def test_scales_and_alpha_multiply_the_tolerance() -> None:
    plain, op = gemm(4, 3, 64), gemm(4, 3, 64, scales="row_column", alpha=-8.0)
    rows, columns = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 0.5, 0.25])
    found = timing_tolerance(op, {"a_scale": rows, "b_scale": columns}).absolute
    torch.testing.assert_close(found, timing_tolerance(plain, {}).absolute * 8 * rows[:, None] * columns)


def test_a_gate_weighs_each_error_with_the_other_factor() -> None:
    op = gemm(6, 5, 64, dtype="fp32", epilogue=["swiglu"])
    case = normal_case(op, "cpu", 0)
    named = dict(zip(["a", "b", "up"], case.tensors, strict=True))
    x, y = named["a"] @ named["b"], named["a"] @ named["up"]
    error = 64 * 2**-20
    first = 1.13 * error + 1e-4
    expected = first * y.abs() + error * (torch.nn.functional.silu(x).abs() + first)
    torch.testing.assert_close(case.tolerance.absolute, expected)
    exact = proof_tolerance(op, named)
    torch.testing.assert_close(exact.absolute, 1e-4 * y.abs())
    assert exact.relative == 1e-5


@pytest.mark.parametrize(
    ("op", "exact"),
    [
        (gemm(16, 16, 64), True),
        (gemm(16, 16, 64, alpha=0.75, beta=-3.0), True),
        (gemm(16, 16, 64, alpha=0.3), False),
        (gemm(16, 16, 64, beta=0.1), False),
        (gemm(16, 16, 64, alpha=0.0, beta=1.0), True),
        (gemm(16, 16, 64, scales="row_column", alpha=0.5, beta=0.5, epilogue=["bias", "relu", "scale"]), True),
        (gemm(16, 16, 64, alpha=1 + 2**-12), False),
        (gemm(16, 16, 64, epilogue=["silu"]), False),
        (gemm(16, 16, 64, dtype="int8", scales="tensor", epilogue=["bias"]), True),
        (gemm(16, 128, 128, scales="block", epilogue=["bias", "relu"]), True),
        (gemm(16, 128, 128, scales="block", alpha=0.3), False),
    ],
    ids=lambda value: value.key() if isinstance(value, Op) else str(value),
)
def test_a_proof_asks_for_equality_where_every_step_is_exact(op: Op, exact: bool) -> None:
    assert proof_tolerance(op, {}).exact == exact


@pytest.mark.parametrize(
    ("options", "exact"),
    [
        ({}, True),
        ({"epilogue": ["bias", "relu"]}, True),
        ({"alpha": 2.0, "beta": 3.0}, True),
        ({"scales": "tensor"}, False),
        ({"epilogue": ["bias"], "out_dtype": "bf16"}, False),
        ({"alpha": 0.1}, False),
    ],
    ids=str,
)
def test_int8_is_exact_on_timing_data_while_everything_is_an_integer(options: dict[str, Any], exact: bool) -> None:
    op = gemm(16, 16, 1024, dtype="int8", **options)
    case = normal_case(op, "cpu", 0)
    assert case.tolerance.exact == exact
    assert gemm(16, 16, 2**22, dtype="int8").epilogue == ()
    assert timing_tolerance(gemm(16, 16, 2**22, dtype="int8"), {}).exact
    assert not timing_tolerance(gemm(16, 16, 2**22, dtype="int8", epilogue=["bias"]), {}).exact


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize("out_dtype", ["fp32", "fp16", "bf16"])
def test_a_kernel_that_fuses_multiplication_and_addition_passes(dtype: str, out_dtype: str) -> None:
    op = gemm(48, 40, 4096, dtype=dtype, out_dtype=out_dtype, alpha=0.3, beta=-0.7)
    if dtype == "int8":
        op = gemm(48, 40, 4096, dtype=dtype, out_dtype=out_dtype, scales="row_column", alpha=0.3, beta=-0.7)

    def launch(*tensors: Any, workspace: Any = None) -> None:
        named = {o.name: t.double() for o, t in zip(op.operands, tensors[:-1], strict=True)}
        value = named["a"] @ named["b"]
        if "a_scale" in named:
            value = value * named["a_scale"][:, None] * named["b_scale"]
        tensors[-1].copy_((0.3 * value - 0.7 * named["c"]).float())

    assert prove(op, launch, device="cpu", launches=4).ok
    verdict = _judged(op, Kernel(launch), normal_case(op, "cpu", 0))
    assert verdict.ok, verdict.reason

    def without_addend(*tensors: Any, workspace: Any = None) -> None:
        launch(*tensors[:-2], torch.zeros_like(tensors[-2]), tensors[-1])

    assert not prove(op, without_addend, device="cpu").ok
    assert _judged(op, Kernel(without_addend), normal_case(op, "cpu", 0)).wrong > 100


def test_an_integer_output_may_be_cut_on_either_side() -> None:
    op = gemm(16, 16, 64, dtype="int8", scales="tensor")
    case = normal_case(op, "cpu", 0)
    assert op.output.dtype.name == "int32"
    verdict = _judged(op, Kernel(lambda *t, workspace: t[-1].copy_(case.expected.round())), case)
    assert verdict.ok, verdict.reason
    assert _judged(op, Kernel(lambda *t, workspace: t[-1].copy_(case.expected + 3)), case).wrong == 256


def test_without_tolerance_equality_is_asked_for() -> None:
    assert Tolerance().exact
    assert not Tolerance(1e-5, 0.0).exact
    op = gemm(8, 8, 16)
    case = replace(normal_case(op, "cpu", 0), tolerance=Tolerance())
    named = dict(zip("ab", case.tensors, strict=True))
    assert not _judged(op, Kernel(lambda a, b, out, *, workspace: out.copy_(reference_fp32(op, named))), case).ok
