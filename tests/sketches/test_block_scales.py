"""Scales of blocks: a factor for each 128 terms of a row of a and for each 128 x 128 of b."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from autosched.errors import InvalidInputError, UnsupportedError
from autosched.measure.compiling import CompilePool
from autosched.record import Status
from autosched.sketches.builders import bmm, build, build_named, contraction, gemm, grouped_gemm
from autosched.sketches.codegen import generate
from autosched.sketches.constraints import explain_invalid, shared_lower_bound, why_invalid
from autosched.sketches.nodes import ScaledCombine
from autosched.sketches.op import Affine, Op
from autosched.sketches.reference import reference, reference_fp32
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.view import MatrixView, matrix_views, run_length
from tests.sketches.compiled import TARGET, Compiled, compile_all, opened, scheduled
from tests.sketches.interpret import failures, interpret

LAYOUTS = ("nn", "nt", "tn", "tt")


def block(m: int, n: int, k: int, **options: Any) -> Op:
    """A GEMM with scales of blocks, of 8-bit floats with K contiguous in both inputs if not said otherwise."""
    return gemm(m, n, k, scales="block", **{"dtype": "fp8e4m3", "layout": "nt", **options})


def view(op: Op) -> MatrixView:
    (found,) = matrix_views(op)
    return found


# -- the op ---------------------------------------------------------------------------------------------------------
def test_the_key_shows_blocks_and_factors_and_the_loops_are_a_gemms() -> None:
    op = block(4096, 512, 1024)
    assert op.key() == (
        "M4096,NB4,NI128,KB8,KI128/a[M(128KB+KI)]fp8e4m3,b[(128NB+NI)(128KB+KI)]fp8e4m3,"
        "a_scale[MKB]fp32,b_scale[NBKB]fp32,out[M(128NB+NI)]bf16/a*b*a_scale*b_scale"
    )
    plain = gemm(4096, 512, 1024, dtype="fp8e4m3", layout="nt")
    assert op.iteration_space() == plain.iteration_space() == "M4096.N512.K1024"
    assert op.loops == plain.loops == {"M": 4096, "N": 512, "K": 1024}
    assert op.flops == plain.flops
    assert op.compulsory_bytes[0] == plain.compulsory_bytes[0] + 4 * (4096 * 8 + 4 * 8)
    assert (op.factors, plain.factors) == (("a_scale", "b_scale"), ())


@pytest.mark.parametrize(("layout", "of_b"), [("nn", (4, 2)), ("nt", (2, 4)), ("tn", (4, 2)), ("tt", (2, 4))])
def test_factors_of_b_are_stored_in_its_order_and_those_of_a_row_by_row(layout: str, of_b: tuple[int, int]) -> None:
    op = block(70, 256, 512, layout=layout)
    assert (op.operand("a_scale").shape, op.operand("b_scale").shape) == ((70, 4), of_b)
    plain = gemm(70, 256, 512, dtype="fp8e4m3", layout=layout)
    for name in ("a", "b", "out"):
        assert (op.operand(name).shape, op.operand(name).strides) == (
            plain.operand(name).shape,
            plain.operand(name).strides,
        )


def test_sums_are_fp32_even_of_integers() -> None:
    op = block(64, 128, 128, dtype="int8")
    assert (op.accumulate, op.output.dtype.name) == ("fp32", "int32")
    assert gemm(64, 128, 128, dtype="int8").accumulate == "int32"


@pytest.mark.parametrize(
    "op",
    [
        block(7, 128, 256, epilogue=["bias", "relu"], out_dtype="fp32"),
        block(7, 128, 256, dtype="fp16", layout="tn", alpha=0.5, beta=2.0),
        block(64, 256, 128, dynamic=["M"], strides={"a_scale": (1, 64), "a": (144, 1)}, deterministic=True),
    ],
    ids=lambda op: op.key(),
)
def test_specs_build_the_op_again(op: Op) -> None:
    again = build(op.spec)
    assert (again, again.key(), again.spec) == (op, op.key(), op.spec)
    assert op.spec["scales"] == "block"
    assert build_named("gemm", (7, 128, 256), dtype="fp8e4m3", layout="nt", scales="block") == block(7, 128, 256)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: block(64, 128, 200), UnsupportedError, "K = 200 .*blocks of 128 .*pad"),
        (lambda: block(64, 72, 128), UnsupportedError, "N = 72 .*blocks of 128 .*pad"),
        (lambda: block(64, 128, 128, layout="tn", dynamic=["K"]), UnsupportedError, "dynamic axis 'K'"),
        (lambda: block(64, 128, 128, fast_accumulate=True), UnsupportedError, "fast_accumulate with scales of blocks"),
        (lambda: block(64, 128, 128, epilogue=["swiglu"]), UnsupportedError, "gated pair"),
        (lambda: block(64, 128, 128, strides={"a_scale": (1,)}), InvalidInputError, "give 2"),
        (lambda: block(64, 128, 128, strides={"bias": (1,)}), InvalidInputError, "a, b, a_scale, b_scale and out"),
        (lambda: gemm(64, 128, 128, strides={"a_scale": (1, 1)}), InvalidInputError, "a, b and out have strides"),
        (lambda: bmm(2, 64, 128, 128, scales="block"), UnsupportedError, "scales of blocks in this op"),
        (lambda: grouped_gemm(2, 64, 128, 128, scales="block"), UnsupportedError, "scales of blocks in this op"),
        (
            lambda: contraction("mk,kn->mn", {"m": 64, "n": 128, "k": 128}, scales="block"),
            UnsupportedError,
            "scales of blocks in this op",
        ),
    ],
)
def test_what_has_no_such_scales_is_named(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


# -- views ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("index", "axes"),
    [
        (Affine((("x", 1),)), ("x",)),
        (Affine((("x", 5), ("y", 1))), ("x", "y")),
        (Affine((("w", 15), ("x", 5), ("y", 1))), ("w", "x", "y")),
        (Affine((("y", 3), ("x", 1))), ("y", "x")),
        (Affine((("x", 4), ("y", 1))), ()),  # windows that overlap
        (Affine((("x", 6), ("y", 1))), ()),  # a gap
        (Affine((("x", 10), ("y", 2))), ()),
        (Affine((("x", 5), ("y", 1)), const=1), ()),
        (Affine((("x", 5), ("y", 1)), divisor=5), ()),
        (Affine(()), ()),
    ],
    ids=str,
)
def test_an_index_is_axes_walked_as_one_where_its_coefficients_nest(index: Affine, axes: tuple[str, ...]) -> None:
    assert index.merged({"w": 2, "x": 3, "y": 5}) == axes


def test_blocks_fuse_into_the_rows_columns_and_terms_of_a_gemm() -> None:
    op = block(70, 256, 384, epilogue=["bias"])
    found, plain = view(op), view(gemm(70, 256, 384, dtype="fp8e4m3", layout="nt", epilogue=["bias"]))
    assert found.tag == "M=M N=NBNI K=KBKI"
    for group in ("m", "n", "k"):
        (fused,), (single,) = found.group(group), plain.group(group)
        assert (fused.extent, fused.strides) == (single.extent, single.strides)
    for name in ("a", "b", "out"):
        assert found.row_alignment(op.operand(name)) == plain.row_alignment(op.operand(name))


def test_run_lengths_are_those_of_the_blocks() -> None:
    op = block(70, 256, 384)
    found = view(op)
    assert [run_length(op, found, g, ("a_scale",)) for g in "mnk"] == [1, 256, 128]
    assert [run_length(op, found, g, ("b_scale",)) for g in "mnk"] == [70, 128, 128]
    assert [run_length(op, found, g, op.factors) for g in "mnk"] == [1, 128, 128]
    assert [run_length(op, found.transposed(), g, ("a_scale",)) for g in "mnk"] == [256, 1, 128]
    assert run_length(op, found, "k", ()) == 384


@pytest.mark.parametrize("m", [3, 70])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_sketches_are_those_of_a_gemm_without_the_sums_of_few_rows(layout: str, m: int) -> None:
    plain = derive(gemm(m, 256, 384, dtype="fp8e4m3", layout=layout), TARGET)
    found = derive(block(m, 256, 384, layout=layout), TARGET)
    assert {s.name for s in found} == {s.name for s in plain if not s.combine.summed}
    assert {s.combine for s in found} == {ScaledCombine(128)}
    assert {s.combine.tag for s in found} == {"scaled"}
    assert {knob.values for s in found for knob in s.knobs if knob.name == "block_k"} == {(32, 64, 128)}
    assert "the sum of each step times its factors" in found[0].explain()


# -- the reference --------------------------------------------------------------------------------------------------
def tensors(op: Op, *, integers: bool) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    made = {}
    for o in op.operands:
        shape = o.shape
        values = torch.randint(-2, 3, shape, generator=generator).float()
        if not integers:
            values = torch.randn(shape, generator=generator)
        elif "scale" in o.name:
            values = 2.0**values
        made[o.name] = torch.empty_strided(shape, o.strides, dtype=getattr(torch, o.dtype.torch)).copy_(values)
    return made


def dequantised(layout: str, t: dict[str, Any]) -> Any:
    """``a @ b`` of both inputs times what stands for each of their elements, repeated as it is documented."""
    a, b, of_b = t["a"].float(), t["b"].float(), t["b_scale"]
    a = a if layout[0] == "n" else a.T
    b, of_b = (b, of_b) if layout[1] == "n" else (b.T, of_b.T)
    a = a * t["a_scale"].repeat_interleave(128, 1)
    return a @ (b * of_b.repeat_interleave(128, 0).repeat_interleave(128, 1))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["fp8e4m3", "fp8e5m2", "fp16", "int8", "fp32"])
def test_the_reference_is_a_product_of_what_the_inputs_stand_for(dtype: str, layout: str) -> None:
    torch = pytest.importorskip("torch")
    op = block(13, 256, 384, dtype=dtype, layout=layout, out_dtype="fp32")
    t = tensors(op, integers=True)
    assert torch.equal(reference(op, t), dequantised(layout, t))
    if dtype != "int8":
        t = tensors(op, integers=False)
        torch.testing.assert_close(reference_fp32(op, t), dequantised(layout, t), rtol=1e-5, atol=1e-3)


def test_the_reference_goes_on_with_the_epilogue_and_takes_strides() -> None:
    torch = pytest.importorskip("torch")
    op = block(
        13, 256, 128, dtype="fp16", alpha=0.5, epilogue=["bias", "row_scale", "residual"], strides={"a_scale": (1, 16)}
    )
    t = tensors(op, integers=True)
    expected = (0.5 * dequantised("nt", t) + t["bias"].float()) * t["row_scale"][:, None] + t["residual"].float()
    assert torch.equal(reference_fp32(op, t), expected)


# -- the source -----------------------------------------------------------------------------------------------------
def scaling(op: Op, name: str, **knobs: int) -> list[str]:
    """Lines of the kernel that deal with factors."""
    source = generate(op, scheduled(op, name, **knobs)).source
    return [line.strip() for line in source.splitlines() if re.match(r"    .*(_scale\d*_|acc\d* \+=)", line)]


def test_a_tile_within_one_block_of_columns_takes_one_factor_of_b() -> None:
    assert scaling(block(700, 512, 1024), "grid.tma-tma.direct-tma", block_n=64, block_k=64) == [
        "a_scale_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)",
        "a_scale_base = a_scale_ptr + a_scale_m * 8",
        "b_scale_n = tile_n * BLOCK_N",
        "b_scale_base = b_scale_ptr + b_scale_n // 128 * 8",
        "a_scale = tl.load(a_scale_base + k0 // 128, mask=(a_scale_m < M), other=0.0)",
        "b_scale = tl.load(b_scale_base + k0 // 128)",
        "acc += tl.dot(a, b) * (a_scale[:, None] * b_scale)",
    ]


def test_wider_tiles_and_pieces_take_a_factor_for_each_column_where_they_must() -> None:
    wide = scaling(block(512, 512, 256, layout="nn"), "grid.tma-tma.direct-tma", block_n=256)
    assert "b_scale_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)" in wide
    assert "b_scale = tl.load(b_scale_base + k0 // 128 * 4)" in wide
    assert wide[-1] == "acc += tl.dot(a, b) * (a_scale[:, None] * b_scale[None, :])"
    pieces = scaling(block(512, 512, 256), "grid.tma-tma.direct-tma", block_n=192)
    assert "b_scale0_n = tile_n * BLOCK_N + tl.arange(0, 128)" in pieces  # begins at any multiple of 64
    assert "b_scale1_n = tile_n * BLOCK_N + 128" in pieces  # 64 columns, which may lie beyond the last one
    assert "b_scale1 = tl.load(b_scale1_base + k0 // 128, mask=(b_scale1_n < N), other=0.0)" in pieces
    assert pieces[-2:] == [
        "acc0 += tl.dot(a, b0) * (a_scale[:, None] * b_scale0[None, :])",
        "acc1 += tl.dot(a, b1) * (a_scale[:, None] * b_scale1)",
    ]


def test_rows_of_a_swapped_tile_are_bs() -> None:
    lines = scaling(block(3, 512, 256), "swap.grid.tma-tma.direct-tma", block_m=128)
    assert "b_scale_m = tile_m * BLOCK_M" in lines
    assert "a_scale = tl.load(a_scale_base + k0 // 128, mask=(a_scale_n < N), other=0.0)" in lines
    assert lines[-1] == "acc += tl.dot(b, a) * (a_scale[None, :] * b_scale)"


def test_dots_have_the_keywords_of_their_type_and_no_promotion() -> None:
    """A step of 128 terms at most leaves the tensor cores' accumulator anyway."""
    dots = {
        dtype: scaling(block(512, 512, 256, dtype=dtype), "grid.tma-tma.direct-tma")[-1].split(" * (")[0]
        for dtype in ("fp8e4m3", "int8", "tf32", "bf16")
    }
    assert dots == {
        "fp8e4m3": "acc += tl.dot(a, b)",
        "int8": "acc += tl.dot(a, b, out_dtype=tl.int32)",
        "tf32": 'acc += tl.dot(a, b, input_precision="tf32")',
        "bf16": "acc += tl.dot(a, b)",
    }


