"""What is refused, and what must hold at the limits: large tensors, odd strides, empty and misplaced tensors."""

from __future__ import annotations

from typing import Any

import pytest

from autosched.errors import InvalidInputError
from autosched.result import load_source
from autosched.sketches.box import LARGEST_STRIDE, box_map
from autosched.sketches.builders import bmm, gemm
from autosched.sketches.codegen import generate
from autosched.sketches.constraints import explain_invalid
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import PRESETS
from autosched.sketches.view import matrix_views

H200 = PRESETS["H200"]


def source(op: Op, name: str, **knobs: int) -> str:
    sketch = next(s for s in derive(op, H200) if s.name == name)
    return generate(op, Schedule.of(sketch, **knobs)).source


# -- more than 2^31 elements ------------------------------------------------------------------------------------------
def test_offsets_into_large_operands_have_64_bits() -> None:
    """65536 x 65536 elements in each tensor: rows, columns and the reduction alike."""
    text = source(gemm(65536, 65536, 65536), "grid.ptr-ptr.direct-ptr")
    for offset in ("a_m.to(tl.int64) * 65536", "a_k.to(tl.int64)", "b_k.to(tl.int64) * 65536", "b_n.to(tl.int64)"):
        assert offset in text
    assert "rows.to(tl.int64) * 65536" in text


def test_only_the_tensor_that_is_large_has_wide_offsets() -> None:
    text = source(gemm(65536, 65536, 64), "grid.ptr-ptr.direct-ptr")
    assert "rows.to(tl.int64) * 65536" in text
    assert "a_m.to" not in text
    assert "b_k.to" not in text


@pytest.mark.parametrize("name", ["split.ptr-ptr.workspace", "split.ptr-ptr.atomic", "stream.ptr-ptr.atomic"])
def test_offsets_into_large_workspaces_have_64_bits(name: str) -> None:
    text = source(bmm(64, 8192, 8192, 256), name)
    if name.endswith("workspace"):
        assert text.count("batch.to(tl.int64) * (M * N)") == 2  # in either kernel
        assert "part.to(tl.int64) * (M * N * 64)" in text
        assert text.count("rows.to(tl.int64) * N") == 2
    else:
        assert "tile.to(tl.int64) * (BLOCK_M * BLOCK_N)" in text


def test_the_parts_of_a_large_workspace_are_wide_where_the_output_is_not() -> None:
    """8192 x 8192 outputs times 64 parts; a size known at run time only is taken to be large."""
    assert "part.to(tl.int64)" in source(gemm(8192, 8192, 8192), "split.ptr-ptr.workspace", split_k=64)
    assert "part.to(tl.int64)" not in source(gemm(4096, 4096, 8192), "split.ptr-ptr.workspace", split_k=64)
    dynamic = source(gemm(64, 4096, 4096, layout="nt", dynamic=["M"]), "split.ptr-ptr.workspace")
    assert "part.to(tl.int64) * (M.to(tl.int64) * N)" in dynamic
    assert "parts += M.to(tl.int64) * N" in dynamic


def test_rows_of_a_dynamic_axis_may_be_many() -> None:
    text = source(gemm(64, 4096, 4096, layout="nt", dynamic=["M"]), "grid.ptr-ptr.direct-ptr")
    assert "a_m.to(tl.int64) * 4096" in text
    assert "rows.to(tl.int64) * 4096" in text
    assert "b_n.to" not in text  # the other operand has a known size


def test_copies_of_large_operands_are_wide() -> None:
    text = source(gemm(2**19, 4097, 4099), "grid.copy-ptr.direct-ptr")
    assert "(rows.to(tl.int64) * PADDED)[:, None]" in text
    assert "(rows.to(tl.int64) * 4099)[:, None]" in text


def test_boxes_have_coordinates_of_32_bits() -> None:
    """The folded outer dimension of 2^17 matrices with 2^14 rows is 2^31 long, one too many."""
    op = bmm(2**17, 2**14, 64, 64)
    (view,) = matrix_views(op)
    assert box_map(view, op.operand("a"), "m", "k") is None
    assert box_map(view, op.operand("b"), "k", "n") is not None
    assert not any(s.loads[0].tma for s in derive(op, H200))


def test_boxes_have_strides_below_2_to_the_40_bytes() -> None:
    wide, narrow = LARGEST_STRIDE // 2, LARGEST_STRIDE // 4
    for stride, fits in ((wide, False), (narrow, True)):
        op = gemm(8, 64, 64, strides={"a": (stride, 1)})
        (view,) = matrix_views(op)
        assert (box_map(view, op.operand("a"), "m", "k") is not None) == fits


@pytest.mark.parametrize(
    "call",
    [
        lambda: gemm(2**40, 2**40, 1),
        lambda: gemm(2**31, 2**31, 64),  # the output alone: 2^63 bytes
        lambda: bmm(2**21, 2**21, 2**20, 2**4),
        lambda: gemm(4, 8, 8, strides={"a": (2**61, 1)}),
    ],
)
def test_what_64_bits_cannot_address_is_refused(call: Any) -> None:
    with pytest.raises(InvalidInputError, match="spans more than 2\\^63 bytes"):
        call()


