"""Grouped products: the op as data, its reference, the map from programs to tiles, and kernels in the interpreter.

The kernels run in a process of its own (``python -m tests.sketches.test_grouped``), which must be told to interpret
before it imports triton: it reads cases on stdin and writes the number of wrong elements of each run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from autosched.errors import InvalidInputError, UnsupportedError
from autosched.sketches.builders import bmm, build, build_named, gemm, grouped_gemm
from autosched.sketches.codegen.kernel import Kernel
from autosched.sketches.codegen.work import emit_work
from autosched.sketches.constraints import explain_invalid
from autosched.sketches.nodes import RaggedPersistentWork, RaggedWork, Work
from autosched.sketches.op import Op, Ragged
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import PRESETS
from autosched.sketches.view import matrix_views

H200 = PRESETS["H200"]
NAMES = {
    f"{work}.{a}-{b}.{finish}-ptr"
    for work, finish in (("ragged", "direct"), ("ragged_persistent", "subtiled"))
    for a, b in product(("ptr", "tma"), repeat=2)
}


# -- the op ---------------------------------------------------------------------------------------------------------
def test_op_as_data() -> None:
    op = grouped_gemm(4, 100, 48, 64, dtype="fp16", epilogue=["bias"])
    assert op.ragged == Ragged(rows="M", groups="G", offsets="offsets")
    assert [(o.name, o.shape, o.dtype.name) for o in (*op.operands, op.output)] == [
        ("a", (100, 64), "fp16"),
        ("b", (4, 64, 48), "fp16"),
        ("offsets", (4,), "int32"),
        ("bias", (4, 48), "fp16"),
        ("out", (100, 48), "fp16"),
    ]
    assert op.extents == {"G": 4, "M": 100, "N": 48, "K": 64}
    assert {a.name: a.kind for a in op.axes} == {"G": "parallel", "M": "parallel", "N": "parallel", "K": "reduce"}
    assert op.flops == 2 * 100 * 48 * 64
    assert op.compulsory_bytes == (2 * (100 * 64 + 4 * 64 * 48 + 4 * 48) + 4 * 4, 2 * 100 * 48)
    assert op.iteration_space() == "G4.M100.N48.K64"
    assert op.key() == ("G4,M100,N48,K64/a[MK]fp16,b[GKN]fp16,offsets[G]int32,bias[GN]fp16,out[MN]fp16/bias/Mbyoffsets")
    assert dataclasses.replace(op, ragged=None).key() == op.key().removesuffix("/Mbyoffsets")


def test_few_rows_read_few_matrices() -> None:
    op = grouped_gemm(64, 8, 32, 16, dtype="fp32")
    assert op.compulsory_bytes[0] == 4 * (8 * 16 + 8 * 16 * 32 + 64)
    assert op.flops == 2 * 8 * 32 * 16


def test_layout_nt_stores_columns_outside_the_reduction() -> None:
    b = grouped_gemm(4, 100, 48, 64, layout="nt").operand("b")
    assert (b.shape, b.stride_of("G"), b.stride_of("N"), b.stride_of("K")) == ((4, 48, 64), 48 * 64, 64, 1)


def test_scales_of_columns_are_a_groups_own() -> None:
    op = grouped_gemm(4, 100, 48, 64, dtype="fp8e4m3", layout="nt", scales="row_column")
    assert (op.operand("a_scale").shape, op.operand("b_scale").shape) == ((100,), (4, 48))


@pytest.mark.parametrize(
    "op",
    [
        grouped_gemm(4, 100, 48, 64),
        grouped_gemm(4, 100, 48, 64, dtype="fp16", layout="nt", epilogue=["bias", "swiglu"], dynamic=["M"]),
        grouped_gemm(3, 9, 16, 32, dtype="fp8e4m3", layout="nt", scales="row_column", out_dtype="fp16"),
        grouped_gemm(3, 9, 16, 32, strides={"b": (1024, 32, 1)}, alpha=0.5, beta=2.0, deterministic=True),
    ],
    ids=lambda op: str(op.key()),
)
def test_specs_build_the_op_again(op: Op) -> None:
    again = build(json.loads(json.dumps(op.spec)))
    assert again == op
    assert again.key() == op.key()


def test_by_name() -> None:
    op = build_named("grouped_gemm", (4, 100, 48, 64), layout="nt", dynamic=["M"])
    assert op == grouped_gemm(4, 100, 48, 64, layout="nt", dynamic=["M"])
    assert op == build_named("grouped_gemm", {"M": 100, "G": 4, "K": 64, "N": 48}, layout="nt", dynamic=["M"])


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "what"),
    [
        ((0, 8, 8, 8), {}, InvalidInputError, "extent G is 0"),
        ((2, -1, 8, 8), {}, InvalidInputError, "extent M is -1"),
        ((2, 8, 8, 8), {"layout": "xx"}, InvalidInputError, "unknown layout 'xx'"),
        ((2, 8, 8, 8), {"layout": "tn"}, UnsupportedError, "layout tn of a grouped GEMM"),
        ((2, 8, 8, 8), {"dynamic": ["G"]}, UnsupportedError, "dynamic axis 'G' of a grouped GEMM"),
        ((2, 8, 8, 8), {"dynamic": ["B"]}, InvalidInputError, "dynamic axis 'B' is no axis"),
        ((2, 8, 8, 8), {"strides": {"offsets": (2,)}}, InvalidInputError, "strides for 'offsets'"),
        ((2, 8, 8, 8), {"epilogue": ["softmax"]}, InvalidInputError, "unknown epilogue 'softmax'"),
    ],
)
def test_what_no_grouped_gemm_has(
    arguments: tuple[int, ...], keywords: dict[str, Any], error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        grouped_gemm(*arguments, **keywords)


# -- derivation -----------------------------------------------------------------------------------------------------
def test_groups_are_the_batch() -> None:
    (view,) = matrix_views(grouped_gemm(4, 100, 48, 64))
    assert {g: [a.name for a in view.group(g)] for g in ("batch", "m", "n", "k")} == {
        "batch": ["G"],
        "m": ["M"],
        "n": ["N"],
        "k": ["K"],
    }
    assert {t: view.batch[0].stride(t) for t in ("a", "b", "out")} == {"a": 0, "b": 64 * 48, "out": 0}
    assert matrix_views(dataclasses.replace(grouped_gemm(4, 100, 48, 64), ragged=None)) == ()


@pytest.mark.parametrize("m", [4096, 48, 1], ids=["many rows", "skinny", "one row"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_sketches(layout: str, m: int) -> None:
    """Every load path, a tile a program and in a loop; no split, no copy, no stream, no exchange of sides."""
    sketches = derive(grouped_gemm(8, m, 1024, 2048, layout=layout), H200)
    assert sketches[0].name == "ragged.ptr-ptr.direct-ptr"
    assert {s.name for s in sketches} == NAMES
    assert len(sketches) == len(NAMES)
    assert {s.facts()["ragged"] for s in sketches} == {1}
    assert {s.name for s in sketches if s.facts()["persistent"]} == {n for n in NAMES if "persistent" in n}
    assert {s.name for s in sketches if s.facts()["folded_k"]} == {n for n in NAMES if "-tma." in n and layout == "nn"}


def test_unaligned_operands_are_gathered() -> None:
    names = {s.name for s in derive(grouped_gemm(8, 4096, 1001, 1001), H200)}
    assert names == {"ragged.ptr-ptr.direct-ptr", "ragged_persistent.ptr-ptr.subtiled-ptr"}


def test_other_ops_are_not_ragged() -> None:
    for op in (gemm(256, 256, 256), bmm(3, 256, 256, 256)):
        assert {s.facts()["ragged"] for s in derive(op, H200)} == {0}


# -- the map from programs to tiles ---------------------------------------------------------------------------------
class Vector(np.ndarray[Any, np.dtype[np.int64]]):
    """A numpy array with the one method of a Triton tensor that the arithmetic calls."""

    def to(self, dtype: Any) -> Any:
        return self.astype(dtype)


class Language:
    """What the arithmetic uses of ``triton.language``, on numpy arrays; a pointer is the number of an element."""

    int32 = np.int32

    def __init__(self, offsets: Sequence[int], program: int) -> None:
        self.offsets, self.program = np.asarray(offsets), program

    def arange(self, start: int, end: int) -> Any:
        return np.arange(start, end).view(Vector)

    def load(self, places: Any, mask: Any, other: int) -> Any:
        assert bool(((places >= 0) & (places < len(self.offsets)))[mask].all())
        return np.where(mask, self.offsets[np.clip(places, 0, len(self.offsets) - 1)], other).view(Vector)

    def program_id(self, axis: int) -> int:
        return self.program

    def cdiv(self, x: Any, y: int) -> Any:
        return -(-x // y)

    def cumsum(self, x: Any, axis: int) -> Any:
        return np.cumsum(x, axis)

    def sum(self, x: Any, axis: int) -> int:
        return int(np.sum(x, axis))

    def max(self, x: Any, axis: int) -> int:
        return int(np.max(x, axis))

    def where(self, test: Any, x: Any, y: Any) -> Any:
        return np.where(test, x, y)

    def minimum(self, x: int, y: int) -> int:
        return min(x, y)

    def range(self, start: int, end: int, step: int, flatten: bool) -> range:
        return range(start, end, step)


Tile = tuple[int, int, int, int]


def visited(op: Op, work: Work, knobs: dict[str, int], offsets: Sequence[int]) -> list[list[Tile]]:
    """(group, first row, end of the group's rows, tile along N) of each tile that each program computes."""
    (view,) = matrix_views(op)
    kernel = Kernel("contract", op, view, {"flatten": 0, **knobs})
    place = "(batch, first_row, row_limit, tile_n)"
    emit_work(
        work,
        kernel,
        lambda begin, end: kernel.line(f"seen.append({place})"),
        lambda: kernel.line(f"assert seen[-1] == {place}"),
    )
    assert (kernel.first_row, kernel.row_limit) == ("first_row", "row_limit")
    constants = [f"    {name} = {value}" for name, value in kernel.constants.items()]
    text = "\n".join(["def program(tl, seen, offsets_ptr):", *constants, *kernel.lines])
    found: dict[str, Any] = {}
    exec(text, found)
    programs = eval(kernel.programs, {"min": min, "M": offsets[-1]})
    lists: list[list[Tile]] = []
    for program in range(programs):
        lists.append([])
        found["program"](Language(offsets, program), lists[-1], 0)
    return lists


def random_offsets(rng: np.random.Generator, groups: int, rows: int) -> list[int]:
    """Ends of groups, many of them empty."""
    ends = np.sort(rng.integers(0, rows + 1, groups))
    ends[rng.random(groups) < 0.3] = 0
    ends = np.maximum.accumulate(ends)
    ends[-1] = rows
    return [int(e) for e in ends]


def expected_tiles(offsets: Sequence[int], block_m: int, tiles_n: int) -> Counter[Tile]:
    begins = [0, *offsets[:-1]]
    return Counter(
        (g, row, end, tile_n)
        for g, (begin, end) in enumerate(zip(begins, offsets, strict=True))
        for row in range(begin, end, block_m)
        for tile_n in range(tiles_n)
    )


@pytest.mark.parametrize("dynamic", [(), ("M",)], ids=["static", "dynamic"])
@pytest.mark.parametrize("work", [RaggedWork("offsets"), RaggedPersistentWork("offsets", 7)], ids=lambda w: str(w.tag))
def test_every_tile_of_every_group_is_computed_once(
    work: RaggedWork | RaggedPersistentWork, dynamic: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(0)
    for _ in range(150):
        groups, rows, columns = (int(x) for x in rng.integers(1, (20, 300, 200)))
        knobs = {name: int(rng.choice(v)) for name, v in {"block_m": (16, 64, 128), "block_n": (16, 96)}.items()}
        knobs["group_m"] = int(rng.choice((1, 2, 8)))
        offsets = random_offsets(rng, groups, rows)
        lists = visited(grouped_gemm(groups, rows, columns, 32, dynamic=dynamic), work, knobs, offsets)
        found = Counter(tile for tiles in lists for tile in tiles)
        assert found == expected_tiles(offsets, knobs["block_m"], -(-columns // knobs["block_n"])), (knobs, offsets)
        if isinstance(work, RaggedWork):
            assert max(map(len, lists)) == 1
            assert len(lists) <= (-(-rows // knobs["block_m"]) + groups - 1) * -(-columns // knobs["block_n"])
        else:
            assert len(lists) <= work.programs


@pytest.mark.parametrize(
    "offsets", [[0, 0, 50], [50, 50, 50], [0, 50, 50], [1, 2, 3], [16, 32, 48], [1, 17, 49], [17, 34, 51]], ids=str
)
def test_the_most_tiles_are_enough_at_the_edges(offsets: list[int]) -> None:
    op, knobs = grouped_gemm(3, offsets[-1], 32, 32), {"block_m": 16, "block_n": 16, "group_m": 8}
    found = Counter(t for tiles in visited(op, RaggedWork("offsets"), knobs, offsets) for t in tiles)
    assert found == expected_tiles(offsets, 16, 2)


def test_rows_of_a_group_are_visited_in_bands() -> None:
    op, knobs = grouped_gemm(2, 64 + 16, 32, 32), {"block_m": 16, "block_n": 16, "group_m": 2}
    order = [t for tiles in visited(op, RaggedWork("offsets"), knobs, [64, 80]) for t in tiles]
    assert [(row, n) for g, row, _, n in order if g == 0] == [
        (0, 0), (16, 0), (0, 1), (16, 1), (32, 0), (48, 0), (32, 1), (48, 1)
    ]  # fmt: skip
    assert [(row, n) for g, row, _, n in order if g == 1] == [(64, 0), (64, 1)]


# -- the reference --------------------------------------------------------------------------------------------------
def values(op: Op, offsets: Sequence[int], seed: int = 0) -> dict[str, Any]:
    """Integer-valued inputs by name, with as many rows as ``offsets`` says."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Any] = {}
    for operand in op.operands:
        index = [expr.single for expr in operand.index]
        shape = [offsets[-1] if name == "M" else n for name, n in zip(index, operand.shape, strict=True)]
        tensor = torch.randint(-4, 5, shape, generator=generator)
        made[operand.name] = tensor.to(getattr(torch, operand.dtype.torch))
    made["offsets"] = torch.tensor(offsets, dtype=torch.int32)
    return made


def by_a_loop(op: Op, t: dict[str, Any]) -> Any:
    """The output in fp32, a group at a time, for biases, scales and relu."""
    import torch

    out = torch.zeros(t["a"].shape[0], op.extents["N"])
    begin = 0
    for g, end in enumerate(t["offsets"].tolist()):
        b = t["b"][g].float()
        part = t["a"][begin:end].float() @ (b.T if op.spec["layout"] == "nt" else b)
        if "a_scale" in t:
            part = part * t["a_scale"][begin:end, None] * t["b_scale"][g]
        for step in op.spec.get("epilogue", ()):
            part = part + t["bias"][g].float() if step == "bias" else part.relu()
        out[begin:end] = part
        begin = end
    return out


ENDS = ([5, 5, 12, 13], [0, 0, 0, 13], [13, 13, 13, 13], [1, 2, 3, 13])


@pytest.mark.parametrize("offsets", ENDS, ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_reference_is_a_loop_over_groups(layout: str, offsets: list[int]) -> None:
    torch = pytest.importorskip("torch")
    from autosched.sketches.reference import reference, reference_fp32

    choices: tuple[dict[str, Any], ...] = ({}, {"epilogue": ["bias", "relu"]}, {"scales": "row_column"})
    for keywords in choices:
        op = grouped_gemm(4, 13, 6, 10, dtype="fp32", layout=layout, **keywords)
        t = values(op, offsets)
        expected = by_a_loop(op, t)
        assert bool((expected != 0).any())
        assert torch.equal(reference_fp32(op, t), expected)
        assert torch.equal(reference(op, t), expected)


def test_reference_of_a_gated_pair_and_of_other_row_counts() -> None:
    torch = pytest.importorskip("torch")
    from autosched.sketches.reference import reference

    op = grouped_gemm(3, 100, 6, 10, dtype="fp32", epilogue=["swiglu", "residual"], dynamic=["M"])
    t = values(op, [2, 2, 7])
    ids = [0, 0, 2, 2, 2, 2, 2]
    first, second = (torch.einsum("mk,mkn->mn", t["a"], t[name][ids]) for name in ("b", "up"))
    torch.testing.assert_close(reference(op, t), torch.nn.functional.silu(first) * second + t["residual"])


def test_groups_of_rows() -> None:
    torch = pytest.importorskip("torch")
    from autosched.sketches.reference import groups_of_rows

    op = grouped_gemm(4, 100, 8, 8, dynamic=["M"])
    for offsets, groups in (([2, 2, 3, 5], [0, 0, 2, 3, 3]), ([0, 0, 0, 2], [3, 3]), ([3, 3, 3, 3], [0, 0, 0])):
        found = groups_of_rows(op, values(op, offsets))
        assert found is not None
        assert (found.dtype, found.tolist()) == (torch.int64, groups)
    assert groups_of_rows(gemm(4, 4, 4), {}) is None


# -- kernels in the interpreter -------------------------------------------------------------------------------------
Case = tuple[Op, Schedule, list[list[int]]]


def interpret(cases: Sequence[Case]) -> list[list[int]]:
    """Wrong elements of each run of each case: a kernel and the ends of the groups of each of its runs."""
    jobs = [{"op": op.spec, "schedule": schedule.to_json(), "offsets": runs} for op, schedule, runs in cases]
    done = subprocess.run(
        [sys.executable, "-m", "tests.sketches.test_grouped"],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{jobs[len(results)]}\n{done.stderr[-4000:]}"
    return results


def run(job: dict[str, Any]) -> list[int]:
    """Runs one case where Triton interprets. Rows around the output must stay as they were."""
    import torch

    from autosched.result import load_source
    from autosched.sketches.codegen import generate

    op = build(job["op"])
    kernel = load_source(generate(op, Schedule.from_json(job["schedule"], derive(op, H200))))
    counts = []
    for number, offsets in enumerate(job["offsets"]):
        t = values(op, offsets, number)
        expected = by_a_loop(op, t)
        around = torch.full((offsets[-1] + 64, op.extents["N"]), torch.nan, dtype=getattr(torch, op.output.dtype.torch))
        out = around[32:-32]
        kernel["launch"](*t.values(), out)
        wrong = int((out != expected.to(out.dtype)).sum())
        counts.append(wrong + int((~around[:32].isnan()).sum()) + int((~around[-32:].isnan()).sum()))
    return counts


def small(op: Op, **fixed: int) -> list[Schedule]:
    """A schedule of each sketch, with small tiles of odd order."""
    wanted = {"block_m": 32, "block_n": 32, "block_k": 32, "group_m": 2, "subtile": 2, **fixed}
    made = []
    for sketch in derive(op, H200):
        domains = {knob.name: knob for knob in sketch.knobs}
        schedule = Schedule.of(sketch, **{k: domains[k].nearest(v) for k, v in wanted.items() if k in domains})
        if explain_invalid(op, H200, schedule) is None:
            made.append(schedule)
    return made


def check(cases: Sequence[Case]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    results = interpret(cases)
    assert [len(found) for found in results] == [len(runs) for _, _, runs in cases]
    assert [(o.key(), s.to_json(), n) for (o, s, _), n in zip(cases, results, strict=True) if any(n)] == []


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_sketches_on_random_groups(layout: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    runs = [[0, 40, 40, 41, 137], [137] * 5, random_offsets(rng, 5, 137)]
    op = grouped_gemm(5, 137, 72, 96, dtype=dtype, layout=layout, epilogue=["bias", "relu"])
    half = (layout == "nt") == (dtype == "fp32")  # each sketch in two of the four
    cases = [(op, schedule, runs) for schedule in small(op)[half::2]]
    assert {s.sketch.name for _, s, _ in cases} < NAMES
    check(cases)


def test_the_two_halves_are_all_sketches() -> None:
    op = grouped_gemm(5, 137, 72, 96)
    assert {s.sketch.name for s in small(op)} == NAMES


def test_one_kernel_serves_any_number_of_rows() -> None:
    runs = [[0, 1, 1], [30, 30, 63], [1, 200, 333], [0, 0, 32]]
    op = grouped_gemm(3, 100, 40, 64, dtype="fp16", layout="nt", dynamic=["M"])
    check([(op, schedule, runs) for schedule in small(op)])


def test_odd_sizes_a_single_group_scales_and_wide_tiles() -> None:
    unaligned = grouped_gemm(7, 61, 33, 45, dtype="fp16", epilogue=["bias"])
    single = grouped_gemm(1, 61, 40, 64, dtype="fp16")
    scaled = grouped_gemm(3, 61, 40, 64, dtype="fp32", scales="row_column")
    pieced = grouped_gemm(3, 61, 200, 64, dtype="fp16")
    cases: list[Case] = [(unaligned, s, [[0, 9, 9, 10, 60, 60, 61]]) for s in small(unaligned)]
    cases += [(single, s, [[61]]) for s in small(single)]
    cases += [(scaled, s, [[0, 20, 61]]) for s in small(scaled, block_m=64)]
    cases += [(pieced, s, [[25, 25, 61]]) for s in small(pieced, block_n=192, block_m=16)]
    check(cases)


# -- compiled for sm_90 ---------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_compiled_for_sm_90(tmp_path: Any) -> None:
    """Tiles of any first row keep wgmma, boxes where the sketch says so and 16-byte copies elsewhere."""
    pytest.importorskip("triton")
    from autosched.measure.compiling import CompilePool
    from autosched.record import Status
    from autosched.sketches.codegen import generate

    wanted = {"block_m": 64, "block_n": 128, "block_k": 64, "warps": 4, "stages": 3}
    work = []
    for op in (
        grouped_gemm(8, 4096, 512, 512),
        grouped_gemm(300, 4096, 512, 512, layout="nt", epilogue=["bias"], dynamic=["M"]),
        grouped_gemm(1, 4096, 512, 512, epilogue=["swiglu"]),
    ):
        work += [(op, Schedule.of(sketch, **wanted)) for sketch in derive(op, H200)]
        work += [(o, Schedule.of(s.sketch, **wanted, flatten=1)) for o, s in work[-1:]]
    with CompilePool(2, 90, tmp_path, timeout=120, shared_limit=H200.shared_per_block) as pool:
        results = pool.compile([generate(op, schedule) for op, schedule in work])
    for (op, schedule), result in zip(work, results, strict=True):
        label = f"{op.key()} {schedule.to_json()}"
        facts = schedule.sketch.facts()
        assert (result.status, result.error) == (Status.OK, ""), label
        assert result.features["wgmma"] > 0, label
        assert result.features["register_a"] == 0, label
        assert result.features["spill_bytes"] == 0, label
        assert (result.features["tma_loads"] > 0) == bool(facts["tma_a"] or facts["tma_b"]), label
        assert (result.features["cp_async_16"] > 0) != bool(facts["tma_a"] and facts["tma_b"]), label
        assert result.features["tma_stores"] == 0, label


if __name__ == "__main__":
    for one in json.load(sys.stdin):
        print(json.dumps(run(one)), flush=True)