def test_offsets_past_32_bits_are_wide() -> None:
    rows = scaling(block(4096, 512, 256, strides={"a_scale": (2**20, 1)}), "grid.tma-tma.direct-tma")
    assert "a_scale_base = a_scale_ptr + a_scale_m.to(tl.int64) * 1048576" in rows
    columns = scaling(block(4096, 512, 32768, strides={"a_scale": (1, 2**24)}), "grid.tma-tma.direct-tma")
    assert any("a_scale_base + tl.full((), k0, tl.int64) // 128 * 16777216" in line for line in columns)
    dynamic = scaling(block(4096, 512, 256, dynamic=["M"]), "grid.tma-tma.direct-tma")
    assert "a_scale_base = a_scale_ptr + a_scale_m.to(tl.int64) * 2" in dynamic


# -- the interpreter ------------------------------------------------------------------------------------------------
def small(op: Op, **fixed: int) -> list[tuple[Op, Schedule]]:
    """A schedule of each of the op's sketches, with small tiles, three parts and two pieces."""
    work = []
    wanted = {"block_m": 32, "block_n": 64, "block_k": 64, "group_m": 2, "split_k": 3, "subtile": 2, **fixed}
    for sketch in derive(op, TARGET):
        domains = {knob.name: knob for knob in sketch.knobs}
        knobs = {name: domains[name].nearest(value) for name, value in wanted.items() if name in domains}
        schedule = Schedule.of(sketch, **knobs)
        if explain_invalid(op, TARGET, schedule) is None:
            work.append((op, schedule))
    return work


