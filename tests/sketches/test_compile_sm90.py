"""What the generator writes compiles for sm_90, with the instructions that its sketch promises; no GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autosched.measure.compiling import CompilePool
from autosched.record import Status
from autosched.sketches import rules
from autosched.sketches.builders import contraction, conv2d, conv2d_input_grad, conv2d_weight_grad, gemm
from autosched.sketches.op import Op
from tests.sketches.compiled import TARGET, Compiled, compile_all, launched, opened, scheduled

pytest.importorskip("triton")
pytestmark = pytest.mark.slow

OP = gemm(512, 512, 512, dtype="bf16")
SKETCHES = rules.derive(OP, TARGET)
BASE = {"block_n": 64, "block_k": 64, "stages": 3}
#: Each sketch is compiled with one of these in turn, (rows of the tile, warps).
FORMS = ((64, 4), (64, 2), (128, 8), (32, 4), (64, 8))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    with opened(tmp_path_factory.mktemp("cache")) as pool:
        yield pool


@pytest.fixture(scope="module")
def cases(pool: CompilePool) -> list[Compiled]:
    forms = [(s.name, *FORMS[i % len(FORMS)]) for i, s in enumerate(SKETCHES)]
    return compile_all(pool, [(OP, scheduled(OP, name, **BASE, block_m=m, warps=w)) for name, m, w in forms])


def test_every_sketch_compiles(cases: list[Compiled]) -> None:
    assert len({case.schedule.sketch.name for case in cases}) == len(SKETCHES) > 20
    assert {case.label: case.result.error for case in cases if case.result.status is not Status.OK} == {}


def test_wgmma_exactly_with_64_rows_and_4_or_8_warps(cases: list[Compiled]) -> None:
    seen = set()
    for case in cases:
        knobs = case.schedule.knobs
        wide = knobs["block_m"] >= 64 and knobs["warps"] in (4, 8)
        assert (case.features["wgmma"] > 0, case.features["mma"] > 0) == (wide, not wide), case.label
        assert case.features["register_a"] == 0, case.label
        seen.add(wide)
    assert seen == {True, False}


def test_descriptors_and_atomics_where_the_sketch_says_so(cases: list[Compiled]) -> None:
    for case in cases:
        facts, features = case.schedule.sketch.facts(), case.features
        assert (features["tma_loads"] > 0) == bool(facts["tma_a"] or facts["tma_b"]), case.label
        assert (features["tma_stores"] > 0) == bool(facts["tma_store"]), case.label
        assert (features["atomics"] > 0) == bool(facts["atomic"]), case.label
        assert features["kernels"] == 1 + facts["workspace"], case.label
        if not (facts["tma_a"] and facts["tma_b"]):
            assert features["cp_async_16"] > 0, case.label  # aligned rows are copied by 16 bytes


def test_resources_are_within_bounds(cases: list[Compiled]) -> None:
    for case in cases:
        assert 0 < case.features["shared_bytes"] <= TARGET.shared_per_block, case.label
        assert 0 < case.features["registers"] <= 255, case.label
        assert case.features["spill_bytes"] == 0, case.label


def test_launching_finds_what_was_compiled(
    cases: list[Compiled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The specialisation compiled ahead is the one launched; else every launch would compile again."""
    for case in cases:
        assert launched(case.generated, tmp_path, monkeypatch) == case.result.entries, case.label


@pytest.mark.parametrize(
    "op",
    [
        gemm(1000, 1001, 1000, dtype="fp16", epilogue=["bias", "gelu"]),
        gemm(48, 640, 512, dtype="bf16", layout="nt", dynamic=["M"]),
        contraction("bmk,bkn->bmn", {"b": 3, "m": 100, "n": 64, "k": 128}, dtype="fp32"),
    ],
    ids=lambda op: str(op.key()),
)
def test_other_ops_compile_and_are_found(
    op: Op, pool: CompilePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketches = rules.derive(op, TARGET)
    picked = dict.fromkeys([sketches[0].name, sketches[-1].name])
    work = [(op, scheduled(op, name, block_m=16, block_n=64, block_k=32, warps=4, stages=3)) for name in picked]
    for case in compile_all(pool, work):
        assert (case.result.status, case.result.error) == (Status.OK, ""), case.label
        exact = op.output.dtype.name == "fp32"  # IEEE fp32 has no tensor core
        assert (case.features["mma"] > 0) != exact, case.label
        assert launched(case.generated, tmp_path, monkeypatch) == case.result.entries, case.label


#: Convolutions, and whether x (or grad) is loaded by 16 bytes although it is gathered.
GATHERED = {
    "taps of whole steps": (conv2d(32, 320, 32, 32, 64, 3, 3, 1, 1), True),
    "taps within a step": (conv2d(8, 48, 28, 28, 64, 3, 3, 2, 1), True),
    "8 channels": (conv2d(8, 8, 28, 28, 64, 3, 3, 1, 1), True),
    "unpadded": (conv2d(8, 64, 30, 30, 64, 3, 3), True),
    "8-bit floats": (conv2d(8, 64, 28, 28, 64, 3, 3, 1, 1, dtype="fp8e4m3"), True),
    "weight gradient": (conv2d_weight_grad(8, 64, 28, 28, 64, 3, 3, 1, 1), True),
    "input gradient": (conv2d_input_grad(8, 64, 28, 28, 64, 3, 3, 2, 1), True),
    "3 channels": (conv2d(8, 3, 32, 32, 64, 7, 7, 2, 3), False),
    "channels first": (conv2d(8, 64, 28, 28, 64, 3, 3, 1, 1, layout="nchw"), False),
}


def test_masks_of_gathers_leave_vectors_whole(
    pool: CompilePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but copies of 16 bytes where neighbours lie in a row and nothing else moves its start; no hazard."""
    base = {**BASE, "block_m": 64, "warps": 4}
    names = ("grid.ptr-ptr.direct-ptr", "persistent.ptr-tma.subtiled-ptr", "split.ptr-ptr.workspace")
    work, whole = [], []
    for op, vectors in GATHERED.values():
        found = {s.name for s in rules.derive(op, TARGET)}
        work += [(op, scheduled(op, name, **base)) for name in names if name in found]
        whole += [vectors for name in names if name in found]
    for case, vectors in zip(compile_all(pool, work), whole, strict=True):
        assert (case.result.status, case.result.error) == (Status.OK, ""), case.label
        features = case.features
        assert features["register_a"] == 0, case.label
        assert features["spill_bytes"] <= 16, case.label  # Triton 3.9 spills 8 of one, 3.6 none
        assert features["wgmma"] > 0, case.label
        if vectors:
            assert features["cp_async_16"] > 0, case.label
            assert features["cp_async_8"] + features["cp_async_4"] == 0, case.label
        assert launched(case.generated, tmp_path, monkeypatch) == case.result.entries, case.label
