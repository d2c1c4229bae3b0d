"""Layouts, types, batches, epilogues and tile shapes in pairs, and what a launch leaves behind, in the interpreter.

8-bit floats are given an output of 16 or 32 bits other than bf16, which the interpreter rounds towards zero.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autosched.sketches.builders import bmm, gemm
from autosched.sketches.codegen import generate
from autosched.sketches.constraints import explain_invalid
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import PRESETS
from tests.sketches.interpret import failures, interpret
from tests.sketches.pairwise import covering

pytest.importorskip("torch")
pytest.importorskip("triton")

H200 = PRESETS["H200"]
#: M, N, K and the tile. Rows of all but the second are aligned for every type and layout, and tiles divide K.
SIZES = {
    "aligned": ((48, 48, 160), (32, 32, 32)),
    "odd": ((70, 67, 131), (64, 64, 64)),
    "skinny": ((3, 80, 160), (64, 32, 32)),
    "three pieces": ((80, 112, 160), (64, 96, 32)),
    "two pieces": ((80, 208, 160), (64, 192, 32)),
}
EXTRAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tensor scales": {"scales": "tensor", "epilogue": ["relu"]},
    "row and column scales": {"scales": "row_column", "epilogue": ["bias"]},
    "alpha and beta": {"alpha": 0.5, "beta": 2.0},
    "beta and chain": {"beta": -1.0, "epilogue": ["row_scale", "bias", "residual", "relu"]},
    "swiglu": {"epilogue": ["bias", "swiglu"]},
    "geglu": {"epilogue": ["geglu", "residual"]},
}
BATCHES = ("none", "dense", "a shared", "b shared", "gaps")
DTYPES = ("fp16", "fp32", "tf32", "int8", "fp8e4m3", "fp8e5m2")
LAYOUTS = ("nn", "nt", "tn", "tt")
#: Sketches that each op is run with; those of few rows have the most.
EACH = {"skinny": 6}


def make(size: str, extra: str, batch: str, dtype: str, layout: str) -> Op:
    m, n, k = SIZES[size][0]
    keywords: dict[str, Any] = {"dtype": dtype, "layout": layout, **EXTRAS[extra]}
    if dtype.startswith("fp8"):
        keywords["out_dtype"] = ("fp16", "fp32")[extra in ("swiglu", "geglu")]
    if batch == "none":
        return gemm(m, n, k, **keywords)
    shapes = {"a": (m, k) if layout[0] == "n" else (k, m), "b": (k, n) if layout[1] == "n" else (n, k), "out": (m, n)}
    outer = {name: rows * columns for name, (rows, columns) in shapes.items()}
    if batch.endswith("shared"):
        outer[batch[0]] = 0
    if batch == "gaps":
        outer = {name: size + 48 for name, size in outer.items()}
    strides = {name: (outer[name], columns, 1) for name, (_, columns) in shapes.items()}
    return bmm(2, m, n, k, strides=None if batch == "dense" else strides, **keywords)


def scheduled(op: Op, sketch: Sketch, **fixed: int) -> Schedule | None:
    """Small tiles, three parts, two pieces; ``None`` where the constraints refuse it."""
    domains = {knob.name: knob for knob in sketch.knobs}
    wanted = {"block_m": 32, "block_n": 32, "block_k": 32, "group_m": 2, "split_k": 3, "subtile": 2, **fixed}
    schedule = Schedule.of(sketch, **{name: domains[name].nearest(v) for name, v in wanted.items() if name in domains})
    return schedule if explain_invalid(op, H200, schedule) is None else None


def spread(op: Op, turn: int, each: int, **fixed: int) -> list[tuple[Op, Schedule]]:
    """``each`` of the op's schedules, evenly spaced, others in the next turn."""
    valid = [s for s in (scheduled(op, sketch, **fixed) for sketch in derive(op, H200)) if s is not None]
    step = max(1, len(valid) // each)
    return [(op, s) for s in valid[turn % step :: step][:each]]


def tile(size: str) -> dict[str, int]:
    return dict(zip(("block_m", "block_n", "block_k"), SIZES[size][1], strict=True))


PAIRS = covering((tuple(SIZES), tuple(EXTRAS), BATCHES, DTYPES, LAYOUTS))


def drawn(part: int) -> list[tuple[Op, Schedule]]:
    """A quarter of the pairs' schedules."""
    work = []
    for turn, case in enumerate(PAIRS[part::4]):
        work += spread(make(*case), turn, EACH.get(case[0], 3), **tile(case[0]), subtile=(1, 2, 4)[turn % 3])
    return work


@pytest.mark.parametrize("part", range(4))
def test_pairs_of_what_an_op_may_have(part: int) -> None:
    work = drawn(part)
    assert len(work) >= 30
    assert failures(work, interpret(work)) == []


def test_the_pairs_reach_every_structure() -> None:
    """Every work, finish and load that there is, on at least three ops."""
    seen: dict[str, set[Op]] = {}
    for op, schedule in (pair for part in range(4) for pair in drawn(part)):
        for part in schedule.sketch.name.replace("-", ".").split("."):
            seen.setdefault(part, set()).add(op)
    parts = {"grid", "persistent", "split", "stream", "swap", "sum", "copy", "tma", "ptr"}
    assert set(seen) == parts | {"direct", "subtiled", "workspace", "atomic"}
    assert {part: len(ops) for part, ops in seen.items() if len(ops) < 3} == {}


def test_c_may_be_the_outputs_own_memory() -> None:
    ops = (
        gemm(70, 112, 160, dtype="fp16", alpha=0.5, beta=2.0, epilogue=["relu"]),
        gemm(3, 80, 160, dtype="fp16", beta=-1.0),
        bmm(2, 40, 67, 131, dtype="fp32", beta=0.5),
    )
    work = [pair for op in ops for pair in spread(op, 0, 9, block_m=64, block_n=96)]
    finishes = {schedule.sketch.finish.tag for _, schedule in work}
    assert finishes == {"direct", "subtiled", "workspace", "atomic"}
    assert failures(work, interpret(work, in_place=True)) == []


@pytest.mark.parametrize("aligned", [True, False])
def test_one_source_serves_all_sizes_of_a_dynamic_axis(aligned: bool) -> None:
    """Nothing, the first, the last and odd sizes, small after large, with one workspace; the last is the tuned one."""
    op = gemm(72, 67, 160 if aligned else 131, dtype="fp16", layout="nt", dynamic=["M"], epilogue=["bias"])
    work = spread(op, 0, 10)
    assert len({schedule.sketch.work.tag for _, schedule in work}) == 3
    results = interpret(work, sizes=[{"M": m} for m in (0, 1, 72, 17, 65)])
    assert failures(work, results) == []
    assert all(len(set(r["digests"])) == 5 for r in results)


def test_one_source_serves_all_sizes_of_a_dynamic_batch() -> None:
    op = bmm(3, 17, 64, 160, dtype="fp16", dynamic=["B"])
    work = spread(op, 0, 8)
    assert failures(work, interpret(work, sizes=[{"B": b} for b in (0, 5, 1, 3)])) == []


def test_more_rows_than_it_was_tuned_for_are_right_too() -> None:
    """They need a workspace of their own, which the launcher makes."""
    op = gemm(32, 80, 160, dtype="fp16", layout="nt", dynamic=["M"])
    work = [(op, s) for _, s in spread(op, 0, 20) if not generate(op, s).workspace_bytes]
    assert failures(work, interpret(work, sizes=[{"M": 100}])) == []


def test_deterministic_ops_have_no_atomics_and_repeat_their_bits() -> None:
    for m, n, k in ((3, 80, 160), (70, 200, 160), (70, 67, 131)):  # swapped and summed, boxes, copies
        op = gemm(m, n, k, dtype="fp16", deterministic=True)
        sketches = derive(op, H200)
        assert not any("atomic" in s.name or "stream" in s.name for s in sketches)
        assert not any("tl.atomic" in generate(op, Schedule.of(s)).source for s in sketches)
        free = derive(gemm(m, n, k, dtype="fp16"), H200)
        assert {s.name for s in free if "atomic" not in s.name} == {s.name for s in sketches}
    op = gemm(70, 67, 131, dtype="fp16", layout="nt", dynamic=["M"], deterministic=True)
    work = [(op, s) for _, s in spread(op, 0, 20) if s.sketch.work.tag == "split"]
    results = interpret(work, sizes=[{"M": 70}] * 2)
    assert failures(work, results) == []
    assert all(len(set(r["digests"])) == 1 for r in results)


ASTRAY = """
import torch, triton, triton.language as tl
from tests.sketches.interpret import Watch

@triton.jit
def copy(x, y, n, FROM: tl.constexpr):
    i = tl.arange(0, 16)
    tl.store(y + i, tl.load(x + i + FROM, mask=i < n), mask=i < n)

x, y, watch = torch.zeros(999)[:16], torch.zeros(999)[:16], Watch()
watch.allow(x, y[:8])
copy[(1,)](x, y, 8, 8)
for n, start in ((8, 9), (9, 0)):
    try:
        copy[(1,)](x, y, n, start)
    except Exception as error:
        print(type(error).__name__, "1 elements lie beyond" in str(error))
"""


def test_what_is_read_or_written_beyond_all_tensors_is_refused(tmp_path: Path) -> None:
    """The last eight elements are read; then one too many is read, and one too many written."""
    pytest.importorskip("triton")
    script = tmp_path / "astray.py"
    script.write_text(ASTRAY, encoding="utf-8")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert done.stdout.splitlines() == ["InterpreterError True"] * 2, done.stderr[-2000:]


def test_what_is_written_elsewhere_would_be_seen() -> None:
    """A kernel that writes beside its output, changes an input, writes nothing or soils its workspace."""
    torch = pytest.importorskip("torch")
    from tests.sketches import interpret as module

    op = gemm(16, 16, 32, dtype="fp16", strides={"out": (24, 1)})

    def bad(a: Any, b: Any, out: Any, *, workspace: Any) -> None:
        out.copy_((a.float() @ b.float()).to(out.dtype))
        out.as_strided((1,), (1,), out.storage_offset() + 17).fill_(1.0)
        a[0, 0] = 9.0

    wrong, outside, _ = module._launched(op, {}, bad, None, None, in_place=False)
    assert (wrong, outside) == (0, 2)
    good = module._launched(op, {}, lambda a, b, out, **_: out.copy_(a.float() @ b.float()), None, None, in_place=False)
    assert good[:2] == (0, 0)
    assert module._launched(op, {}, lambda *_, **__: None, None, None, in_place=False)[0] == 256
    split = next(s for s in derive(gemm(70, 67, 131), H200) if s.name == "split.ptr-ptr.atomic")
    workspace = module._Workspace(generate(gemm(70, 67, 131), Schedule.of(split)))
    assert workspace.dirty() == 0
    workspace.tensor[5] = torch.tensor(1.0)
    assert workspace.dirty() > 0