def interpreted(work: list[tuple[Op, Schedule]], **options: Any) -> list[dict[str, Any]]:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    results = interpret(work, **options)
    assert failures(work, results) == []
    return results


def test_every_sketch_is_right() -> None:
    work = small(block(66, 128, 256, out_dtype="fp32"))
    parts = {part for _, s in work for part in s.sketch.name.replace("-", ".").split(".")}
    assert parts == {"grid", "persistent", "split", "stream", "ptr", "tma", "direct", "subtiled", "workspace", "atomic"}
    interpreted(work)


def test_every_sketch_of_few_rows_is_right() -> None:
    work = small(block(3, 256, 256, out_dtype="fp16"), block_m=64, split_k=2)
    assert sum(s.sketch.view.swapped for _, s in work) == len(work) // 2 >= 16
    interpreted(work)


def test_copies_are_scaled_too() -> None:
    work = [(op, s) for op, s in small(block(70, 256, 256, layout="nn", out_dtype="fp16")) if "copy" in s.sketch.name]
    assert len(work) >= 8
    interpreted(work[::2])


@pytest.mark.parametrize("block_n", [96, 128, 192, 256])
def test_pieces_and_tiles_wider_than_a_block_are_right(block_n: int) -> None:
    """The last tile of 192 or 256 columns overhangs."""
    names = (
        "grid.ptr-ptr.direct-ptr",
        "split.tma-ptr.atomic",
    )
    work = small(block(40, 640, 256, dtype="fp16"), block_n=block_n, block_k=128)
    interpreted([pair for pair in work if pair[1].sketch.name in names])
    turned = small(block(17, 640, 128, dtype="fp16"), block_m=block_n, block_n=16)
    interpreted([pair for pair in turned if pair[1].sketch.name == "swap.grid.ptr-ptr.direct-ptr"])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["fp16", "int8", "fp32"])
