"""Structures that only some ops have, compiled for sm_90: their instructions, resources and bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from autosched.measure.compiling import CompilePool
from autosched.record import Status
from autosched.sketches.builders import bmm, contraction, gemm
from autosched.sketches.constraints import shared_lower_bound, why_invalid
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule, ScheduleBatch
from tests.sketches.compiled import TARGET, Compiled, compile_all, launched, opened, scheduled

pytest.importorskip("triton")
pytestmark = pytest.mark.slow

BIG = {"block_m": 128, "block_n": 128, "block_k": 64, "warps": 4, "stages": 3}
PLAIN = gemm(4096, 4096, 4096)
FP8 = gemm(4096, 4096, 4096, dtype="fp8e4m3", layout="nt", scales="row_column")
FAST = gemm(4096, 4096, 4096, dtype="fp8e4m3", layout="nt", scales="row_column", fast_accumulate=True)
GATED = gemm(4096, 14336, 4096, layout="nt", epilogue=["swiglu"])
VECTOR = gemm(1, 4096, 4096)
#: Each of the three tensors holds 2^32 elements.
HUGE = gemm(65536, 65536, 65536)

#: By name: op, sketch, knobs that differ from ``BIG``.
CASES: dict[str, tuple[Op, str, dict[str, int]]] = {
    "specialised": (PLAIN, "persistent.tma-tma.subtiled-ptr", {"specialize": 1, "block_m": 64}),
    "specialised in vain": (PLAIN, "persistent.tma-tma.subtiled-ptr", {"specialize": 1, "block_m": 32}),
    "unrolled": (PLAIN, "grid.tma-tma.direct-tma", {"unroll": 2}),
    "not unrolled": (PLAIN, "grid.tma-tma.direct-tma", {}),
    "few registers": (FP8, "grid.tma-tma.direct-tma", {"block_k": 128, "maxnreg": 168}),
    "fewer registers": (PLAIN, "split.tma-tma.workspace", {"maxnreg": 128, "block_n": 64, "dependent": 1}),
    "dependent": (PLAIN, "split.tma-tma.workspace", {"dependent": 1}),
    "192 columns": (
        PLAIN,
        "persistent.tma-tma.subtiled-tma",
        {"block_n": 192, "block_m": 256, "warps": 8, "subtile": 2},
    ),
    "192 columns, stream": (PLAIN, "stream.tma-tma.atomic", {"block_n": 192}),
    "96 columns": (GATED, "grid.tma-tma-tma.direct-tma", {"block_n": 96, "warps": 8}),
    "gated": (GATED, "persistent.tma-tma-tma.subtiled-tma", {"warps": 8}),
    "gated split": (GATED, "split.tma-tma-tma.atomic", {"warps": 8, "block_n": 64}),
    "cached": (PLAIN, "grid.ptr-ptr.direct-ptr", {"evict": 2, "cache": 1}),
    "fp8": (FP8, "grid.tma-tma.direct-tma", {"block_k": 128}),
    "fp8 by pointers": (FP8, "grid.ptr-ptr.direct-ptr", {"block_k": 128}),
    "fp8 fast": (FAST, "persistent.tma-tma.subtiled-tma", {"block_k": 128}),
    "fp8 copied": (
        gemm(4096, 4096, 4096, dtype="fp8e5m2", scales="tensor"),
        "grid.tma-copy.direct-tma",
        {"block_k": 128},
    ),
    "int8": (gemm(4096, 4096, 4096, dtype="int8", layout="nt"), "grid.tma-tma.direct-ptr", {"block_k": 128}),
    "tf32 copied": (gemm(2048, 2048, 4096, dtype="tf32"), "grid.tma-copy.direct-tma", {"block_k": 32}),
    "copied": (gemm(4095, 4097, 4099), "persistent.copy-copy.subtiled-ptr", {}),
    "copied dependent": (gemm(512, 513, 4099), "split.copy-copy.workspace", {"dependent": 1, "block_n": 64}),
    "copied split": (gemm(512, 513, 4099), "split.copy-copy.atomic", {}),
    "batch of boxes": (bmm(64, 1024, 1024, 128), "persistent.tma-tma.subtiled-ptr", {}),
    "batch split": (bmm(32, 128, 128, 4096), "split.tma-tma.atomic", {}),
    "dynamic batch": (bmm(64, 128, 256, 512, dynamic=["B"]), "grid.tma-tma.direct-ptr", {}),
    "transposed store": (
        contraction("mk,kn->nm", {"m": 4096, "n": 4096, "k": 4096}),
        "persistent.tma-tma.subtiled-tma",
        {},
    ),
    "sum": (VECTOR, "grid.ptr-ptr.sum.direct-ptr", {"block_m": 1, "block_n": 64}),
    "sum of parts": (VECTOR, "split.ptr-ptr.sum.atomic", {"block_m": 1, "block_n": 64}),
    "swapped": (VECTOR, "swap.split.tma-tma.atomic", {"block_m": 64, "block_n": 16}),
    "swapped by pointers": (VECTOR, "swap.split.ptr-ptr.workspace", {"block_m": 64, "block_n": 16}),
    "swapped store": (gemm(16, 28672, 4096), "swap.grid.tma-tma.direct-tma", {"block_m": 64, "block_n": 16}),
    "huge": (HUGE, "grid.ptr-ptr.direct-ptr", {}),
    "huge split": (bmm(64, 8192, 8192, 256), "split.ptr-ptr.workspace", {}),
}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    with opened(tmp_path_factory.mktemp("cache")) as pool:
        yield pool


@pytest.fixture(scope="module")
def cases(pool: CompilePool) -> dict[str, Compiled]:
    work = [(op, scheduled(op, name, **{**BIG, **knobs})) for op, name, knobs in CASES.values()]
    return dict(zip(CASES, compile_all(pool, work), strict=True))


def test_every_structure_compiles_and_what_took_no_effect_is_invalid(cases: dict[str, Compiled]) -> None:
    failed = {name: (c.result.status, c.result.error) for name, c in cases.items() if c.result.status is not Status.OK}
    vain = failed.pop("specialised in vain", None)
    assert failed == {}
    assert vain is not None and vain[0] is Status.INVALID and "warp_specialized" in vain[1]


def test_no_operand_goes_through_registers(cases: dict[str, Compiled]) -> None:
    assert [name for name, c in cases.items() if c.features["register_a"] or c.features["register_a_hazard"]] == []


def test_the_tensor_cores_of_hopper_are_used(cases: dict[str, Compiled]) -> None:
    """One instruction for 64 rows and 32 bytes of the reduction, of each product, piece and turn of a warp group."""
    for name, case in cases.items():
        knobs, size = case.schedule.knobs, case.op.operands[0].dtype.bytes
        count = len(case.op.products) * knobs["unroll"] * knobs["block_k"] * size // 32
        vain = name == "specialised in vain"
        rows = 2 if knobs.get("specialize") and not vain else knobs["block_m"] // 64  # two warp groups consume
        count *= rows * 4 // knobs["warps"] * (1 if knobs["block_n"] in (16, 64, 128) else 2)
        assert case.features["wgmma"] == (0 if case.schedule.sketch.combine.summed else count), name
        assert (case.features["mma"] > 0) == vain, name


def test_choices_take_effect(cases: dict[str, Compiled]) -> None:
    for name, case in cases.items():
        asked = case.schedule.knobs.get("specialize") == 1
        assert (case.features["warp_specialized"] > 0) == (asked and name != "specialised in vain"), name
    assert cases["few registers"].features["registers"] <= 168 < cases["fp8"].features["registers"]
    assert cases["fewer registers"].features["registers"] <= 128


def test_memory_is_reached_as_the_sketch_says(cases: dict[str, Compiled]) -> None:
    for name, case in cases.items():
        facts, features = case.schedule.sketch.facts(), case.features
        copies = sum(load.copied for load in case.schedule.sketch.loads)
        assert features["kernels"] == 1 + facts["workspace"] + copies, name
        assert (features["tma_loads"] > 0) == bool(facts["tma_a"] or facts["tma_b"]), name
        assert (features["tma_stores"] > 0) == bool(facts["tma_store"]), name
        assert (features["atomics"] > 0) == bool(facts["atomic"]), name


def test_launching_finds_what_was_compiled(
    cases: dict[str, Compiled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entry a kernel: copies, the product, the sum of its parts, each with its own options."""
    pytest.importorskip("torch")
    for name, case in cases.items():
        if name.startswith("huge"):
            continue  # no memory for their tensors
        assert launched(case.generated, tmp_path, monkeypatch) == case.result.entries, name
        assert len(case.result.entries) == len(case.generated.kernels) == case.features["kernels"], name
    options = [k.options for k in cases["fewer registers"].generated.kernels]
    assert options == [{"maxnreg": 128}, {"launch_pdl": True}]


