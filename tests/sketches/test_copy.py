"""Padded copies: what is copied where, as text and as numbers."""

from __future__ import annotations

from typing import Any

import pytest

from autosched.sketches.box import LINE
from autosched.sketches.builders import bmm, gemm
from autosched.sketches.codegen import Generated, generate
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import PRESETS

H200 = PRESETS["H200"]


def generated(op: Op, name: str, **knobs: int) -> Generated:
    sketch = next(s for s in derive(op, H200) if s.name == name)
    return generate(op, Schedule.of(sketch, **knobs))


@pytest.mark.parametrize(
    ("op", "padded", "elements"),
    [
        (gemm(128, 65, 67), 128, 128 * 128),  # 134 bytes to 256
        (gemm(128, 65, 64, strides={"a": (73, 1)}), 64, 128 * 64),  # 128 bytes need no padding
        (gemm(128, 65, 67, dtype="fp32"), 96, 128 * 96),  # 268 to 384
        (gemm(128, 65, 67, dtype="int8"), 128, 128 * 128),
        (bmm(3, 128, 65, 67), 128, 3 * 128 * 128),
    ],
)
def test_rows_are_padded_to_cache_lines(op: Op, padded: int, elements: int) -> None:
    made = generated(op, "grid.copy-ptr.direct-ptr")
    size = op.operands[0].dtype.bytes
    assert padded * size % LINE == 0
    assert f"PADDED: tl.constexpr = {padded}" in made.source
    assert made.workspace_bytes == elements * size
    assert made.workspace_zeroed == 0
    assert [k.name for k in made.kernels] == ["copy_a", "contract"]


def test_tiles_of_padding_alone_read_nothing() -> None:
    """Tiles of 32 steps divide a reduction of 32, and one more of them is padding: what it would read is no row's."""
    short = generated(gemm(64, 64, 32, dtype="fp16", strides={"a": (33, 1)}), "grid.copy-ptr.direct-ptr").source
    assert "K: tl.constexpr = 32" in short
    assert "mask=(steps < K)[None, :], other=0.0)" in short
    whole = generated(gemm(128, 65, 64, strides={"a": (73, 1)}), "grid.copy-ptr.direct-ptr").source
    assert "steps <" not in whole


def test_the_copies_lie_behind_the_sums_each_at_a_multiple_of_256_bytes() -> None:
    made = generated(gemm(129, 130, 131), "split.copy-copy.atomic", block_m=64, block_n=64)
    sums = 3 * 3 * (64 * 64 + 1) * 4  # a number of parts for each tile
    rows = 192 * 2  # 131 elements
    assert made.workspace_zeroed == -(-sums // 256) * 256
    assert made.workspace_bytes == sum(-(-n // 256) * 256 for n in (sums, 129 * rows, 130 * rows))
    assert [k.name for k in made.kernels] == ["copy_a", "copy_b", "contract"]


def test_a_dynamic_size_has_no_zeros_before_its_copies() -> None:
    """Their place would change with the size, and what a launch left of its copy would be another's sums."""
    names = [s.name for s in derive(gemm(128, 67, 131, layout="nt", dynamic=["M"]), H200)]
    assert any("copy" in name and name.endswith("workspace") for name in names)
    assert any("ptr-ptr" in name and name.endswith("atomic") for name in names)
    assert not any("copy" in name and name.endswith("atomic") for name in names)


@pytest.mark.parametrize(
    ("op", "operand"),
    [
        (gemm(70, 65, 67, dtype="fp32"), "a"),
        (gemm(70, 67, 131, dtype="fp32"), "b"),
        (gemm(70, 67, 131, dtype="fp32", layout="tt"), "a"),
        (bmm(3, 70, 65, 67, dtype="fp32", strides={"a": (0, 67, 1)}), "a"),
    ],
)
def test_the_launcher_hands_the_copy_to_the_descriptor(op: Op, operand: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``[batch, rows, padded reduction]``; the descriptor ends rows where the reduction ends."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from autosched.result import load_source

    name = "grid.copy-ptr.direct-ptr" if operand == "a" else "grid.ptr-copy.direct-ptr"
    namespace = load_source(generated(op, name))
    tensors = [
        torch.empty_strided(shape, strides, dtype=getattr(torch, dtype))
        for shape, strides, dtype in namespace["TENSORS"].values()
    ]
    calls: dict[str, tuple[Any, ...]] = {}

    class Recorder:
        def __init__(self, kernel: str) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *args, **_: calls.__setitem__(self.kernel, (grid, *args))

    for kernel in (f"copy_{operand}", "contract"):
        namespace[kernel] = Recorder(kernel)
    namespace["launch"](*tensors)
    k, padded = op.extents["K"], -(-op.extents["K"] // 32) * 32
    outer = op.extents["M" if operand == "a" else "N"]
    batches = op.extents.get("B", 1)
    (programs,), source, copy = calls[f"copy_{operand}"]
    assert programs == -(-outer // 64) * -(-k // 64) * batches
    assert source is tensors[0 if operand == "a" else 1]
    assert copy.numel() >= batches * outer * padded
    descriptor = next(x for x in calls["contract"] if hasattr(x, "block_shape"))
    assert descriptor.base.data_ptr() == copy.data_ptr()
    assert (list(descriptor.shape), list(descriptor.strides)) == ([batches * outer, k], [padded, 1])


def test_what_starts_early_waits_for_the_copies() -> None:
    """A copy beside the other's end, the product before its first line, the sum of the parts before it reads."""
    op, name = gemm(129, 130, 131), "split.copy-copy.workspace"
    made = generated(op, name, dependent=1)
    assert [k.options.get("launch_pdl", False) for k in made.kernels] == [False, True, True, True]
    bodies = {part.split("(")[0]: part.splitlines() for part in made.source.split("\ndef ")[1:]}
    code = {
        kernel: [line.strip() for line in bodies[kernel][1:] if line.strip() and ": tl.constexpr" not in line]
        for kernel in ("copy_a", "copy_b", "contract", "add_parts")
    }
    wait, go = "tl.extra.cuda.gdc_wait()", "tl.extra.cuda.gdc_launch_dependents()"
    assert (code["copy_a"][0], wait in code["copy_a"]) == (go, False)  # what runs ahead has ended
    assert (code["copy_b"][0], code["copy_b"].index(wait)) == (go, len([x for x in code["copy_b"] if x[0] != "@"]) - 1)
    assert code["contract"][:2] == [wait, go]
    reads = next(i for i, line in enumerate(code["add_parts"]) if "tl.load" in line)
    assert code["add_parts"].index(wait) < reads
    assert "gdc" not in generated(op, name).source