def test_layouts_types_strides_and_epilogues_are_right(dtype: str, layout: str) -> None:
    op = block(
        37, 128, 256, dtype=dtype, layout=layout, out_dtype="fp32", alpha=0.5, epilogue=["bias", "relu"],
        strides={"a_scale": (1, 40), "b_scale": (5, 2)},
    )  # fmt: skip
    work = small(op, block_k=32)
    interpreted(work[:: max(1, len(work) // 2)])


def test_one_source_serves_all_numbers_of_rows() -> None:
    op = block(72, 128, 256, dtype="fp16", dynamic=["M"], epilogue=["bias"])
    work = small(op)[::4]
    results = interpreted(work, sizes=[{"M": m} for m in (0, 1, 72, 17)])
    assert all(len(set(r["digests"])) == 4 for r in results)


def test_factors_of_the_wrong_block_would_be_seen() -> None:
    """With the factors of another block of terms or columns the answer differs."""
    op = block(8, 256, 256, out_dtype="fp32")
    t = tensors(op, integers=True)
    for name, dimension in (("a_scale", 0), ("a_scale", 1), ("b_scale", 0), ("b_scale", 1)):
        other = {**t, name: t[name].roll(1, dimension)}
        assert int((reference(op, t) != reference(op, other)).sum()) > 500, (name, dimension)


# -- compiled -------------------------------------------------------------------------------------------------------
BIG = {"block_m": 128, "block_n": 128, "block_k": 128, "warps": 8, "stages": 3}
FP8 = block(4096, 4096, 4096)
CASES: dict[str, tuple[Op, str, dict[str, int]]] = {
    "grid": (FP8, "grid.tma-tma.direct-tma", {}),
    "persistent": (
        block(4096, 4096, 4096, strides={"a_scale": (1, 4096)}),
        "persistent.tma-tma.subtiled-tma",
        {"subtile": 2},
    ),
    "pieces": (FP8, "grid.tma-tma.direct-tma", {"block_n": 192}),
    "swapped": (block(16, 4096, 4096), "swap.split.tma-tma.workspace", {"block_n": 16, "warps": 4}),
    "bf16 by pointers": (block(4001, 4096, 4096, dtype="bf16"), "grid.ptr-ptr.direct-ptr", {"block_k": 64}),
    "far factors": (
        block(4096, 4096, 32768, strides={"a_scale": (1, 2**24)}),
        "grid.tma-tma.direct-tma",
        {"block_k": 64},
    ),
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Compiled]]:
    pytest.importorskip("triton")
    with opened(tmp_path_factory.mktemp("cache")) as pool:
        yield _compiled(pool)


def _compiled(pool: CompilePool) -> dict[str, Compiled]:
    work = [(op, scheduled(op, name, **{**BIG, **knobs})) for op, name, knobs in CASES.values()]
    return dict(zip(CASES, compile_all(pool, work), strict=True))


@pytest.mark.slow
def test_kernels_compile_to_the_tensor_cores_of_hopper_with_operands_in_shared_memory(
    cases: dict[str, Compiled],
) -> None:
    for name, case in cases.items():
        assert case.result.status is Status.OK, (name, case.result.error)
        knobs, size = case.schedule.knobs, case.op.operands[0].dtype.bytes
        count = knobs["block_k"] * size // 32 * (knobs["block_m"] // 64) * 4 // knobs["warps"]
        count *= 2 if knobs["block_n"] == 192 else 1
        assert case.features["wgmma"] == count, name
        assert case.features["mma"] == case.features["register_a"] == case.features["register_a_hazard"] == 0, name
        assert case.features["spill_bytes"] == 0, name


@pytest.mark.slow
def test_shared_memory_is_not_overestimated(cases: dict[str, Compiled]) -> None:
    for name, case in cases.items():
        batch = ScheduleBatch.of((case.schedule.sketch,), [case.schedule])
        assert int(shared_lower_bound(case.op, TARGET, batch)[0]) <= case.features["shared_bytes"], name
        assert why_invalid(case.op, TARGET, batch).valid.all(), name