# -- strides ----------------------------------------------------------------------------------------------------------
def test_strided_operands_are_gathered_or_copied_never_boxes() -> None:
    """No axis of a lies densely; its copy does."""
    found = derive(gemm(512, 512, 512, strides={"a": (1024, 2)}), H200)
    assert {s.loads[0].tag for s in found} == {"ptr", "copy"}
    text = source(gemm(512, 512, 512, strides={"a": (1024, 2)}), "grid.ptr-ptr.direct-ptr")
    assert "(a_m * 1024)[:, None]" in text
    assert "(a_k * 2)[None, :]" in text


def test_a_row_that_all_rows_share_is_read_from_one_place() -> None:
    op = gemm(64, 64, 128, strides={"a": (0, 1)})
    assert not any(load.operand == "a" and load.tag == "tma" for s in derive(op, H200) for load in s.loads)


def test_boxes_that_would_read_the_next_matrix_are_rejected() -> None:
    """With b stored [K, N] and K = 48 a box of 32 rows would: a's zeros would meet whatever lies there."""
    op = bmm(4, 64, 64, 48)
    sketch = next(s for s in derive(op, H200) if s.name == "grid.tma-tma.direct-ptr")
    assert explain_invalid(op, H200, Schedule.of(sketch, block_k=16)) is None
    assert "next matrix" in str(explain_invalid(op, H200, Schedule.of(sketch, block_k=32)))
    turned = bmm(4, 64, 64, 48, layout="nt")  # the reduction is the inner dimension: the descriptor ends it
    other = next(s for s in derive(turned, H200) if s.name == "grid.tma-tma.direct-ptr")
    assert explain_invalid(turned, H200, Schedule.of(other, block_k=32)) is None


# -- tensors that do not fit -------------------------------------------------------------------------------------------
@pytest.fixture
def module() -> tuple[Any, dict[str, Any]]:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    op = gemm(16, 32, 64, dtype="fp16", beta=1.0)
    namespace = load_source(generate(op, Schedule.of(derive(op, H200)[0])))
    namespace["launch"] = lambda a, b, c, out, **_: out.fill_(7.0)  # no GPU here
    return torch, namespace


def test_tensors_that_fit_are_launched(module: tuple[Any, dict[str, Any]]) -> None:
    torch, namespace = module
    a, b, c = (torch.zeros(shape, dtype=torch.float16) for shape in ((16, 64), (64, 32), (16, 32)))
    out = namespace["run"](a, b, c=c)
    assert out.shape == (16, 32)
    assert bool((out == 7.0).all())
    assert namespace["run"](a, b, c=c, out=c) is c  # in place


def test_tensors_that_do_not_fit_are_refused_by_name(module: tuple[Any, dict[str, Any]]) -> None:
    torch, namespace = module
    good = {"a": torch.zeros(16, 64), "b": torch.zeros(64, 32), "c": torch.zeros(16, 32)}
    good = {name: tensor.to(torch.float16) for name, tensor in good.items()}
    flat = torch.zeros(16 * 64 + 8, dtype=torch.float16)
    for name, bad in (
        ("a", flat[1:1025].view(16, 64)),  # two bytes off
        ("a", torch.zeros(64, 16, dtype=torch.float16).T),  # other strides
        ("b", good["b"].float()),
        ("b", good["b"][:, :31]),
        ("c", good["c"][0]),
    ):
        tensors = {**good, name: bad}
        with pytest.raises(ValueError, match=rf"^{name} is .*16-byte aligned"):
            namespace["run"](tensors["a"], tensors["b"], c=tensors["c"])
    with pytest.raises(ValueError, match=r"^out is"):
        namespace["run"](good["a"], good["b"], c=good["c"], out=torch.zeros(16, 33, dtype=torch.float16)[:, 1:])


@pytest.mark.parametrize(("op", "empty"), [("gemm", "M"), ("bmm", "B")])
def test_nothing_is_launched_for_a_size_of_0(op: str, empty: str) -> None:
    """The result is empty and no kernel is asked for."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    made = gemm(72, 67, 131, layout="nt", dynamic="M") if op == "gemm" else bmm(3, 72, 67, 131, dynamic="B")
    for sketch in derive(made, H200):
        namespace = load_source(generate(made, Schedule.of(sketch)))
        for kernel in ("contract", "add_parts", "copy_a", "copy_b"):
            namespace[kernel] = None  # not subscriptable
        tensors = [
            torch.empty_strided([0 if n is None else n for n in shape], strides, dtype=getattr(torch, dtype))
            for shape, strides, dtype in namespace["TENSORS"].values()
        ]
        assert namespace["run"](*tensors[:2]).numel() == 0
    assert empty in made.spec["dynamic"]


@pytest.mark.parametrize("shape", [(0, 8, 8), (8, 0, 8), (8, 8, 0), (-1, 8, 8)])
def test_a_known_size_of_0_is_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidInputError, match="give a positive size"):
        gemm(*shape)