def test_shared_memory_is_never_overestimated_and_none_is_rejected(cases: dict[str, Compiled]) -> None:
    for name, case in cases.items():
        if case.result.status is Status.OK:
            batch = ScheduleBatch.of((case.schedule.sketch,), [case.schedule])
            bound = int(shared_lower_bound(case.op, TARGET, batch)[0])
            assert bound <= case.features["shared_bytes"], f"{name}: {bound}"
            assert why_invalid(case.op, TARGET, batch).valid.all(), name


#: Ops from which random schedules of the new structures are drawn.
DRAWN = (
    FP8,
    GATED,
    VECTOR,
    gemm(16, 1024, 1024),
    gemm(255, 257, 1001),
    bmm(16, 256, 192, 512),
    gemm(256, 512, 1024, dtype="int8"),
    gemm(300, 512, 1024, dtype="tf32", layout="tt"),
)


def drawn(op: Op, count: int) -> list[tuple[Op, Schedule]]:
    """Valid schedules drawn from all knobs of the sketches, no two of one sketch; small, so that they compile fast.

    Specialised ones are left out: the compiler fails on some of them.
    """
    rng = np.random.default_rng(0)
    sketches = derive(op, TARGET)
    found: list[tuple[Op, Schedule]] = []
    for i in rng.permutation(len(sketches)):
        for _ in range(50):
            knobs = {k.name: int(k.sample(rng, 1)[0]) for k in sketches[i].knobs}
            schedule = Schedule.of(sketches[i], **knobs)
            small = knobs["block_m"] * knobs["block_n"] <= 128 * 128 and not knobs.get("specialize")
            if small and why_invalid(op, TARGET, ScheduleBatch.of((sketches[i],), [schedule])).valid.all():
                found.append((op, schedule))
                break
        if len(found) == count:
            break
    return found


def test_random_schedules_keep_the_bound(pool: CompilePool) -> None:
    """What compiles needs no less than the bound; few of those that are not rejected fail."""
    compiled = compile_all(pool, [pair for op in DRAWN for pair in drawn(op, 3)])
    assert len(compiled) == 24
    for case in compiled:
        if case.features:
            batch = ScheduleBatch.of((case.schedule.sketch,), [case.schedule])
            bound = int(shared_lower_bound(case.op, TARGET, batch)[0])
            assert bound <= case.features["shared_bytes"], f"{case.label}: {bound}"
    failed = [(c.label, c.result.error) for c in compiled if c.result.status is Status.COMPILE_ERROR]
    assert failed == []
